"""Models and tokenizers: what predicts the next token, fast where it can be, plainly where it must.

Loaded lazily: importing this package imports neither torch's nor transformers' weight.
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.models.adapters.adapter import Adapter
    from oncurve.models.adapters.settings import LoraSettings
    from oncurve.models.causal import CausalModel, DecodeRequest, EndedRows, Head, module_device
    from oncurve.models.generic import GenericModel
    from oncurve.models.head.stats import token_stats
    from oncurve.models.loading.chat_templates import render
    from oncurve.models.loading.policy_weights import (
        LocalWeights as LocalWeights,
        Weights as Weights,
        changing_tensors,
        held,
    )
    from oncurve.models.loading.saving import save
    from oncurve.models.loading.weights import LoadedModel, ModelConfig, adapted
    from oncurve.models.network import TransformersModel
    from oncurve.models.probe import wrap


__getattr__, __all__ = lazily(__name__)
