"""The memory that a run needs and the time of a step: counted from shapes, rehearsed on this machine.

It is lazy: importing the package imports none of its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.forecast.cluster import Layout as Layout, on_one_host as on_one_host, rank_memory as rank_memory
    from oncurve.forecast.cluster_plan import (
        ClusterPlan as ClusterPlan,
        parse_machines as parse_machines,
        plan_machines as plan_machines,
    )
    from oncurve.forecast.command import check_memory as check_memory, forecast_command as forecast_command
    from oncurve.forecast.counting import floors as floors
    from oncurve.forecast.machines import (
        MACHINES as MACHINES,
        AvailableMemory as AvailableMemory,
        Machine as Machine,
        machine as machine,
        memory_here as memory_here,
    )
    from oncurve.forecast.memory import (
        Activations as Activations,
        Footprint as Footprint,
        Memory as Memory,
        activations_of as activations_of,
        memory_of as memory_of,
    )
    from oncurve.forecast.meter import MemoryMeter as MemoryMeter, measure_machine as measure_machine, tidy as tidy
    from oncurve.forecast.outlook import (
        Forecast as Forecast,
        Suggestion as Suggestion,
        Variant as Variant,
        suggestions as suggestions,
    )
    from oncurve.forecast.rehearsal import Parts as Parts
    from oncurve.forecast.request import Sizes as Sizes
    from oncurve.forecast.scaling import rehearse_and_scale as rehearse_and_scale
    from oncurve.forecast.shapes import (
        MODELS as MODELS,
        ModelShape as ModelShape,
        Work as Work,
        named_shape as named_shape,
        parse_parameters as parse_parameters,
        shape_of as shape_of,
        shape_of_size as shape_of_size,
    )
    from oncurve.forecast.unloaded import read_model_config as read_model_config
    from oncurve.forecast.variants import count_parameters as count_parameters


__getattr__, __all__ = lazily(__name__)
