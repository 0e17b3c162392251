"""oncurve: GRPO and its relatives for language models.

    oncurve.train(...)     a run: model, data, reward, in one call; oncurve.resume(...) goes on with one
    oncurve.GRPO(...)      the smallest API: any module, token tensors
    oncurve.group_advantages, oncurve.kl_value, ...   the maths as pure functions of tensors

Names are imported when they are first asked for: `import oncurve` alone brings in nothing heavy.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncurve.advantages import group_advantages
    from oncurve.compat.rlox import GRPO, compute_batch_group_advantages, compute_group_advantages
    from oncurve.evaluate import maj_at_k, pass_at_k
    from oncurve.kl import kl_value
    from oncurve.losses.objectives import clipped_surrogate
    from oncurve.ops import entropy, token_logprobs
    from oncurve.run.api import TrainedRun, resume, train
    from oncurve.types import Completion, Group, Prompt, Score, TrainBatch

__version__ = "0.1.0"

# MKL by itself chooses kernels, and so roundings, by how its operands lie in memory. Its conditional numerical
# reproducibility ends that, at no measurable cost. MKL reads this once, at the first product of the process.
os.environ.setdefault("MKL_CBWR", "AUTO")

_HOMES = {
    "GRPO": "compat.rlox",
    "Completion": "types",
    "Group": "types",
    "Prompt": "types",
    "Score": "types",
    "TrainBatch": "types",
    "TrainedRun": "run.api",
    "clipped_surrogate": "losses.objectives",
    "compute_batch_group_advantages": "compat.rlox",
    "compute_group_advantages": "compat.rlox",
    "entropy": "ops",
    "group_advantages": "advantages",
    "kl_value": "kl",
    "maj_at_k": "evaluate",
    "pass_at_k": "evaluate",
    "resume": "run.api",
    "token_logprobs": "ops",
    "train": "run.api",
}

__all__ = [
    "GRPO",
    "Completion",
    "Group",
    "Prompt",
    "Score",
    "TrainBatch",
    "TrainedRun",
    "__version__",
    "clipped_surrogate",
    "compute_batch_group_advantages",
    "compute_group_advantages",
    "entropy",
    "group_advantages",
    "kl_value",
    "maj_at_k",
    "pass_at_k",
    "resume",
    "token_logprobs",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
