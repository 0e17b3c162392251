"""rlox 1.2's part for language models: `from oncurve.compat.rlox import *` takes the place of its import line.

Its algorithms for control tasks, and what else has no counterpart, are refused by name with an ImportError.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.compat.rlox.dialect import run_config as run_config
    from oncurve.compat.rlox.drop_in import GRPO as GRPO
    from oncurve.compat.rlox.functions import (
        compute_batch_group_advantages as compute_batch_group_advantages,
        compute_batch_token_kl as compute_batch_token_kl,
        compute_batch_token_kl_f32 as compute_batch_token_kl_f32,
        compute_batch_token_kl_schulman as compute_batch_token_kl_schulman,
        compute_batch_token_kl_schulman_f32 as compute_batch_token_kl_schulman_f32,
        compute_gae as compute_gae,
        compute_gae_batched as compute_gae_batched,
        compute_gae_batched_f32 as compute_gae_batched_f32,
        compute_group_advantages as compute_group_advantages,
        compute_token_kl as compute_token_kl,
        compute_token_kl_f32 as compute_token_kl_f32,
        compute_token_kl_schulman as compute_token_kl_schulman,
        compute_token_kl_schulman_f32 as compute_token_kl_schulman_f32,
    )
    from oncurve.compat.rlox.hooks import (
        Callback as Callback,
        CallbackList as CallbackList,
        ConsoleLogger as ConsoleLogger,
        EarlyStoppingCallback as EarlyStoppingCallback,
        LoggerCallback as LoggerCallback,
    )

_ROWS = tomllib.loads(Path(__file__).with_name("elsewhere.toml").read_text(encoding="utf-8"))["elsewhere"]
REASONS: dict[str, str] = {name: row["reason"] for row in _ROWS for name in row["names"].split()}
"""The names of rlox that oncurve does not have, with the reason and what to do."""

_attribute, __all__ = lazily(__name__)
__all__.remove("run_config")  # rlox has none: `import *` gives rlox's names


def __getattr__(name: str) -> Any:
    """Raise ImportError for a name of rlox that has no counterpart here, AttributeError for any other."""
    if name in REASONS:
        raise ImportError(
            f"rlox's {name} is not in oncurve, which trains language models by GRPO and its family: {REASONS[name]}"
        )
    return _attribute(name)
