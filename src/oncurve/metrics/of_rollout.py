"""Metrics of what was sampled and how it was scored: rewards, groups, lengths, faults, the way through the data.

Sums and means are over the completions of one step; a completion is *valid* where its reward is usable.
"""

from oncurve.metrics.metric import Metric

__all__ = ["ROLLOUT_METRICS"]

ROLLOUT_METRICS: tuple[Metric, ...] = (
    Metric(
        "step",
        "last",
        "steps",
        "s",
        "Which step of the loop this line belongs to; the first is 1.",
        "A gap means lines were lost; a number that comes back means the file was edited or copied.",
    ),
    Metric(
        "epoch",
        "last",
        "epochs",
        "prompts_seen / prompts in the data",
        "How often the data has been gone through, as a fraction.",
        "Many epochs over few prompts end in learning them by heart: compare with held-out accuracy.",
    ),
    Metric(
        "prompts_seen",
        "last",
        "prompts",
        "prompts drawn since the run began, those of dropped groups included",
        "The cursor in the data.",
        "If it grows faster than prompts per step, groups are being dropped and refilled: see dropped_groups.",
    ),
    Metric(
        "reward",
        "mean",
        "reward",
        "Σ_valid r_i / |valid|",
        "Mean reward of the valid completions: what training is to raise.",
        "Flat: see constant_groups (nothing to learn from) and learning_rate. Rising while held-out accuracy does not: "
        "the reward is being gamed; read the completions in rollouts/.",
    ),
    Metric(
        "reward/<name>",
        "mean",
        "reward",
        "mean of the part's raw value over the completions it applied to, before its weight",
        "One reward of several, under the name it has in the recipe.",
        "If one part rises at another's cost, the weights say they are worth it: change the weights.",
    ),
    Metric(
        "reward_std",
        "mean",
        "reward",
        "mean over groups of std_ddof1 of the group's valid rewards",
        "How much siblings differ: GRPO learns only from that.",
        "Near 0: the prompts are too easy or too hard, or the temperature too low.",
    ),
    Metric(
        "judged_steps",
        "mean",
        "steps",
        "steps with a reward / valid completions; absent where no reward judges steps",
        "Steps that the rewards judged, a completion.",
        "0 or 1 where more were expected: the splitter does not cut as completions are written; see step_ends in "
        "rollouts/.",
    ),
    Metric(
        "step_reward",
        "mean",
        "reward",
        "mean of the rewards of all judged steps",
        "What process supervision is to raise.",
        "Rising while reward does not: steps are right and answers wrong, or steps are being padded; see judged_steps.",
    ),
    Metric(
        "constant_groups",
        "mean",
        "fraction",
        "groups with max r = min r / groups",
        "Groups whose completions all got the same reward; their advantage, and so their gradient, is exactly 0.",
        "Near 1: nothing is learned from most of the batch. Change the mix of prompts, raise group_size or the "
        "temperature, or give partial rewards.",
    ),
    Metric(
        "dropped_groups",
        "sum",
        "groups",
        "groups with fewer valid completions than the advantage needs",
        "Groups left out of the step because too few of their completions could be scored.",
        "Above 0: the reward faults; see faults and the rollouts' fault texts.",
    ),
    Metric(
        "invalid_completions",
        "sum",
        "completions",
        "completions without a usable reward",
        "Completions left out of statistics and loss: the reward faulted, or no part of it applied.",
        "Some are harmless; if it is a steady share, find what they have in common in rollouts/.",
    ),
    Metric(
        "faults",
        "sum",
        "faults",
        "reward calls that raised, timed out, died, or returned what is not a finite number",
        "How often a reward failed at its job.",
        "Read the fault texts in rollouts/; mend the function, or give it more time or memory.",
    ),
    Metric(
        "faults/<kind>",
        "sum",
        "faults",
        "faults of one kind",
        "The faults by kind: raised, timeout, died, not finite, ….",
        "Timeouts alone depend on the machine's load; the others can be reproduced from rollouts/.",
    ),
    Metric(
        "advantage_abs",
        "mean",
        "1",
        "mean |Â| over trained tokens",
        "How strong the learning signal is; about 0.8 for groups with mixed rewards and std normalisation.",
        "Near 0 with a loss near 0: there is nothing to learn in these groups; see constant_groups.",
    ),
    Metric(
        "completion_length",
        "mean",
        "tokens",
        "mean |o_i|",
        "Mean length of the completions, end token included.",
        "Growing while reward does not: the aggregation favours length (try seq-mean-token-sum-norm), or the reward.",
    ),
    Metric(
        "completion_length_max",
        "max",
        "tokens",
        "max |o_i|",
        "The longest completion of the step.",
        "Always equal to max_new_tokens: completions are cut; see truncated_fraction.",
    ),
    Metric(
        "truncated_fraction",
        "mean",
        "fraction",
        "completions that ended by length / completions",
        "Completions cut at max_new_tokens, as the sampler recorded.",
        "High: raise max_new_tokens, or leave truncated completions out of the loss; at 1.0 the end token is never "
        "sampled: check eos ids and the chat template.",
    ),
    Metric(
        "tokens",
        "sum",
        "tokens",
        "Σ |o_i|",
        "Completion tokens sampled in this step.",
        "It scales the step's cost; see tokens_per_second.",
    ),
    Metric(
        "eval/<name>",
        "last",
        "as named",
        "the evaluation's result of that name on held-out prompts; correct is a completion that one reward, "
        "eval.judge or the only checker of answers, gives 1, before its weight",
        "What the policy can do on prompts it is not trained on.",
        "The only number that says whether training helped; if it falls while reward rises, stop and read completions.",
    ),
)
