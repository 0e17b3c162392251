"""OpenRLHF's `train_ppo_ray` flags in oncurve's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.compat.openrlhf.functions import ABOUT, DIALECT, from_openrlhf

__getattr__, __all__ = lazily(__name__)
