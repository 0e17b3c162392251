"""Gradient checkpointing: decoder layers that keep only their input, and are run again in the backward pass.

transformers' own switch works only in training mode. Here modules are always in evaluation mode, because with dropout
sampler and learner would differ. So its layers get a subclass of their own class, which runs them again.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from oncurve.models.attention.hook import switched


def recompute_layers(module: nn.Module) -> int:
    """Checkpoint every decoder layer below `module`; returns their number.

    Activations then take the memory of one layer, and of the layers' inputs, for a third more work. Values and
    gradients are the same bits. Without a gradient (sampling, scoring) nothing changes. 0: the module has no
    transformers layers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for layer in layers:
        if not isinstance(layer, _Recomputed):
            kind = type(layer)
            layer.__class__ = type(kind.__name__, (_Recomputed, kind), {"__module__": kind.__module__})
    return len(layers)


class _Recomputed(nn.Module):
    """The class that `recompute_layers` puts before a layer's own class; copies of the layer keep it."""

    def forward(self, *inputs: Any, **others: Any) -> Any:
        """Return the layer's own forward, checkpointed where a gradient is wanted."""
        run = super().forward
        if not torch.is_grad_enabled():
            return run(*inputs, **others)
        inputs = tuple(_no_cache(value) for value in inputs)
        others = {name: _no_cache(value) for name, value in others.items()}

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            """Return contexts of the first run and of the second, at which our attention is switched off again."""
            if others.get("oncurve_context") is None:
                return nullcontext(), nullcontext()
            return nullcontext(), switched(next(part.config for part in self.modules() if hasattr(part, "config")))

        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **others)


def _no_cache(value: Any) -> Any:
    """Return the value; None for a KV cache, to which a layer that is run again would append twice."""
    from transformers import Cache

    return None if isinstance(value, Cache) else value
