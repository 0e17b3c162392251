"""The settings and interfaces of other tools, on top of the same rooms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.compat.dialect import Dialect, Key, Translation
    from oncurve.compat.openrlhf import from_openrlhf
    from oncurve.compat.recipe import config_of, recipe_of
    from oncurve.compat.rlox import compute_batch_group_advantages, compute_group_advantages
    from oncurve.compat.token_grpo import GRPO


__getattr__, __all__ = lazily(__name__)

DIALECTS = {
    "verl": "oncurve.compat.verl",
    "TRL": "oncurve.compat.trl",
    "rlox": "oncurve.compat.rlox.dialect",
    "OpenRLHF": "oncurve.compat.openrlhf",
}
"""By the tool's name, the module with its `DIALECT`, a `Dialect`, and `ABOUT`, the page's text in Markdown."""
