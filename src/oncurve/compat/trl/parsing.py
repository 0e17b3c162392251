"""`TrlParser` and the argument classes that TRL's scripts parse next to `GRPOConfig`.

Covered: command-line words, a YAML file by `--config` with `env`, words over the file. Not covered: subcommands.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.config import read_yaml


class TrlParser(HfArgumentParser):  # type: ignore[misc]
    """Words and a YAML file as dataclasses: `TrlParser((ScriptArguments, GRPOConfig)).parse_args_and_config()`."""

    def __init__(self, dataclass_types: Any = None, **keywords: Any) -> None:
        types: list[Any] = [dataclass_types] if isinstance(dataclass_types, type) else list(dataclass_types or ())
        for each in types:
            if "config" in each.__dataclass_fields__:
                raise ConfigError(f"{each.__name__} has a field 'config', which is the name of the YAML file's word")
        super().__init__(types, **keywords)

    def parse_args_and_config(
        self,
        args: Iterable[str] | None = None,
        return_remaining_strings: bool = False,
        fail_with_unknown_args: bool = True,
        separate_remaining_strings: bool = False,
    ) -> tuple[Any, ...]:
        """The dataclasses, in their order; words win over the file of `--config`, and its `env` is set.

        `return_remaining_strings`: the words that no class has come last, or with `separate_remaining_strings` those
        of the file and those of the command line. Else such a word ends the program with exit code 2, one of the file
        only with `fail_with_unknown_args`. Raises ConfigError: a file that cannot be, a setting that cannot be.
        """
        words, of_file = list(sys.argv[1:] if args is None else args), list[str]()
        path, words = _without_config(words)
        if path is not None:
            of_file = self.set_defaults_with_config(**_settings_of(path))
        *found, rest = self.parse_args_into_dataclasses(words, return_remaining_strings=True)
        if return_remaining_strings:
            return (*found, of_file, rest) if separate_remaining_strings else (*found, of_file + rest)
        unknown = [word for word in [*(of_file if fail_with_unknown_args else ()), *rest] if word.startswith("--")]
        if unknown or rest:
            known = [action.dest for action in self._actions]
            names = [word.removeprefix("--").partition("=")[0].replace("-", "_") for word in unknown]
            said = [f"no argument {word}{suggest(name, known)}" for word, name in zip(unknown, names, strict=True)]
            self.error("; ".join(said) or f"words without an argument: {' '.join(rest)}")
        return tuple(found)

    def set_defaults_with_config(self, **settings: Any) -> list[str]:
        """Make settings the defaults; those that no argument has come back as words."""
        used = _set_defaults(self, settings)
        return [word for name, value in settings.items() if name not in used for word in (f"--{name}", str(value))]


def _without_config(words: list[str]) -> tuple[str | None, list[str]]:
    """The file that `--config` names, and the words without it. Raises ConfigError: it names none."""
    for at, word in enumerate(words):
        if word.startswith("--config="):
            return word.removeprefix("--config="), words[:at] + words[at + 1 :]
        if word == "--config":
            if at + 1 == len(words):
                raise ConfigError("--config: expected a YAML file after it")
            return words[at + 1], words[:at] + words[at + 2 :]
    return None, words


def _settings_of(path: str) -> dict[str, Any]:
    """The settings in a YAML file; its `env` is set. Raises ConfigError: no file, no YAML, no table."""
    try:
        found = read_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: cannot be read as YAML: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"--config {path}: expected a table of settings, got {shown(found)}")
    env = found.pop("env", {})
    if not isinstance(env, dict):
        raise ConfigError(f"--config {path}: env: expected a table, got {shown(env)}")
    os.environ.update({str(name): str(value) for name, value in env.items()})
    return found


def _set_defaults(parser: argparse.ArgumentParser, settings: Mapping[str, Any]) -> set[str]:
    used = set[str]()
    for action in parser._actions:
        if action.dest in settings:
            action.default, action.required = settings[action.dest], False
            used.add(action.dest)
    return used


@dataclass
class ScriptArguments:
    """The data set of a script, by TRL's names."""

    dataset_name: str | None = field(default=None, metadata={"help": "a folder, a file or a hub id"})
    dataset_config: str | None = field(default=None, metadata={"help": "its configuration"})
    dataset_train_split: str = field(default="train", metadata={"help": "the split to train on"})
    dataset_test_split: str = field(default="test", metadata={"help": "the split to evaluate on"})
    dataset_streaming: bool = field(default=False, metadata={"help": "read the rows as they are needed"})
    ignore_bias_buffers: bool = field(default=False, metadata={"help": "without meaning: there is one process"})


QUANTIZED = (
    'not available under this name; over an adapter the weights are stored with 4 bits by model.quantization = "nf4"'
    " in a recipe"
)


@dataclass
class ModelConfig:
    """The model of a script and its adapter, by TRL's names and with its defaults, but without dropout.

    With TRL's dropout of 0.05 the learner's log-probs differ from the sampler's. Raises ConfigError: weights in 8 or 4
    bits.
    """

    model_name_or_path: str | None = field(default=None, metadata={"help": "a folder or a hub id"})
    model_revision: str = field(default="main", metadata={"help": "its branch, tag or commit"})
    dtype: str | None = field(
        default="float32",
        metadata={"help": "the weights' type", "choices": ["auto", "bfloat16", "float16", "float32"]},
    )
    attn_implementation: str | None = field(default=None, metadata={"help": "without meaning"})
    use_peft: bool = field(default=False, metadata={"help": "train an adapter"})
    lora_r: int = field(default=16, metadata={"help": "its rank"})
    lora_alpha: int = field(default=32, metadata={"help": "its scale times its rank"})
    lora_dropout: float = field(default=0.0, metadata={"help": "none is available; TRL's default is 0.05"})
    lora_target_modules: list[str] | None = field(default=None, metadata={"help": "the layers that have one"})
    lora_target_parameters: list[str] | None = field(default=None, metadata={"help": "not available"})
    lora_modules_to_save: list[str] | None = field(default=None, metadata={"help": "not available"})
    lora_task_type: str = field(default="CAUSAL_LM", metadata={"help": "without meaning"})
    use_rslora: bool = field(default=False, metadata={"help": "not available"})
    use_dora: bool = field(default=False, metadata={"help": "not available"})
    load_in_8bit: bool = field(default=False, metadata={"help": "not available"})
    load_in_4bit: bool = field(default=False, metadata={"help": QUANTIZED})
    bnb_4bit_quant_type: str = field(default="nf4", metadata={"help": "without meaning", "choices": ["fp4", "nf4"]})
    use_bnb_nested_quant: bool = field(default=False, metadata={"help": "without meaning"})
    bnb_4bit_quant_storage: str | None = field(default=None, metadata={"help": "without meaning"})

    def __post_init__(self) -> None:
        for name in ("load_in_8bit", "load_in_4bit"):
            if getattr(self, name):
                raise ConfigError(f"ModelConfig: {name}: {QUANTIZED}")


def get_peft_config(model_args: ModelConfig) -> Any:
    """PEFT's `LoraConfig` of a model's arguments; None without `use_peft`. Raises ConfigError: PEFT is missing."""
    if not model_args.use_peft:
        return None
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ConfigError("use_peft: a LoraConfig is of peft, which is missing: pip install peft") from error
    targets = model_args.lora_target_modules
    more: dict[str, Any] = (
        {"target_parameters": model_args.lora_target_parameters} if model_args.lora_target_parameters else {}
    )
    return LoraConfig(
        task_type=model_args.lora_task_type,
        r=model_args.lora_r,
        lora_alpha=model_args.lora_alpha,
        lora_dropout=model_args.lora_dropout,
        target_modules=targets[0] if targets is not None and len(targets) == 1 else targets,
        modules_to_save=model_args.lora_modules_to_save,
        use_rslora=model_args.use_rslora,
        use_dora=model_args.use_dora,
        **more,
    )


def get_quantization_config(model_args: ModelConfig) -> None:
    """None: `ModelConfig` refuses weights in 8 or 4 bits."""


def get_kbit_device_map() -> None:
    """None: there are no weights in 8 or 4 bits to place."""
