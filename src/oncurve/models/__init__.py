"""Models and tokenizers: what predicts the next token, fast where it can be, plainly where it must.

Loaded lazily: importing this package imports neither torch's nor transformers' weight.
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.models.adapters.adapter import Adapter as Adapter
    from oncurve.models.adapters.settings import LoraSettings as LoraSettings
    from oncurve.models.causal import (
        CausalModel as CausalModel,
        DecodeRequest as DecodeRequest,
        EndedRows as EndedRows,
        Head as Head,
        module_device as module_device,
    )
    from oncurve.models.generic import GenericModel as GenericModel
    from oncurve.models.head.stats import token_stats as token_stats
    from oncurve.models.loading.chat_templates import render as render
    from oncurve.models.loading.policy_weights import (
        LocalWeights as LocalWeights,
        Weights as Weights,
        changing_tensors as changing_tensors,
        held as held,
    )
    from oncurve.models.loading.saving import save as save
    from oncurve.models.loading.weights import (
        LoadedModel as LoadedModel,
        ModelConfig as ModelConfig,
        adapted as adapted,
    )
    from oncurve.models.network import TransformersModel as TransformersModel
    from oncurve.models.probe import wrap as wrap


__getattr__, __all__ = lazily(__name__)
