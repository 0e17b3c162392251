"""Metrics of a reward model that is trained, by itself or in the iterations of a run."""

from oncurve.metrics.metric import Metric

__all__ = ["REWARD_MODEL_METRICS"]

REWARD_MODEL_METRICS: tuple[Metric, ...] = (
    Metric(
        "reward_model_loss",
        "mean",
        "nats",
        "pairs: -ln σ(r_chosen - r_rejected - margin), plus center · (r_chosen + r_rejected)²; steps: "
        "-(y ln p + (1 - y) ln (1 - p)); mean over those of the updates",
        "How far the reward model is from the judgements that it learns from.",
        "ln 2 = 0.693 is what a model says that knows nothing. Near 0 while the held-out loss rises: it learns by "
        "heart; fewer epochs, more data.",
    ),
    Metric(
        "reward_model_accuracy",
        "mean",
        "share",
        "pairs: share with r_chosen > r_rejected; steps: share whose p is on the label's side of one half",
        "How often the reward model judges rightly what it is being trained on, before the update on it.",
        "Compare it with the held-out share.",
    ),
    Metric(
        "reward_model_heldout_loss",
        "last",
        "nats",
        "as reward_model_loss, over held-out examples",
        "The same on examples that it has not been trained on.",
        "Rising while reward_model_loss falls: it learns by heart.",
    ),
    Metric(
        "reward_model_heldout_accuracy",
        "last",
        "share",
        "as reward_model_accuracy, over held-out examples",
        "How often the reward model judges rightly what it has not seen.",
        "Near 0.5 on pairs: it knows nothing, and a policy that is trained on it learns nothing.",
    ),
    Metric(
        "reward_model_heldout_first_wrong",
        "last",
        "share",
        "share of held-out completions whose first wrong step is argmax_j (1 - p_j) Π_{i<j} p_i, or none where "
        "Π p_i is larger",
        "How often a process reward model finds the first wrong step, or that there is none.",
        "Compare it with the share of the most frequent answer, which the end of the training prints.",
    ),
    Metric(
        "reward_model_before",
        "last",
        "share",
        "reward_model_heldout_accuracy of the iteration's own held-out examples, before it is trained in this one",
        "How well the reward model still judges what the policy has come to write.",
        "Far below reward_model_heldout_accuracy: the policy has left what the reward model knew; shorter iterations.",
    ),
    Metric(
        "reward_model_updates",
        "sum",
        "updates",
        "optimizer updates of the reward model",
        "How much the reward model was trained.",
        "In a run with iterations, 0 means that no two completions of a group were judged differently.",
    ),
    Metric(
        "reward_model_new",
        "sum",
        "examples",
        "pairs, or completions with labelled steps, made of the iteration's own samples and trained on",
        "What the judge taught in this iteration.",
        "Few: groups whose completions are all judged alike make no pairs.",
    ),
    Metric(
        "reward_model_replayed",
        "sum",
        "examples",
        "round(iterative.replay · reward_model_history)",
        "Examples of earlier iterations that were trained on again.",
        "More of them keeps what was learned; fewer follows the policy faster.",
    ),
    Metric(
        "reward_model_history",
        "last",
        "examples",
        "all examples of earlier iterations, and those of iterative.history",
        "What the replayed examples are drawn from.",
        "It grows by reward_model_new an iteration.",
    ),
    Metric(
        "seconds_reward_model",
        "last",
        "seconds",
        "wall-clock time of line 12: the reward model judged, trained and judged again",
        "What the end of an iteration takes; it is not part of `seconds`.",
        "Much of a run: longer iterations, fewer passes (reward_model.epochs), a smaller replay share.",
    ),
    Metric(
        "iteration",
        "last",
        "iterations",
        "⌈step / iterative.steps⌉",
        "Which iteration of Algorithm 1 this step belongs to; the first is 1.",
        "The reference changes when it does.",
    ),
)
