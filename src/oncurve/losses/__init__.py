"""Losses: objective and regularizer give a loss per token, aggregation a weight per token; the products are summed."""

from oncurve.losses.aggregate import (
    AGGREGATION_KINDS,
    AggregationName,
    PolicyAndKL,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)
from oncurve.losses.objectives import OBJECTIVE_KINDS, Clipped, Objective, Reinforce, Sequence, check_objective
from oncurve.losses.preference import bradley_terry, step_cross_entropy
from oncurve.losses.regularize import KLPenalty, Regularizer
from oncurve.losses.value import ValueLoss, value_loss

__all__ = [
    "AGGREGATION_KINDS",
    "OBJECTIVE_KINDS",
    "AggregationName",
    "Clipped",
    "KLPenalty",
    "Objective",
    "PolicyAndKL",
    "Regularizer",
    "Reinforce",
    "SeqMeanTokenMean",
    "SeqMeanTokenSum",
    "SeqMeanTokenSumNorm",
    "Sequence",
    "TokenMean",
    "TokenSum",
    "ValueLoss",
    "bradley_terry",
    "check_objective",
    "step_cross_entropy",
    "value_loss",
]
