"""From hidden states to log-probabilities, without logits `(B, T, V)`, and where gradients are kept."""

from oncurve.models.head.gradient_buffers import (
    gradient_dtype as gradient_dtype,
    keep_gradient as keep_gradient,
    kept_bytes as kept_bytes,
    kept_gradient as kept_gradient,
)
from oncurve.models.head.linear_logprobs import (
    ACCELERATOR_WORKSPACE_BYTES as ACCELERATOR_WORKSPACE_BYTES,
    FROZEN_KEPT_BYTES as FROZEN_KEPT_BYTES,
    KEPT_BYTES as KEPT_BYTES,
    WORKSPACE_BYTES as WORKSPACE_BYTES,
)
