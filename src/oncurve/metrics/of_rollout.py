"""Metrics of what was sampled and how it was scored: rewards, groups, completions, tokens, the position in the data.

Sums and means are over the completions of one step; a completion is *valid* where its reward is usable.
"""

from oncurve.metrics.metric import Metric

ROLLOUT_METRICS: tuple[Metric, ...] = (
    Metric("step", "last", "steps", trl="step", verl="training/global_step").described(
        "s",
        "The step that this line belongs to; the first is 1.",
        "A gap: lines were lost. A number that occurs twice: the file was edited or copied.",
    ),
    Metric("progress/epoch", "last", "epochs", trl="epoch", verl="training/epoch").described(
        "progress/prompts_seen / prompts in the data",
        "How many times the run has gone through the data, as a fraction.",
        "Many epochs over few prompts: the policy memorises them; compare with the held-out accuracy.",
    ),
    Metric("progress/prompts_seen", "last", "prompts").described(
        "prompts drawn since the run began, those of dropped groups included",
        "The position in the data.",
        "It grows by data.prompts_per_step per step (times groups/rounds, where that is there); by less or more, lines "
        "were lost or the setting was changed.",
    ),
    Metric("progress/iteration", "last", "iterations").described(
        "⌈step / iterative.steps⌉",
        "The iteration of Algorithm 1 that this step belongs to; the first is 1.",
        "The reference moves to the policy where a new iteration begins, and policy/kl falls to 0 there.",
    ),
    Metric("reward/mean", "mean", "reward", trl="reward", verl="critic/score/mean").described(
        "Σ_valid r_i / |valid|",
        "Mean reward of the valid completions: what training maximises. The KL penalty is not taken off. Absent, as "
        "are the other metrics of rewards, in a distillation without a reward.",
        "Flat: see groups/constant and optim/learning_rate. Rising while held-out accuracy does not: the policy "
        "exploits the reward; read the completions in rollouts/.",
    ),
    Metric("reward/std", "mean", "reward", trl="reward_std").described(
        "mean over groups of std_ddof1 of the group's valid rewards",
        "How much the rewards within a group differ: GRPO learns only from these differences.",
        "Near 0: the prompts are too easy or too hard, or the temperature is too low.",
    ),
    Metric("reward/step_mean", "mean", "reward").described(
        "mean of the rewards of all scored steps",
        "Mean reward of a step of a completion: what process supervision maximises.",
        "Rising while reward/mean does not: the steps are right and the answers wrong, or the policy pads completions "
        "with easy steps; see completions/scored_steps.",
    ),
    Metric("reward/faults", "sum", "faults").described(
        "reward calls that raised, timed out, died, or returned something other than a finite number",
        "How often a reward failed.",
        "Above 0: read the fault texts in rollouts/; fix the function, or give it more time or memory.",
    ),
    Metric("faults/<kind>", "sum", "faults").described(
        "faults of one kind",
        "The faults by kind: exception, exit, memory, timeout, died, not_finite, type, none.",
        "Only timeouts depend on the machine's load; the others can be reproduced from rollouts/.",
    ),
    Metric("rewards/<name>", "mean", "reward", trl="rewards/<name>/mean").described(
        "mean of the component's raw value over the completions it applied to, before its weight",
        "One component of the reward, under its name in the recipe; rewards/<name>/<metric> is a metric that the "
        "function itself reports.",
        "One component rises at the cost of another: change the weights.",
    ),
    Metric("groups/constant", "mean", "fraction", trl="frac_reward_zero_std").described(
        "groups with max r = min r / groups",
        "Groups whose completions all have the same reward; advantages relative to the group alone, and so their "
        "gradient, are exactly 0.",
        "Near 1: most of the batch teaches nothing. Change the mix of prompts, raise rollout.group_size or "
        "rollout.temperature, or give partial rewards.",
    ),
    Metric("groups/dropped", "sum", "groups").described(
        "groups with fewer valid completions than the advantage needs",
        "Groups left out of the step because too few of their completions could be scored.",
        "Above 0: the reward fails; see reward/faults and the fault texts in rollouts/.",
    ),
    Metric("groups/rounds", "sum", "rounds", verl="train/num_gen_batches").described(
        "rounds of sampling; only with filter.dynamic_sampling, as are the next four",
        "How often the step sampled data.prompts_per_step prompts to find enough groups to train on.",
        "Growing: ever more prompts are always or never solved; change the mix of prompts. At filter.max_rounds: see "
        "groups/trained.",
    ),
    Metric("groups/sampled", "sum", "groups").described(
        "groups sampled in this step",
        "With the surplus of the step before, these are the groups that were trained on, filtered, dropped or kept: "
        "groups/sampled + groups/surplus of the step before = groups/trained + groups/filtered + groups/dropped + "
        "groups/surplus.",
        "The equation does not hold: report it.",
    ),
    Metric("groups/filtered", "sum", "groups").described(
        "groups sampled in this step that are all right or all wrong, or without a completion to train on",
        "Groups that filter.dynamic_sampling leaves out. They count in reward/mean and in tokens/sampled.",
        "Most of groups/sampled: sampling is wasted; use prompts that are solved now and then.",
    ),
    Metric("groups/trained", "sum", "groups").described(
        "groups that the step trained on",
        "The size of the batch, in groups; data.prompts_per_step where enough of them were found.",
        "Less than data.prompts_per_step: filter.max_rounds ended the search; the step is noisier.",
    ),
    Metric("groups/surplus", "last", "groups").described(
        "groups kept for the next step",
        "Groups beyond data.prompts_per_step. They are less than that, so each is trained on in the next step, one "
        "step after it was sampled.",
        "It is in the checkpoint; no group is lost or trained on twice.",
    ),
    Metric(
        "completions/length", "mean", "tokens", trl="completions/mean_length", verl="response_length/mean"
    ).described(
        "mean |o_i|",
        "Mean length of the completions, end token included.",
        "Growing while reward/mean does not: the aggregation favours length (try seq-mean-token-sum-norm), or the "
        "reward does.",
    ),
    Metric(
        "completions/length_max", "max", "tokens", trl="completions/max_length", verl="response_length/max"
    ).described(
        "max |o_i|",
        "The longest completion of the step.",
        "Always rollout.max_new_tokens: completions are cut off; see completions/truncated.",
    ),
    Metric(
        "completions/truncated", "mean", "fraction", trl="completions/clipped_ratio", verl="response_length/clip_ratio"
    ).described(
        "completions that ended by length / completions",
        "Completions cut off at rollout.max_new_tokens.",
        "High: raise rollout.max_new_tokens, or set filter.mask_truncated. At 1.0 the end token is never sampled: "
        "check rollout.eos_ids and the chat template.",
    ),
    Metric("completions/invalid", "sum", "completions").described(
        "completions without a usable reward",
        "Completions left out of statistics and loss: the reward failed, or no component of it applied.",
        "A few are harmless. A steady share: find in rollouts/ what they have in common.",
    ),
    Metric("completions/scored_steps", "mean", "steps").described(
        "steps with a reward / valid completions; absent where no reward scores steps",
        "Steps that the rewards scored, per completion.",
        "0 or 1 where you expect more: the splitter does not fit the way completions are written; see step_ends in "
        "rollouts/.",
    ),
    Metric("advantage/abs_mean", "mean", "1").described(
        "mean |Â| over trained tokens",
        "The strength of the learning signal; about 0.8 for groups with mixed rewards and std normalisation.",
        "Near 0: these groups teach nothing; see groups/constant.",
    ),
    Metric("advantage/nonfinite", "sum", "tokens").described(
        "trained tokens whose Â is not finite; absent where there are none",
        "Tokens whose advantage is NaN or infinite. The update with them is skipped.",
        "Above 0: rewards are too large, or an advantage of your own divides by 0. No learning rate changes it.",
    ),
    Metric("tokens/sampled", "sum", "tokens").described(
        "Σ |o_i|",
        "Completion tokens sampled in this step.",
        "The cost of a step grows with it; see tokens/per_second.",
    ),
    Metric("tokens/per_second", "last", "tokens per second", verl="perf/throughput").described(
        "tokens/sampled / time/step",
        "Completion tokens per second of the whole step, from sampling to update.",
        "Falling: completions become shorter or more uneven in length, or other processes use the machine: see "
        "time/processor_wait and the times of the phases.",
    ),
    Metric("eval/<name>", "last", "as named", trl="eval_<name>", verl="val-core/<source>/acc/mean@<n>").described(
        "the evaluation's result of that name on held-out prompts; a completion is correct where one reward, "
        "eval.verifier or the only checker of answers, gives it 1, before its weight",
        "What the policy can do on prompts that it is not trained on.",
        "The number that says whether training helped. It falls while reward/mean rises: stop and read completions.",
    ),
)
