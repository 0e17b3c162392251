"""`TrlParser` and the argument classes that TRL's scripts parse next to `GRPOConfig`.

Covered: command-line words, a YAML file by `--config` with `env`, words over the file. Not covered: subcommands.

Next to them are TRL's mixture of data sets, as its GRPO script reads it from a YAML file, and PEFT's `LoraConfig` as
the settings of `[lora]`.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from transformers import HfArgumentParser

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Dialect, Said, Values, keys_of
from oncurve.compat.trl.run_keys import WORDS
from oncurve.config import read_table

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
    return {name: given[name] for name, base in vars(type(config)()).items() if given[name] not in (base, None, [], {})}


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


@dataclass
class DatasetConfig:
    """One data set of a mixture: arguments of `datasets.load_dataset`, the columns to keep, and its share.

    `fraction`: of the mixture, relative to those of the other data sets; all have one, or none.
    """

    path: str
    name: str | None = None
    data_dir: str | None = None
    data_files: Any = None
    split: str = "train"
    columns: list[str] | None = None
    fraction: float | None = None


@dataclass
class DatasetMixtureConfig:
    """The data sets of a script, by TRL's names. Raises ConfigError: a data set that is no table of known names."""

    datasets: list[DatasetConfig] = field(default_factory=list, metadata={"help": "data sets, in a YAML file"})
    streaming: bool = field(default=False, metadata={"help": "read the rows as they are needed"})
    test_split_size: float | None = field(default=None, metadata={"help": "the share, or number, of held-out rows"})

    def __post_init__(self) -> None:
        self.datasets = [_config_of(each, number) for number, each in enumerate(self.datasets)]


def _config_of(given: Any, number: int) -> DatasetConfig:
    if isinstance(given, DatasetConfig):
        return given
    if not isinstance(given, dict):
        raise ConfigError(f"datasets.{number}: expected a table with path, got {shown(given)}")
    known = [each.name for each in fields(DatasetConfig)]
    for name in given:
        if name not in known:
            raise ConfigError(f"datasets.{number}: no setting {shown(name)}{suggest(str(name), known)}")
    if not isinstance(given.get("path"), str):
        raise ConfigError(f"datasets.{number}.path: expected a folder or hub id, got {shown(given.get('path'))}")
    return DatasetConfig(**given)


def get_dataset(mixture_config: DatasetMixtureConfig) -> Any:
    """Return the data sets one after the other, as splits "train" and, with `test_split_size`, "test".

    With fractions f_i the mixture has N = min(len_i / w_i) rows, w_i = f_i / Σ f, and the first round(w_i N) rows of
    each data set, so that no row is there twice.

    Raises ConfigError: there is no data set, or fractions that cannot be.
    """
    import datasets

    if not mixture_config.datasets:
        raise ConfigError("datasets: there is none; write a list of tables with path in the YAML file")
    loaded = [_loaded(each, mixture_config.streaming) for each in mixture_config.datasets]
    fractions = [each.fraction for each in mixture_config.datasets if each.fraction is not None]
    if fractions:
        if len(fractions) != len(loaded) or mixture_config.streaming or min(fractions) <= 0:
            raise ConfigError("datasets: fraction is above 0 and of all data sets, and not with streaming")
        weights = [each / sum(fractions) for each in fractions]
        total = min(len(rows) / weight for rows, weight in zip(loaded, weights, strict=True))
        loaded = [rows.select(range(round(weight * total))) for rows, weight in zip(loaded, weights, strict=True)]
    together = datasets.concatenate_datasets(loaded)
    if mixture_config.test_split_size is None:
        return datasets.DatasetDict({"train": together})
    if mixture_config.streaming:
        raise ConfigError("test_split_size: not with streaming")
    return together.train_test_split(test_size=mixture_config.test_split_size)


def _loaded(config: DatasetConfig, streaming: bool) -> Any:
    import datasets

    named = {name: getattr(config, name) for name in ("path", "name", "data_dir", "data_files", "split")}
    rows = datasets.load_dataset(**named, streaming=streaming)
    return rows if config.columns is None else rows.select_columns(config.columns)


class TrlParser(HfArgumentParser):  # type: ignore[misc]
    """Words and a YAML file as dataclasses: `TrlParser((ScriptArguments, GRPOConfig)).parse_args_and_config()`."""

    def parse_args_and_config(
        self,
        args: Iterable[str] | None = None,
        return_remaining_strings: bool = False,
        fail_with_unknown_args: bool = True,
    ) -> tuple[Any, ...]:
        """Return the dataclasses, in their order; words win over the file of `--config`, and its `env` is set.

        A word without a field ends the program with exit code 2, one of the file only with `fail_with_unknown_args`;
        `return_remaining_strings` returns them last. Raises ConfigError: a file, or a setting, that cannot be.
        """
        reader = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        reader.add_argument("--config")
        given, words = reader.parse_known_args(list(sys.argv[1:] if args is None else args))
        of_file = self.set_defaults_with_config(**_settings_of(given.config)) if given.config is not None else []
        *found, rest = self.parse_args_into_dataclasses(words, return_remaining_strings=True)
        if return_remaining_strings:
            return (*found, of_file + rest)
        known = [action.dest for action in self._actions]
        for word in [*(of_file if fail_with_unknown_args else ()), *rest]:
            name = word.removeprefix("--").partition("=")[0].replace("-", "_")
            self.error(f"no argument {word}{suggest(name, known)}")
        return tuple(found)

    def set_defaults_with_config(self, **settings: Any) -> list[str]:
        """Make settings the defaults, and return those that no argument has as words."""
        for action in self._actions:
            if action.dest in settings:
                action.default, action.required = settings.pop(action.dest), False
        return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def _settings_of(path: str) -> dict[str, Any]:
    """Return the settings in a YAML file, and set its `env`. Raises ConfigError: no file, no YAML, no table."""
    found = read_table(Path(path), toml=False)
    env = found.pop("env", {})
    if not isinstance(env, dict):
        raise ConfigError(f"--config {path}: env: expected a table, got {shown(env)}")
    os.environ.update({str(name): str(value) for name, value in env.items()})
    return found


@dataclass
class ScriptArguments:
    """The data set of a script, by TRL's names."""

    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    dataset_test_split: str = "test"
    dataset_streaming: bool = False
    ignore_bias_buffers: bool = False
    """Without meaning: there is one process."""


@dataclass
class ModelConfig:
    """The model of a script and its adapter, by TRL's names and with its defaults, but without dropout.

    With TRL's dropout of 0.05 the learner's log-probs differ from the sampler's. Raises ConfigError: weights in 8 or 4
    bits.
    """

    model_name_or_path: str | None = None
    model_revision: str = "main"
    dtype: str | None = "float32"
    attn_implementation: str | None = None
    use_peft: bool = False
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    lora_target_modules: list[str] | None = None
    lora_target_parameters: list[str] | None = None
    lora_modules_to_save: list[str] | None = None
    lora_task_type: str = "CAUSAL_LM"
    use_rslora: bool = False
    use_dora: bool = False
    load_in_8bit: bool = False
    load_in_4bit: bool = False
    bnb_4bit_quant_type: str = "nf4"
    use_bnb_nested_quant: bool = False
    bnb_4bit_quant_storage: str | None = None

    def __post_init__(self) -> None:
        for name in ("load_in_8bit", "load_in_4bit"):
            if getattr(self, name):
                raise ConfigError(
                    f"ModelConfig: {name}: not available under this name; over an adapter the weights are stored with "
                    '4 bits by model.quantization = "nf4" in a recipe'
                )


def get_peft_config(model_args: ModelConfig) -> Any:
    """Return PEFT's `LoraConfig`, or None without `use_peft`. Raises ConfigError: PEFT is missing."""
    if not model_args.use_peft:
        return None
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ConfigError("use_peft: a LoraConfig is of peft, which is missing: pip install peft") from error
    targets = model_args.lora_target_modules
    same = {peft_name: getattr(model_args, name) for name, peft_name in WORDS["lora_fields"].items()}
    return LoraConfig(target_modules=targets[0] if targets is not None and len(targets) == 1 else targets, **same)


def get_quantization_config(model_args: ModelConfig) -> None:
    """Return None: `ModelConfig` refuses weights in 8 or 4 bits."""


def get_kbit_device_map() -> None:
    """Return None: there are no weights in 8 or 4 bits to place."""
