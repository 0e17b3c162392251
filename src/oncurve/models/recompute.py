"""Gradient checkpointing: decoder layers that keep their input alone, and are run again in the backward pass.

transformers has a switch of its own, which works only in training mode; here modules are in evaluation mode always,
because dropout would part sampler and learner. So its layers get a subclass of their own class, which runs them again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from oncurve.models.attention import switched

__all__ = ["recompute_layers"]


def recompute_layers(module: nn.Module) -> int:
    """Let every decoder layer below `module` forget what its backward needs, and make it again there; how many.

    Memory for activations is then one layer's, and the layers' inputs; a third more work. Values and gradients are the
    same bits. Without a gradient (sampling, scoring) nothing changes. 0: the module has no layers of transformers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for layer in layers:
        if not isinstance(layer, _Recomputed):
            layer.__class__ = _recomputed(type(layer))
    return len(layers)


class _Recomputed(nn.Module):
    """What `recompute_layers` puts before a layer's own class; a copy of such a layer is one, too."""

    def forward(self, *inputs: Any, **others: Any) -> Any:
        """As the layer's own."""
        run = super().forward
        if not torch.is_grad_enabled():
            return run(*inputs, **others)
        inputs = tuple(_no_cache(value) for value in inputs)
        others = {name: _no_cache(value) for name, value in others.items()}

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            """Of the first run and of the second, which comes when our attention is switched off again."""
            ours = others.get("oncurve_context") is not None
            return nullcontext(), switched(_config(self)) if ours else nullcontext()

        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **others)


def _no_cache(value: Any) -> Any:
    """The value, but no cache of keys and values: a layer that is run again would put its own in twice."""
    from transformers import Cache

    return None if isinstance(value, Cache) else value


def _config(layer: nn.Module) -> Any:
    """The configuration that the layer's attention goes by."""
    return next(part.config for part in layer.modules() if hasattr(part, "config"))


def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (_Recomputed, kind), {"__module__": kind.__module__})
