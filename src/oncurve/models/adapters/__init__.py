"""Low-rank adapters (LoRA) in the live module, put there by PEFT: settings, layers, and their form on disk."""

from oncurve.models.adapters.inject import count_factors, put_adapter
from oncurve.models.adapters.settings import LoraSettings
