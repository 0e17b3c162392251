"""What a run will hold and how long a step will take: counted from shapes, rehearsed on this machine."""

from oncurve.forecast.counting import floors
from oncurve.forecast.machines import MACHINES, Machine, Room, machine, memory_here
from oncurve.forecast.memory import Activations, Footprint, Memory, activations_of, memory_of
from oncurve.forecast.meter import MemoryMeter, measure_machine, tidy
from oncurve.forecast.outlook import Forecast, Mend, Variant, mends
from oncurve.forecast.rehearsal import Parts
from oncurve.forecast.scaling import rehearse_and_scale
from oncurve.forecast.shapes import MODELS, ModelShape, Work, named_shape, parse_parameters, shape_of, shape_of_size
from oncurve.forecast.variants import count_parameters

__all__ = [
    "MACHINES",
    "MODELS",
    "Activations",
    "Footprint",
    "Forecast",
    "Machine",
    "Memory",
    "MemoryMeter",
    "Mend",
    "ModelShape",
    "Parts",
    "Room",
    "Variant",
    "Work",
    "activations_of",
    "count_parameters",
    "floors",
    "machine",
    "measure_machine",
    "memory_here",
    "memory_of",
    "mends",
    "named_shape",
    "parse_parameters",
    "rehearse_and_scale",
    "shape_of",
    "shape_of_size",
    "tidy",
]
