"""PEFT's `LoraConfig` as the settings of `[lora]`, and the adapter of a `PeftModel`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Dialect, Said, Values
from oncurve.compat.tables import keys_of

QUERY_AND_VALUE = ["q_proj", "v_proj"]
"""PEFT's choice of layers for Llama, Qwen, Mistral and Gemma."""


def targets(value: Any, values: Values) -> Any:
    """Return the layers that have an adapter. Raises ConfigError: a pattern, or what is no name."""
    if value is None:
        return QUERY_AND_VALUE
    if isinstance(value, str):
        if value != "all-linear":
            raise ConfigError(f"a pattern is not available, name the layers in a list; got {shown(value)}")
        return value
    if not all(isinstance(each, str) for each in value):
        raise ConfigError(f"expected names of layers, got {shown(list(value))}")
    return sorted(value)


LORA = Dialect("PEFT", "0.21", keys_of(Path(__file__).with_name("lora.toml"), {"targets": targets}))


def lora_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `[lora]` for fields of a `LoraConfig`, with PEFT's defaults.

    Raises ConfigError: a field, or a value of it, that is not available.
    """
    translation = LORA.translate({name: Said(value, "LoraConfig") for name, value in given.items()})
    return {name: value for line in translation.lines for name, value in line.settings.items()}


def given_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a `LoraConfig` that differ from PEFT's defaults. Raises ConfigError: another method's."""
    if type(config).__name__ != "LoraConfig":
        raise ConfigError(f"peft_config: expected a LoraConfig, got a {type(config).__name__}")
    given = vars(config)
    return {
        name: given[name] for name, usual in vars(type(config)()).items() if given[name] not in (usual, None, [], {})
    }


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
