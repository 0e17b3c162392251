"""The fields of PEFT's `LoraConfig` as the settings of `[lora]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest

IDLE = (
    "task_type",
    "inference_mode",
    "base_model_name_or_path",
    "revision",
    "peft_type",
    "auto_mapping",
    "peft_version",
)
HARMLESS: Mapping[str, Any] = {
    "bias": "none",
    "init_lora_weights": True,
    "use_rslora": False,
    "use_dora": False,
    "lora_bias": False,
    "fan_in_fan_out": False,
    "layer_replication": None,
    "exclude_modules": None,
}
"""Fields that may have this value, which changes nothing; empty ones may be there in any case."""


def lora_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `[lora]` for fields of a `LoraConfig`, with PEFT's defaults: rank 8, alpha 8.

    Raises ConfigError: a field, or a value of it, that is not available.
    """
    targets = given.get("target_modules")
    made: dict[str, Any] = {"lora.rank": given.get("r", 8), "lora.alpha": given.get("lora_alpha", 8)}
    if isinstance(targets, str) and targets != "all-linear":
        raise ConfigError(
            f"target_modules: a pattern is not available, name the layers in a list; got {shown(targets)}"
        )
    if targets is not None:
        made["lora.targets"] = targets if isinstance(targets, str) else sorted(_texts(targets))
    else:
        made["lora.targets"] = ["q_proj", "v_proj"]  # PEFT's choice for Llama, Qwen, Mistral and Gemma
    if given.get("lora_dropout"):
        made["lora.dropout"] = given["lora_dropout"]
    known = ("r", "lora_alpha", "target_modules", "lora_dropout", *IDLE, *HARMLESS)
    for name, value in given.items():
        if name in ("r", "lora_alpha", "target_modules", "lora_dropout", *IDLE) or not value:
            continue
        if name not in HARMLESS or value != HARMLESS[name]:
            raise ConfigError(f"LoraConfig.{name}={shown(value)}: not available here{suggest(name, known)}")
    return made


def without_adapter(model: Any, peft_config: Any) -> tuple[Any, Any]:
    """Return the base of a `PeftModel` with its LoraConfig, and another model with `peft_config`.

    Raises ConfigError: an adapter that is not new, and would begin again.
    """
    layered = hasattr(model, "modules") and any(hasattr(part, "base_layer") for part in model.modules())
    if not layered and not hasattr(model, "get_base_model"):
        return model, peft_config
    trained = any(bool(value.any()) for name, value in model.named_parameters() if ".lora_B." in name)
    if peft_config is not None or trained or list(model.peft_config) != ["default"] or not hasattr(model, "unload"):
        raise ConfigError(
            "model: of a PeftModel one new adapter is trained; merge what it has learnt, model.merge_and_unload(), and "
            "give peft_config=LoraConfig(...), or go on with a saved adapter by lora.path in a recipe"
        )
    return model.unload(), model.peft_config["default"]


def _texts(targets: Iterable[Any]) -> list[str]:
    found = list(targets)
    if not all(isinstance(each, str) for each in found):
        raise ConfigError(f"target_modules: expected names of layers, got {shown(found)}")
    return found


def given_fields(config: Any) -> dict[str, Any]:
    """The fields of a `LoraConfig` that differ from PEFT's defaults. Raises ConfigError: it is another method's."""
    if type(config).__name__ != "LoraConfig":
        raise ConfigError(f"peft_config: expected a LoraConfig, got a {type(config).__name__}")
    usual = vars(type(config)())
    return {
        name: value
        for name, value in vars(config).items()
        if name in usual and value != usual[name] and name not in ("peft_type", "runtime_config")
    }
