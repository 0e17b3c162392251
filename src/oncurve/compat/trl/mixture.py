"""TRL's mixture of data sets, as its GRPO script reads it from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest


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
