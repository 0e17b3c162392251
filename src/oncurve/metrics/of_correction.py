"""Metrics of what the policy term does not count as it is: importance weights, and filters of tokens.

w is the weight π_old/μ of `correction.level`; means are over the trained tokens of the batch.
"""

from oncurve.metrics.metric import Metric

_ABSENT = '; absent where the sampler is exact and has the present weights, and with correction.kind = "none"'

CORRECTION_METRICS: tuple[Metric, ...] = (
    Metric(
        "correction/weight",
        "mean",
        "1",
        trl="sampling/importance_sampling_ratio/mean",
        verl="rollout_corr/rollout_is_mean",
    ).described(
        f"mean of w, before a bound{_ABSENT}",
        "The mean importance weight of the old policy to the sampler. At token level its expectation is 1.",
        "Far from 1: the sampler gives tokens almost no probability that the learner finds likely, or the reverse; see "
        "policy/mismatch.",
    ),
    Metric(
        "correction/weight_max",
        "max",
        "1",
        trl="sampling/importance_sampling_ratio/max",
        verl="rollout_corr/rollout_is_max",
    ).described(
        "max w, before a bound",
        "The largest importance weight of the step.",
        "In the hundreds: without a bound a few tokens would decide the update. That is usual at sequence level with "
        "long completions; use the token or the geometric level there.",
    ),
    Metric("correction/bounded", "mean", "fraction", verl="rollout_corr/rollout_rs_masked_fraction").described(
        "trained tokens whose weight was truncated or masked / trained tokens",
        "How often the bounds of [correction] bind: the bias that is accepted for less variance.",
        "Above 0.1: the sampler is too far from the learner; sample with newer weights or in higher precision.",
    ),
    Metric(
        "correction/effective_sample_size", "mean", "fraction", verl="rollout_corr/rollout_is_eff_sample_size"
    ).described(
        "(Σ w)² / (N Σ w²), with the weights in use and N the trained tokens",
        "The share of the tokens that an update effectively learns from; 1 where all weights are equal.",
        "Below 0.5: the gradient is noisy; lower correction.threshold, or bring the sampler nearer to the learner.",
    ),
    Metric("filter/off_policy", "mean", "fraction").described(
        "tokens left out by filter.off_policy_threshold / trained tokens",
        "Tokens of bad completions that the policy would hardly write by now; the objective does not count them.",
        "Above 0.2: the sampler lags too far, or there are too many updates per rollout.",
    ),
)
