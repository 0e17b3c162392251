"""Metrics of the updates: losses, ratios, divergences, the critic, the optimizer, time and memory.

Means are over the trained tokens of all updates of a step unless the formula says otherwise.
ρ = π_θ/π_old at a sampled token; d = log π_θ - log π_ref there.
"""

from oncurve.metrics.metric import Metric

_PHASE = "Compare its share of time/step with that of earlier steps; time in none of the phases is the loop's own."

UPDATE_METRICS: tuple[Metric, ...] = (
    Metric("policy/loss", "mean", "as the objective", trl="loss").described(
        "mean over updates of Σ_it weight_it · loss_it",
        "The loss that the optimizer minimises, KL and entropy terms included. Its value says little: with centred "
        "advantages and ρ = 1 it is near 0 whatever is being learned.",
        "Read it with advantage/abs_mean, optim/grad_norm and groups/constant. It jumps with policy/ratio_max: the "
        "updates are too large.",
    ),
    Metric("policy/objective_loss", "mean", "as the objective", verl="actor/pg_loss").described(
        "mean over trained tokens of the objective's loss, before aggregation weights, KL and entropy",
        "The objective's part of the loss.",
        "As for policy/loss; near 0 is normal on the first update after a rollout.",
    ),
    Metric("policy/kl", "mean", "nats per token", trl="kl", verl="actor/kl_loss", on_policy=True).described(
        "mean over trained tokens of kl.estimator at the policy before the step's first update, over the tokens of "
        'that update; where kl.where = "reward", of log π_old - log π_ref (k1) over the whole batch',
        "How far the policy that sampled has moved from the reference; 0, up to rounding, before the first update of a "
        "run.",
        "Growing without end, or reward/mean rising steeply with it: raise kl.coef or lower the learning rate. At "
        "step 1 above the rounding of model.dtype: the reference is not a copy of the policy. Below 0: k1 is not a "
        "distance at single tokens, and its mean over few tokens may be negative.",
    ),
    Metric("policy/kl_completion_mean", "mean", "nats per token", verl="actor/reward_kl_penalty").described(
        "mean over completions of the mean over their trained tokens of log π_old - log π_ref; only where kl.where = "
        '"reward"',
        "The KL that is compared with kl.target to steer policy/kl_coef. Each completion counts the same here, each "
        "token in policy/kl.",
        "Above kl.target: policy/kl_coef grows by at most 0.2 · completions / kl.horizon of itself per step; where "
        "that is too slow, lower kl.horizon.",
    ),
    Metric("policy/kl_coef", "last", "1", verl="actor/kl_coef").described(
        "β",
        "The coefficient of the KL term in force.",
        "With kl.target set it should settle; if it grows without end, the target cannot be met at this learning rate.",
    ),
    Metric("policy/kl_old", "mean", "nats per token", verl="actor/ppo_kl").described(
        "mean (ρ - 1 - log ρ), with the ratio ρ of the token for every objective",
        "Estimate of KL(π_old || π_θ): how far this step's updates moved from the policy that sampled.",
        "Above 0.02: fewer learner.ppo_epochs, fewer learner.minibatches or a lower learning rate; learner.target_kl "
        "ends a step's updates there.",
    ),
    Metric("policy/teacher_kl", "mean", "nats per token").described(
        "mean over trained tokens of log π_old - log π_T (k1); only where the advantage has a teacher π_T",
        "Estimate of the reverse KL from the policy that sampled to the teacher: what distillation lowers.",
        "Not falling: raise the learning rate or rollout.group_size. Below 0 over few tokens: k1 is a distance on "
        "average only.",
    ),
    Metric("reference/moved", "last", "1").described(
        "1 where π_ref moved just before the step; absent elsewhere",
        "The reference moved towards the policy; from this step on policy/kl is measured from there.",
        "Never there: reference.every is 0, or not below run.steps. The growth of policy/kl between two moves is how "
        "far the policy goes in that time.",
    ),
    Metric("policy/entropy", "mean", "nats per token", trl="entropy", verl="actor/entropy").described(
        "mean over trained tokens of -Σ_v π_θ(v) log π_θ(v), at the sampling temperature",
        "The entropy of the policy's next-token distribution; exploration needs some.",
        "Falling to 0 early: groups become constant; raise objective.clip_high, rollout.temperature, kl.coef or "
        "entropy.coef, or set entropy.target. Rising: the text falls apart; lower entropy.coef or the learning rate.",
    ),
    Metric("policy/entropy_coef", "last", "1").described(
        "α; only with entropy.target",
        "The coefficient of the entropy bonus in force; 0 while the entropy of the step before is above the target.",
        "Growing without end: the entropy cannot reach entropy.target at this learning rate; lower the target or raise "
        "entropy.step.",
    ),
    Metric("policy/ratio", "mean", "1").described(
        "mean ρ (dppo: π_θ/μ; gspo and sequence_product: of the completion, at each of its tokens)",
        "The importance ratio; 1 on the first update where the engine sampled with the present weights.",
        "Not 1 with one update per rollout: the engine's weights lag; see policy/mismatch. Far from 1: too many "
        "updates per rollout, or too large ones.",
    ),
    Metric("policy/ratio_max", "max", "1").described(
        "max ρ",
        "The largest importance ratio of the step.",
        "In the hundreds: a few tokens dominate the update; lower the learning rate or set objective.dual_clip.",
    ),
    Metric("policy/clip_low", "mean", "fraction", trl="clip_ratio/low_mean", verl="actor/pg_clipfrac").described(
        "tokens with Â < 0 and ρ < 1 - clip_low (gmpo: log ρ < -clip_low) / trained tokens",
        "Tokens of bad completions that are already pushed down as far as one rollout allows: no gradient.",
        "Above 0.2: the updates are too large, or too many per rollout. Always 0 with one update per rollout.",
    ),
    Metric("policy/clip_high", "mean", "fraction", trl="clip_ratio/high_mean", verl="actor/pg_clipfrac").described(
        "tokens with Â > 0 and ρ > 1 + clip_high (gmpo: log ρ > clip_high) / trained tokens",
        "Tokens of good completions that are already pushed up as far as one rollout allows: no gradient.",
        "As for policy/clip_low; if only this one is high and policy/entropy falls, raise objective.clip_high (DAPO "
        "uses 0.28).",
    ),
    Metric("policy/clip_dual", "mean", "fraction", verl="actor/pg_clipfrac_lower").described(
        "tokens with Â < 0 and ρ > min(dual_clip, delta) / trained tokens",
        "Tokens of bad completions that became so much more likely that the outer bound clips their loss.",
        "Above 0.01: bad tokens are being pushed up; see policy/ratio_max and the learning rate.",
    ),
    Metric("policy/weight_clip", "mean", "fraction", trl="cispo_clip_ratio", verl="actor/pg_clipfrac").described(
        "cispo: tokens with ρ < 1 - clip_low or ρ > 1 + clip_high / trained tokens; dppo: those with ρ > max_ratio",
        "Tokens whose gradient has a bound as its weight instead of ρ; they keep it. TRL counts those above the upper "
        "bound with Â > 0.",
        "Above 0.2: the weights no longer correct for the updates since the rollout; make fewer or smaller updates, or "
        "widen the bounds.",
    ),
    Metric("policy/gate", "mean", "1").described(
        "sapo: mean 4 σ (1 - σ), σ = sigmoid(τ (ρ - 1))",
        "The share of a token's gradient that SAPO's gate lets through; 1 at ρ = 1.",
        "Below 0.8: many tokens are far from the policy that sampled; make fewer or smaller updates. Always 1 with one "
        "update per rollout.",
    ),
    Metric("policy/dropped", "mean", "fraction", verl="actor/pg_clipfrac").described(
        "dppo: tokens whose divergence from the sampler is above delta and whose advantage pushes them further away / "
        "trained tokens",
        "Tokens outside the trust region: no gradient.",
        "Above 0.2: the updates are too large, or too many per rollout; or sampler and learner differ, see "
        "policy/mismatch.",
    ),
    Metric("policy/mismatch", "mean", "nats", trl="sampling/sampling_logp_difference/mean", on_policy=True).described(
        "mean |log π_learner - log π_sampler| over the trained tokens of the step's first update, before it",
        "How well the learner reproduces the sampler's log-probs; in one process they differ by rounding only.",
        "Above 1e-3 in float32 or 0.05 in bfloat16: sampler and learner compute different distributions; check "
        "temperature, chat template and attention, or whether the engine's weights lag. Those of the groups that "
        "filter.dynamic_sampling has kept from the step before do, by one step, and with cluster.lag all do.",
    ),
    Metric("policy/mismatch_max", "max", "nats", trl="sampling/sampling_logp_difference/max", on_policy=True).described(
        "max |log π_learner - log π_sampler|",
        "The worst token of the step.",
        "As for policy/mismatch; one large value in thousands is usual in bfloat16.",
    ),
    Metric("critic/loss", "mean", "1", verl="critic/vf_loss").described(
        "mean over trained tokens of ½ max((V - R)², (V_old + clip(V - V_old) - R)²)",
        "How far the critic's values are from the returns, before the critic's update.",
        "Not falling: raise critic.learning_rate, or train the critic alone first (critic.warmup_steps).",
    ),
    Metric("critic/error", "mean", "reward").described(
        "mean over trained tokens of |V - R|",
        "The same as a distance, in units of the reward.",
        "As large as the spread of the rewards: the critic has learned nothing yet, and advantages are returns.",
    ),
    Metric("critic/clip", "mean", "fraction", verl="critic/vf_clipfrac").described(
        "trained tokens whose clipped value is the farther one from the return",
        "How often critic.clip binds.",
        "Near 1: the clip holds the critic back; raise critic.clip, which is in units of the reward, or set it to 0.",
    ),
    Metric("critic/grad_norm", "mean", "1", verl="critic/grad_norm").described(
        "mean over updates of the critic's ‖∇loss‖₂ before clipping",
        "The size of the critic's gradient.",
        "Growing without end: the rewards are too large; scale them, or lower critic.learning_rate.",
    ),
    Metric("optim/grad_norm", "mean", "1", trl="grad_norm", verl="actor/grad_norm").described(
        "mean over updates of ‖∇loss‖₂ before clipping",
        "The size of the policy's gradient.",
        "0: nothing is learned (see groups/constant). Always far above learner.max_grad_norm: the learning rate alone "
        "sets the size of the updates. Spikes: see policy/ratio_max and the rollouts of that step.",
    ),
    Metric("optim/learning_rate", "last", "1", trl="learning_rate", verl="actor/lr").described(
        "η of the last update",
        "The learning rate in force, schedule applied.",
        "0 at the start is a warm-up; 0 for good: the schedule ended before the run.",
    ),
    Metric("optim/updates", "sum", "updates").described(
        "optimizer steps taken",
        "How often the weights changed in this step: learner.ppo_epochs x learner.minibatches, less those skipped or "
        "left out, and the empty ones with learner.skip_empty_updates.",
        "0: the step trained nothing; see optim/updates_skipped and groups/dropped.",
    ),
    Metric("optim/updates_empty", "sum", "updates").described(
        "updates whose gradient has the norm 0",
        "Updates that can teach nothing: all their groups are constant, or without a trained token, and no KL term or "
        "entropy bonus acts. AdamW's moments and weight decay move the weights there, or nothing does with "
        "learner.skip_empty_updates.",
        "Many of them: set learner.skip_empty_updates = true or filter.dynamic_sampling = true, raise "
        "rollout.group_size, or choose easier prompts.",
    ),
    Metric("optim/updates_left_out", "sum", "updates").described(
        "updates that learner.target_kl ended the step before; absent without it",
        "Updates that were not made because policy/kl_old of the one before was above learner.target_kl.",
        "Most of them, in most steps: the updates are too large; lower the learning rate, learner.ppo_epochs or "
        "learner.minibatches. Always 0: the target never binds.",
    ),
    Metric("optim/updates_skipped", "sum", "updates").described(
        "updates whose loss or gradient was not finite",
        "Updates left out; their batch is kept in incidents/.",
        "Three in a row stop the run. Try float32 or a lower learning rate, and look at the saved batch.",
    ),
    Metric("optim/updates_without_tokens", "sum", "updates").described(
        "updates whose batch has no trained token; absent where there are none",
        "Updates that can teach nothing, because every completion is left out of the loss: see optim/updates_empty.",
        "Above 0: filter.mask_truncated leaves out all completions; raise rollout.max_new_tokens.",
    ),
    Metric("optim/out_of_memory", "sum", "updates").described(
        "times that an update ran out of device memory and was repeated in micro-batches half as large",
        "Repeated updates; absent where there are none. The smaller micro-batches stay for the rest of the run, a "
        "resumed one included.",
        "Above 0 more than once: lower learner.tokens_per_micro_batch, so that no update is computed twice.",
    ),
    Metric("metrics/nonfinite", "sum", "values").described(
        "observations of other metrics that were NaN or infinite",
        "Observations left out of their metric, so that no stored number is NaN.",
        "Above 0: a statistic overflowed or has no value; often together with optim/updates_skipped.",
    ),
    Metric("memory/peak_bytes", "max", "bytes", verl="perf/max_memory_allocated_gb").described(
        "peak resident memory of the process, or of the GPU's allocator where there is a GPU",
        "How near the run is to the machine's limit.",
        "Too near: lower learner.tokens_per_micro_batch or rollout.max_concurrent. Growing step by step: report it as "
        "a leak.",
    ),
    Metric("disk/refused_writes", "sum", "writes").described(
        "writes that the disk refused since the step before: no space, over quota, or an I/O error",
        "Rollouts, lines of metrics, batches of skipped updates and checkpoints; absent where all were written. "
        "Training goes on, and they are tried again at the next step.",
        "There at all: free some space. If the run is killed meanwhile, a resume repeats the steps since its newest "
        "checkpoint.",
    ),
    Metric("time/step", "sum", "seconds", trl="step_time", verl="timing_s/step").described(
        "wall time of the step",
        "How long the step took, without its evaluation, its checkpoint and time/reward_model.",
        "Growing: see which of the phases grew.",
    ),
    Metric("time/rollout", "sum", "seconds", verl="timing_s/gen").described(
        "wall time", "Sampling the completions.", _PHASE
    ),
    Metric("time/reward", "sum", "seconds", verl="timing_s/reward").described(
        "wall time from the end of sampling to the last score",
        "How long the step waited for rewards. Workers score groups while others are still being sampled; that time "
        "is in time/reward_overlapped.",
        "A large share of time/step: more processes for the reward, if there are cores. A function of one completion "
        "in a worker overlaps with sampling; a batch function, or one in this process, does not.",
    ),
    Metric("time/reward_overlapped", "sum", "seconds").described(
        "Σ over workers of the seconds spent on rewards before sampling ended",
        "Reward work that the step did not wait for; not part of time/step.",
        "It exceeds time/rollout where several workers are busy. Large while time/rollout grows: the rewards take the "
        "sampler's cores; give them fewer processes.",
    ),
    Metric("time/score", "sum", "seconds").described(
        "wall time of scoring the batch",
        "The reference's log-probs and, where they are needed, the old policy's log-probs and the critic's values.",
        _PHASE,
    ),
    Metric("time/update", "sum", "seconds", verl="timing_s/update_actor").described(
        "wall time", "Forward, backward, optimizer.", _PHASE
    ),
    Metric("time/reward_model", "last", "seconds").described(
        "wall time of line 12: measuring, training and measuring the reward model again",
        "What the end of an iteration takes; not part of time/step.",
        "A large share of the run: longer iterations, fewer reward_model.epochs, a smaller iterative.replay.",
    ),
    Metric("time/processor_wait", "last", "seconds").described(
        "Σ over the process's threads of Δ(time on the kernel's run queue), since the step before",
        "How long threads were ready to run and had no processor; absent where the system does not report it (Linux "
        "does).",
        "More than a third of time/step: other processes, this run's reward workers among them, use the same "
        "processors, or run.threads is more than there are. Steps take up to twice as long; no result changes. End "
        "the other work, or start with a smaller run.threads.",
    ),
)
