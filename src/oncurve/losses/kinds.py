"""The kinds of objectives, corrections and aggregations, by their names in a configuration."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from oncurve.base.errors import suggest
from oncurve.base.hints import kind_for
from oncurve.components import Component
from oncurve.losses.aggregate import SeqMeanTokenMean, SeqMeanTokenSum, SeqMeanTokenSumNorm, TokenMean, TokenSum
from oncurve.losses.clipped import Clipped
from oncurve.losses.correction import Masked, NoCorrection, Truncated
from oncurve.losses.dppo import Dppo
from oncurve.losses.gmpo import Gmpo
from oncurve.losses.policy_gradient import Cispo, Reinforce
from oncurve.losses.sapo import Sapo
from oncurve.losses.sequence import Gspo, SequenceProduct

OBJECTIVE_KINDS: dict[str, type[Component]] = {
    "clipped": Clipped,
    "sequence_product": SequenceProduct,
    "gspo": Gspo,
    "gmpo": Gmpo,
    "cispo": Cispo,
    "sapo": Sapo,
    "dppo": Dppo,
    "reinforce": Reinforce,
}

CORRECTION_KINDS: dict[str, type[Component]] = {
    "none": NoCorrection,
    "truncated": Truncated,
    "masked": Masked,
}

AGGREGATION_KINDS: dict[str, type[Component]] = {
    "token-mean": TokenMean,
    "token-sum": TokenSum,
    "seq-mean-token-sum": SeqMeanTokenSum,
    "seq-mean-token-mean": SeqMeanTokenMean,
    "seq-mean-token-sum-norm": SeqMeanTokenSumNorm,
}


def _is_an_aggregation(name: str | None) -> str | None:
    if name is not None and name not in AGGREGATION_KINDS:
        near = kind_for("aggregation", name) or suggest(name, AGGREGATION_KINDS)
        raise ValueError(f"expected one of {', '.join(AGGREGATION_KINDS)}{near}")
    return name


Apart = Annotated[
    str | None,
    BeforeValidator(lambda value: None if value == "none" else value),  # TOML has no null, and a preset may be undone
    AfterValidator(_is_an_aggregation),
]
"""The name of an aggregation of a term's own, or None; "none" is None."""
