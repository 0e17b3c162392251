"""The memory that a run needs and the time of a step: counted from shapes, rehearsed on this machine.

It is lazy: importing the package imports none of its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.forecast.command import check_memory, forecast_command, training_bytes
    from oncurve.forecast.shapes import MACHINES, MODELS, Machine, ModelShape
    from oncurve.forecast.unloaded import read_model_config, room_for_prompts, stored_tokenizer


__getattr__, __all__ = lazily(__name__)
