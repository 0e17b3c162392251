"""Models and tokenizers: what predicts the next token, fast where it can be, plainly where it must.

Loaded lazily: importing this package imports neither torch's nor transformers' weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.models.adapters import Adapter as Adapter, LoraSettings as LoraSettings
    from oncurve.models.causal import (
        CausalModel as CausalModel,
        DecodeRequest as DecodeRequest,
        EndedRows as EndedRows,
        Head as Head,
        TokenLoop as TokenLoop,
        module_device as module_device,
    )
    from oncurve.models.generic import GenericModel as GenericModel
    from oncurve.models.head import token_stats as token_stats
    from oncurve.models.loading import (
        LoadedModel as LoadedModel,
        LocalWeights as LocalWeights,
        ModelConfig as ModelConfig,
        Weights as Weights,
        adapted as adapted,
        changing_tensors as changing_tensors,
        eos_ids_of as eos_ids_of,
        has_template as has_template,
        held as held,
        render as render,
        save as save,
    )
    from oncurve.models.network import TransformersModel as TransformersModel
    from oncurve.models.probe import wrap as wrap


__getattr__, __all__ = lazily(__name__)
