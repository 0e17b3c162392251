"""Low-rank adapters (LoRA) in the live module, put there by PEFT: settings, layers, and their form on disk."""

from oncurve.models.adapters.adapter import Adapter as Adapter
from oncurve.models.adapters.files import (
    CONFIG as CONFIG,
    FILES as FILES,
    StoredAdapter as StoredAdapter,
    read_adapter as read_adapter,
)
from oncurve.models.adapters.inject import (
    count_factors as count_factors,
    import_peft as import_peft,
    put_adapter as put_adapter,
    refuse_adapter as refuse_adapter,
)
from oncurve.models.adapters.layer import (
    base_of as base_of,
    factors_in_use as factors_in_use,
    joined_factors as joined_factors,
    low_rank_of as low_rank_of,
    products as products,
)
from oncurve.models.adapters.settings import LoraSettings as LoraSettings
