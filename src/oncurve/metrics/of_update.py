"""Metrics of the updates: losses, ratios, divergences, the optimizer, and where the time and memory went.

Means are over the trained tokens of all updates of a step unless the formula says otherwise.
ρ = π_θ/π_old at a sampled token; d = log π_θ - log π_ref there.
"""

from oncurve.metrics.metric import Metric

__all__ = ["UPDATE_METRICS"]

_PHASE = "It is a share of `seconds`; what is missing from the sum of the phases is the loop itself."

UPDATE_METRICS: tuple[Metric, ...] = (
    Metric(
        "loss",
        "mean",
        "as the objective",
        "mean over updates of Σ_it weight_it · loss_it",
        "What the optimizer descends. Its value says little: with centred advantages and ρ = 1 it is near 0 by "
        "construction, whatever is being learned.",
        "Read it with advantage_abs, grad_norm and constant_groups. Jumps with ratio_max: the updates are too large.",
    ),
    Metric(
        "policy_loss",
        "mean",
        "as the objective",
        "mean over trained tokens of the objective's loss, before aggregation weights, KL and entropy",
        "The objective's part of the loss.",
        "As for loss; near 0 is normal on the first update after a rollout.",
    ),
    Metric(
        "kl",
        "mean",
        "nats per token",
        "mean over trained tokens of the estimator that is used: kl.estimator at the policy before the step's first "
        "update, over the tokens of that update; log π_old - log π_ref (k1) over the whole batch where "
        'kl.where = "reward"',
        "How far the policy that sampled has moved from the reference; exactly 0 before the first update of a run.",
        "Growing without end, or reward rising with it steeply: raise kl.coef or lower the learning rate. "
        "Not 0 at step 1: the reference is not a copy of the policy. Below 0: k1 is no distance of single tokens, and "
        "a mean over few of them may be negative.",
        on_policy=True,
    ),
    Metric(
        "kl_controller",
        "mean",
        "nats per token",
        "mean over completions of the mean over their trained tokens of log π_old - log π_ref; only where "
        'kl.where = "reward"',
        "What kl.target is compared with to steer kl_coef. It differs from kl where long completions differ from short "
        "ones: here each completion counts the same, there each token.",
        "Above kl.target: kl_coef rises by at most 0.2 · completions / kl.horizon of itself a step; where that is too "
        "slow, lower kl.horizon.",
    ),
    Metric(
        "reference_moved",
        "last",
        "1",
        "1 where π_ref moved just before the step; absent elsewhere",
        "The reference has followed the policy: from this step on kl is measured from where it is now.",
        "Never there: reference.every is 0, or no less than the run's steps. kl then falls at these steps: what it "
        "grows by between two of them says how far the policy goes in that time.",
    ),
    Metric(
        "value_loss",
        "mean",
        "1",
        "mean over trained tokens of ½ max((V - R)², (V_old + clip(V - V_old) - R)²)",
        "How far the critic's values are from the returns, before the critic's update.",
        "Not falling: raise critic.learning_rate, or give it updates of its own first (critic.warmup_steps).",
    ),
    Metric(
        "value_error",
        "mean",
        "reward",
        "mean over trained tokens of |V - R|",
        "The same as a distance, in units of the reward.",
        "As large as the spread of the rewards: the critic knows nothing yet, and advantages are returns.",
    ),
    Metric(
        "value_clip_fraction",
        "mean",
        "fraction",
        "trained tokens whose clipped value is the farther one from the return",
        "How often critic.clip binds.",
        "Near 1: the critic is held back; raise critic.clip, which is in units of the reward, or set it to 0.",
    ),
    Metric(
        "critic_grad_norm",
        "mean",
        "1",
        "the norm of the critic's gradient before it is clipped",
        "How large the critic's steps would be.",
        "Growing without end: rewards are too large for it; scale them, or lower critic.learning_rate.",
    ),
    Metric(
        "kl_coef",
        "last",
        "1",
        "β",
        "The coefficient of the KL term in force.",
        "Under a controller it should settle; if it runs away, the target cannot be met at this learning rate.",
    ),
    Metric(
        "entropy",
        "mean",
        "nats per token",
        "mean over trained tokens of -Σ_v π_θ(v) log π_θ(v), at the sampling temperature",
        "How undecided the policy is; exploration needs some.",
        "Falling to 0 early: groups become constant; raise clip_high, the temperature, kl.coef or the entropy bonus. "
        "Rising: text is falling apart; lower the entropy bonus or the learning rate.",
    ),
    Metric(
        "ratio",
        "mean",
        "1",
        "mean ρ",
        "How much likelier the sampled tokens became since the rollout; 1 on the first update where the engine sampled "
        "with the present weights.",
        "Not 1 with one update per rollout: the engine's weights lag; see mismatch. Far from 1: too many updates, or "
        "too large, for one rollout.",
    ),
    Metric(
        "ratio_max",
        "max",
        "1",
        "max ρ",
        "The largest ratio of the step.",
        "In the hundreds: a few tokens steer the update; lower the learning rate or use dual_clip.",
    ),
    Metric(
        "clip_fraction_low",
        "mean",
        "fraction",
        "tokens with Â < 0 and ρ < 1 - clip_low / trained tokens",
        "Tokens of bad completions already pushed down as far as one rollout allows: no gradient.",
        "Above 0.2: the updates are too large, or too many for one rollout. Always 0 with one update a rollout.",
    ),
    Metric(
        "clip_fraction_high",
        "mean",
        "fraction",
        "tokens with Â > 0 and ρ > 1 + clip_high / trained tokens",
        "Tokens of good completions already pushed up as far as one rollout allows: no gradient.",
        "As clip_fraction_low; if only this one is high and entropy falls, raise clip_high (DAPO uses 0.28).",
    ),
    Metric(
        "dual_clip_fraction",
        "mean",
        "fraction",
        "tokens with Â < 0 and ρ > min(dual_clip, delta) / trained tokens",
        "Tokens of bad completions that grew so much likelier that the outer bound holds their loss.",
        "Above 0.01: something pushes bad tokens up; look at ratio_max and the learning rate.",
    ),
    Metric(
        "approx_kl_old",
        "mean",
        "nats per token",
        "mean (ρ - 1 - log ρ)",
        "Estimate of KL(π_old || π_θ): how far this step's updates went from the rollout's policy.",
        "Above 0.02: fewer passes, fewer minibatches or a lower learning rate.",
    ),
    Metric(
        "mismatch",
        "mean",
        "nats",
        "mean |log π_learner - log π_sampler| over the trained tokens of the step's first update, before it",
        "How well the learner reproduces the log-probs the sampler recorded; rounding only, in one process.",
        "Above 1e-3 in float32 or 0.05 in bfloat16: sampler and learner do not compute the same distribution; check "
        "temperature, chat template, attention path; or the engine's weights lag behind the learner's.",
        on_policy=True,
    ),
    Metric(
        "mismatch_max",
        "max",
        "nats",
        "max |log π_learner - log π_sampler|",
        "The worst token of the step.",
        "As mismatch; one large value in thousands is usual for bfloat16.",
        on_policy=True,
    ),
    Metric(
        "grad_norm",
        "mean",
        "1",
        "mean over updates of ‖∇loss‖₂ before clipping",
        "The size of the gradient.",
        "0: nothing is learned (constant_groups?). Always far above the clip norm: only the direction counts, and the "
        "learning rate alone sets the step. Spikes: look at ratio_max and the rollouts of that step.",
    ),
    Metric(
        "learning_rate",
        "last",
        "1",
        "η of the last update",
        "The learning rate in force, schedule applied.",
        "0 at the start is a warm-up; 0 for good means that the schedule has ended before the run.",
    ),
    Metric(
        "updates",
        "sum",
        "updates",
        "optimizer steps taken",
        "How often the weights changed in this step: passes x minibatches, less those skipped.",
        "0: the step trained nothing; see updates_skipped and dropped_groups.",
    ),
    Metric(
        "updates_skipped",
        "sum",
        "updates",
        "updates whose loss or gradient was not finite",
        "Updates left out; their batch is kept under incidents/.",
        "Three in a row stop the run. Try float32, a lower learning rate, and look at the saved batch.",
    ),
    Metric(
        "updates_without_tokens",
        "sum",
        "updates",
        "updates whose batch has no trained token; absent where there are none",
        "Updates that could teach nothing: every completion was left out of the loss. What AdamW's averages still hold "
        "moves the weights all the same.",
        "Above 0: all completions were truncated under filter.mask_truncated; raise rollout.max_new_tokens.",
    ),
    Metric(
        "out_of_memory",
        "sum",
        "updates",
        "times that an update ran out of the device's memory and was done again in micro-batches half as large",
        "There where it happened. The smaller micro-batches stay for the rest of the run, a resumed one too.",
        "Above 0 more than once: set learner.tokens_per_micro_batch lower, so that nothing is done twice.",
    ),
    Metric(
        "nonfinite_values",
        "sum",
        "values",
        "observations of other metrics that were NaN or infinite",
        "Observations left out of their metric, so that no stored number is NaN.",
        "Above 0: some statistic broke down; it usually comes with updates_skipped.",
    ),
    Metric(
        "tokens_per_second",
        "last",
        "tokens per second",
        "tokens / seconds",
        "Completion tokens through the whole step, sampling to update.",
        "Falling: completions grow shorter or raggeder, or the machine is shared: see seconds_waiting and the "
        "seconds of the phases.",
    ),
    Metric(
        "seconds",
        "sum",
        "seconds",
        "wall time of the step",
        "How long the step took.",
        "See which of the phases grew.",
    ),
    Metric("seconds_rollout", "sum", "seconds", "wall time of sampling", "Writing the completions.", _PHASE),
    Metric(
        "seconds_reward",
        "sum",
        "seconds",
        "wall time from the end of sampling to the last score",
        "How long the step waited for rewards. Workers score groups while others are still being written: that time "
        "is in seconds_reward_overlapped.",
        "A share of `seconds`. Large: more processes for the reward, if there are cores; a function of one completion "
        "in a worker overlaps with sampling, a batch function or one in this process cannot.",
    ),
    Metric(
        "seconds_reward_overlapped",
        "sum",
        "seconds",
        "Σ over workers of the seconds spent on rewards before sampling ended",
        "Reward work that the step did not wait for.",
        "It is no part of `seconds`, and more than seconds_rollout where several workers are busy. Large, with a "
        "seconds_rollout that grew: the reward takes the sampler's cores; give it fewer processes.",
    ),
    Metric("seconds_old", "sum", "seconds", "wall time of old log-probs", "Old log-probs, where needed.", _PHASE),
    Metric("seconds_reference", "sum", "seconds", "wall time of the reference", "The reference's log-probs.", _PHASE),
    Metric("seconds_update", "sum", "seconds", "wall time of the updates", "Forward, backward, optimizer.", _PHASE),
    Metric("seconds_evaluation", "sum", "seconds", "wall time of evaluation", "Held-out evaluation.", _PHASE),
    Metric("seconds_checkpoint", "sum", "seconds", "wall time of saving", "Checkpoints and logs.", _PHASE),
    Metric(
        "seconds_waiting",
        "last",
        "seconds",
        "Σ over the process's threads of Δ(time on the kernel's run queue), since the step before",
        "How long threads were ready to run and had no processor; absent where the system does not say it (other than "
        "Linux).",
        "More than a third of `seconds`: other processes, this run's reward workers among them, use the same "
        "processors, or run.threads is more than there are. Steps take up to twice as long; no result changes. End the "
        "other work, or start with a smaller run.threads.",
    ),
    Metric(
        "memory_bytes",
        "max",
        "bytes",
        "peak resident memory of the process; of the GPU's allocator, where there is one",
        "How near the machine is to its limit.",
        "Too near: lower tokens_per_micro_batch or the rows decoded at once. Growing by the step: report it as a leak.",
    ),
)
