"""Attention over packed rows: the hook in transformers, the kernels, and how partial softmaxes are merged."""

from oncurve.models.attention.flash import FlashContext as FlashContext
from oncurve.models.attention.hook import (
    AttentionContext as AttentionContext,
    register as register,
    switched as switched,
)
from oncurve.models.attention.merge import attend_part as attend_part, merge_softmax as merge_softmax
from oncurve.models.attention.packed_rows import (
    PackedContext as PackedContext,
    PromptAttention as PromptAttention,
    RowLayout as RowLayout,
    additive as additive,
    sdpa as sdpa,
)
