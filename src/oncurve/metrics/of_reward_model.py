"""Metrics of a reward model that is trained, by itself or in the iterations of a run."""

from oncurve.metrics.metric import Metric

REWARD_MODEL_METRICS: tuple[Metric, ...] = (
    Metric("reward_model/loss", "mean", "nats", trl="loss").described(
        "pairs: -ln σ(r_chosen - r_rejected - margin), plus center · (r_chosen + r_rejected)²; steps: -(y ln p + (1 - "
        "y) ln (1 - p)); mean over those of the updates",
        "The training loss of the reward model.",
        "ln 2 = 0.693: the model does no better than chance. Near 0 while reward_model/heldout_loss rises: it "
        "overfits; train for fewer epochs or on more data.",
    ),
    Metric("reward_model/accuracy", "mean", "fraction", trl="accuracy").described(
        "pairs: fraction with r_chosen > r_rejected; steps: fraction whose p is on the label's side of one half",
        "How often the reward model is right about the examples of an update, before that update.",
        "Compare it with reward_model/heldout_accuracy.",
    ),
    Metric("reward_model/heldout_loss", "last", "nats", trl="eval_loss").described(
        "as reward_model/loss, over held-out examples",
        "The loss on examples that the reward model is not trained on.",
        "Rising while reward_model/loss falls: it overfits.",
    ),
    Metric("reward_model/heldout_accuracy", "last", "fraction", trl="eval_accuracy").described(
        "as reward_model/accuracy, over held-out examples",
        "How often the reward model is right about examples that it is not trained on.",
        "Near 0.5 on pairs: it does no better than chance, and a policy trained on it learns nothing.",
    ),
    Metric("reward_model/heldout_first_wrong", "last", "fraction").described(
        "fraction of held-out completions whose first wrong step is argmax_j (1 - p_j) Π_{i<j} p_i, or none where Π "
        "p_i is larger",
        "How often a process reward model finds the first wrong step, or that there is none.",
        "Compare it with the share of the most frequent answer, which is printed when training ends.",
    ),
    Metric("reward_model/heldout_accuracy_before", "last", "fraction").described(
        "reward_model/heldout_accuracy on the iteration's own held-out examples, before this iteration's training",
        "How well the reward model still scores the policy's present completions.",
        "Far below reward_model/heldout_accuracy: the policy has left the reward model's data; shorten the iterations.",
    ),
    Metric("reward_model/updates", "sum", "updates").described(
        "optimizer updates of the reward model",
        "How much the reward model was trained.",
        "0 in a run with iterations: no two completions of a group were scored differently.",
    ),
    Metric("reward_model/new_examples", "sum", "examples").described(
        "pairs, or completions with labelled steps, made of the iteration's own samples and trained on",
        "What the verifier added to the training data in this iteration.",
        "Few: groups whose completions all have the same score make no pairs.",
    ),
    Metric("reward_model/replayed_examples", "sum", "examples").described(
        "round(iterative.replay · reward_model/history_examples)",
        "Examples of earlier iterations that were trained on again.",
        "More of them preserve what was learned; fewer follow the policy faster.",
    ),
    Metric("reward_model/history_examples", "last", "examples").described(
        "all examples of earlier iterations, and those of iterative.history",
        "The examples that the replayed ones are drawn from.",
        "It grows by reward_model/new_examples per iteration.",
    ),
)
