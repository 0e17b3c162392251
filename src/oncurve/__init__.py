"""oncurve: GRPO and its relatives for language models.

    oncurve.train(...)     a run in one call: model, data, reward; oncurve.resume(...) continues one
    oncurve.sft(...)       the same on demonstrations: supervised fine-tuning, a warm start
    oncurve.GRPO(...)      the smallest API: any module, token tensors
    oncurve.group_advantages, oncurve.kl_value, ...   the maths as pure functions of tensors

Names are imported on first use: `import oncurve` alone imports nothing heavy.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.advantages import group_advantages as group_advantages
    from oncurve.compat import (
        GRPO as GRPO,
        compute_batch_group_advantages as compute_batch_group_advantages,
        compute_group_advantages as compute_group_advantages,
    )
    from oncurve.evaluate import maj_at_k as maj_at_k, pass_at_k as pass_at_k
    from oncurve.kl import kl_value as kl_value
    from oncurve.losses import clipped_surrogate as clipped_surrogate
    from oncurve.ops import entropy as entropy, token_logprobs as token_logprobs
    from oncurve.run import TrainedRun as TrainedRun, resume as resume, sft as sft, train as train
    from oncurve.types import (
        Completion as Completion,
        Group as Group,
        Prompt as Prompt,
        Score as Score,
        TrainBatch as TrainBatch,
    )

__version__ = "0.1.0"

# By default MKL chooses kernels, and so roundings, by the memory addresses of its operands. Conditional numerical
# reproducibility prevents that, at no measurable cost. MKL reads the variable at the first product of the process.
os.environ.setdefault("MKL_CBWR", "AUTO")

# A GPU's memory in segments that grow. By default segments keep the size that they were made with, and micro-batches of
# many lengths leave holes in them. torch reads the variable, by either name, when it first allocates on a GPU.
if not os.environ.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

# In a notebook without ipywidgets tqdm, which transformers imports, advises to install it; oncurve shows no such bars.
warnings.filterwarnings("ignore", message="IProgress not found")

__getattr__, _names = lazily(__name__)
__all__ = [*_names, "__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)
