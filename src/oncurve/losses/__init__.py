"""Losses: objective and regularizer give a loss per token, aggregation a weight per token; the products are summed.

An objective states `needs` (token statistics), and may state

    zero_gradient_at_zero_advantage   rows whose advantages are all 0 have loss and gradient 0. Left out: False
    zero_statistics                   statistics of its own that are 0 in such rows. Left out: none
    reads_reference                   it reads `batch.ref_logprobs`. Left out: True
    importance_ratio                  π_θ/π_old corrects for updates since the batch was sampled. Left out: True
    corrects_for_sampler              its ratio is to the sampler's recorded log-probs, π_θ/μ. Left out: False
    expected_aggregation              the kind of aggregation that its formula is meant for. Left out: any
    note                              what the plan says of its settings, after its name. Left out: nothing
    describe()                        its `Equation`. Left out: `config explain` names the class

and an aggregation

    resolved(config)                  itself, with constants that stand elsewhere in the configuration. Left out: itself
    grows_with_batch                  the gradient grows with the batch. Left out: False
    describe()                        its `Equation`, the sums in front of the braces

and a correction

    corrects                          it gives weights other than 1. Left out: True
    describe()                        its `Equation`, the weight in front of the objective's term
"""

from oncurve.losses.aggregate import (
    Aggregation,
    PolicyAndApart,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
    check_aggregation,
    grows_with_batch,
    resolved,
)
from oncurve.losses.clipped import Clipped as Clipped, clipped_surrogate as clipped_surrogate
from oncurve.losses.correction import (
    Correction,
    ImportanceWeights as ImportanceWeights,
    Masked,
    NoCorrection,
    Truncated,
    check_correction,
    corrects,
    importance_ratios as importance_ratios,
)
from oncurve.losses.dppo import Dppo, binary_kl, binary_tv
from oncurve.losses.entropy import EntropyBonus
from oncurve.losses.gmpo import Gmpo
from oncurve.losses.kinds import AGGREGATION_KINDS, CORRECTION_KINDS, OBJECTIVE_KINDS
from oncurve.losses.objectives import (
    Objective,
    check_objective,
    corrects_for_sampler,
    expected_aggregation,
    has_importance_ratio,
    objective_loss,
    objective_note,
    reads_reference,
    zero_gradient_at_zero_advantage,
    zero_statistics,
)
from oncurve.losses.policy_gradient import Cispo, Reinforce
from oncurve.losses.preference import bradley_terry, step_cross_entropy
from oncurve.losses.ratios import (
    ratio_stats as ratio_stats,
    token_log_ratio as token_log_ratio,
    trained_advantages as trained_advantages,
)
from oncurve.losses.regularize import KLPenalty, Regularizer
from oncurve.losses.sapo import Sapo, soft_gate
from oncurve.losses.sequence import Gspo, SequenceProduct
from oncurve.losses.tokens import WithoutOffPolicy, off_policy, top_entropy
from oncurve.losses.value import ValueLoss, value_loss
