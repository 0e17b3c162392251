"""TRL's interface: `from oncurve.compat.trl import GRPOConfig, GRPOTrainer` in place of `from trl import ...`.

Names, defaults and normalisers are those of TRL 1.16. `DIALECT` is its table of settings. Importing this package
imports neither TRL nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.compat.trl.config import GRPOConfig as GRPOConfig
    from oncurve.compat.trl.dialect import ABOUT as ABOUT, DIALECT as DIALECT
    from oncurve.compat.trl.grpo_trainer import GRPOTrainer as GRPOTrainer
    from oncurve.compat.trl.parsing import (
        DatasetMixtureConfig as DatasetMixtureConfig,
        ModelConfig as ModelConfig,
        ScriptArguments as ScriptArguments,
        TrlParser as TrlParser,
        get_dataset as get_dataset,
        get_kbit_device_map as get_kbit_device_map,
        get_peft_config as get_peft_config,
        get_quantization_config as get_quantization_config,
    )
    from oncurve.compat.trl.rewards import (
        accuracy_reward as accuracy_reward,
        get_cosine_scaled_reward as get_cosine_scaled_reward,
        get_repetition_penalty_reward as get_repetition_penalty_reward,
        get_soft_overlong_punishment as get_soft_overlong_punishment,
        reasoning_accuracy_reward as reasoning_accuracy_reward,
        think_format_reward as think_format_reward,
    )
    from oncurve.compat.trl.sft import SFTConfig as SFTConfig, SFTTrainer as SFTTrainer

__getattr__, __all__ = lazily(__name__)
