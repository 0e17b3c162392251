"""`GRPOConfig`: TRL's names and defaults, checked when it is made; the trainer translates it.

The table of its fields is here, and the functions that rows of `config.toml` name for the loss: `(value, values)` to
settings, to the value of one, or to None. They make objective, advantages, KL term, entropy, and what is masked.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Dialect, Key, Said, Translation, Values, keys_of
from oncurve.compat.recipe import recipe_of
from oncurve.compat.trl import run_keys
from oncurve.compat.trl.run_keys import WORDS, Made, in_steps, sizes, updates_per_step

MEAN = "token-mean"
AGGREGATIONS, MISSING = WORDS["aggregations"], WORDS["missing"]
"""The aggregation of each `loss_type`, and why others are not here."""

EPS = 1e-4
"""What TRL adds to a standard deviation of rewards."""


def objective(value: Any, values: Values) -> str:
    """Return the kind of `[objective]`. Raises ConfigError: TRL has no such loss, or it is not available."""
    name, level = values["loss_type"], values["importance_sampling_level"]
    if name in MISSING:
        raise ConfigError(f"loss_type={name!r}: {MISSING[name]}; docs/extending.md shows how an objective is added")
    if name not in AGGREGATIONS:
        raise ConfigError(f"TRL has no loss_type {shown(name)}{suggest(str(name), (*AGGREGATIONS, *MISSING))}")
    if level not in ("token", "sequence"):
        raise ConfigError(f"importance_sampling_level is 'token' or 'sequence', got {shown(level)}")
    if name in ("cispo", "sapo"):
        if level == "sequence":
            raise ConfigError(f"loss_type={name!r} is defined by the ratio of each token; leave 'sequence' out")
        return str(name)
    if name == "luspo" and level == "token":
        raise ConfigError("loss_type='luspo' with the ratio of each token is not available; set 'sequence'")
    return "gspo" if level == "sequence" else "clipped"


def loss(value: Any, values: Values) -> Made:
    """Return objective and aggregation."""
    return {"objective.kind": objective(value, values), "aggregation.kind": AGGREGATIONS[value]}


def epsilon(value: Any, values: Values) -> Made:
    """Return the lower bound, and without `epsilon_high` the upper one, too."""
    kind = objective(value, values)
    if kind in ("cispo", "sapo") or (kind == "clipped" and not values.given("epsilon")):
        return {}
    high = {} if values["epsilon_high"] is not None else {"objective.clip_high": value}
    return {"objective.clip_low": value, **high}


def epsilon_high(value: Any, values: Values) -> Made:
    """Return the upper bound, which is the largest weight itself in CISPO."""
    kind = objective(value, values)
    if kind == "cispo":
        bound = values["epsilon"] if value is None else value
        return {"objective.clip_low": 1.0, "objective.clip_high": bound - 1.0}
    return {} if value is None or kind == "sapo" else {"objective.clip_high": value}


def delta(value: Any, values: Values) -> Any:
    """Return the bound of the ratio, where the objective has one."""
    return None if objective(value, values) in ("cispo", "sapo") else value


def sapo_temperature(value: Any, values: Values) -> Any:
    """Return a temperature of SAPO."""
    return value if objective(value, values) == "sapo" else None


def scale(value: Any, values: Values) -> Made:
    """Return how advantages are scaled."""
    word = {True: "group", False: "none"}.get(value, value)
    if word not in ("group", "batch", "none"):
        raise ConfigError(f"expected 'group', 'batch' or 'none', got {shown(value)}")
    if values["multi_objective_aggregation"] == "normalize_then_sum":
        return {}
    return {"advantage.scale": word, **({} if word == "none" else {"advantage.eps": EPS})}


def several_rewards(value: Any, values: Values) -> Made:
    """Return the advantage: of the sum of the rewards, or the sum of one per reward (GDPO)."""
    if value not in ("sum_then_normalize", "normalize_then_sum"):
        raise ConfigError(f"expected 'sum_then_normalize' or 'normalize_then_sum', got {shown(value)}")
    if value == "sum_then_normalize":
        return {"advantage.kind": "grpo"} if values.given("multi_objective_aggregation") else {}
    return {"advantage.kind": "gdpo", "advantage.eps": EPS}


def estimator(value: Any, values: Values) -> str | None:
    """Return the estimator of the KL term, where there is one."""
    return ("ratio_k3" if value else "k3") if values["beta"] else None


def reference(value: Any, values: Values) -> Made:
    """Return how the reference follows the policy. Raises ConfigError: there is none."""
    if not value:
        return {}
    if not values["beta"]:
        raise ConfigError("with beta=0.0 there is no reference that could follow; give beta, or leave it out")
    return {
        "reference.every": in_steps(values["ref_model_sync_steps"], values),
        "reference.mixup_alpha": values["ref_model_mixup_alpha"],
    }


def _check_bonus(values: Values) -> None:
    """Raise ConfigError: TRL's bonus would leave tokens out."""
    if values["top_entropy_quantile"] < 1:
        raise ConfigError("with top_entropy_quantile below 1 TRL's bonus leaves tokens out, and the one here does not")


def _mean(values: Values) -> Made:
    """Return the aggregation of the bonus, which is a mean over tokens with every loss."""
    return {} if AGGREGATIONS.get(values["loss_type"], MEAN) == MEAN else {"entropy.aggregation": MEAN}


def bonus(value: Any, values: Values) -> Made:
    """Return the coefficient of the entropy bonus."""
    if value:
        _check_bonus(values)
    return {"entropy.coef": value, **(_mean(values) if value else {})}


def adaptive_bonus(value: Any, values: Values) -> Made:
    """Return how the coefficient follows a target."""
    if not value:
        return {}
    _check_bonus(values)
    return {"entropy.target": values["entropy_target"], "entropy.step": values["entropy_coef_delta"], **_mean(values)}


def off_policy(value: Any, values: Values) -> Any:
    """Return the threshold, where a step has several updates."""
    return None if updates_per_step(values) == 1 else value


class Told(str):
    """An argument of the trainer as comments show it, with the settings that it is."""

    settings: dict[str, Any]

    def __new__(cls, text: str, settings: dict[str, Any]) -> Told:
        """Return the text with its settings."""
        told = super().__new__(cls, text)
        told.settings = settings
        return told


def as_given(value: Told, values: Values) -> dict[str, Any]:
    """Return the settings that the trainer has found in an argument."""
    return value.settings


HERE = Path(__file__).parent
FUNCTIONS = vars(run_keys) | globals()

CONFIG_KEYS = keys_of(HERE / "config.toml", FUNCTIONS)
"""The fields of `GRPOConfig`."""

OLDER_KEYS = keys_of(HERE / "older.toml", FUNCTIONS)
"""Fields that older versions had."""

TRAINER_KEYS = keys_of(HERE / "trainer.toml", FUNCTIONS)
"""The arguments of `GRPOTrainer`."""

DIALECT = Dialect("TRL", "1.16", (*CONFIG_KEYS, *OLDER_KEYS, *TRAINER_KEYS))

ABOUT = (HERE / "about.md").read_text(encoding="utf-8")
"""The text of the page for users of TRL."""


KEYS = {key.theirs: key for key in (*CONFIG_KEYS, *OLDER_KEYS)}

PROCESS = {"world_size": 1, "process_index": 0, "local_process_index": 0, "n_gpu": 1, "should_save": True}
"""What callbacks read of TRL's arguments that is no field: there is one process."""

UNSAID = {"bf16": True, "output_dir": "trainer_output"}
"""The values of fields that were not given and have no default."""

TYPES: Mapping[str, Any] = {
    "reward_weights": list[float] | None,
    "label_names": list[str] | None,
    "include_for_metrics": list[str],
    "logging_steps": float,
}
"""The types of fields for parsers, where neither the table's types nor the default tell them."""


class Computed(int):
    """A number that follows from other fields: given to a constructor, it is as if it was left out."""


def type_of(key: Key) -> Any:
    """Return the type of a field for parsers: text where a word may be text, and for tables, which are JSON."""
    if key.theirs in TYPES:
        return TYPES[key.theirs]
    kinds = [each for each in key.types if each is not type(None)]
    kinds = kinds or [str if key.default is None else type(key.default)]
    if dict in kinds:
        return dict | str | None
    found: Any = str if str in kinds else kinds[0]
    return found | None if type(None) in key.types or key.default is None else found


def _field(key: Key) -> Any:
    help_of = {"help": (key.note or ", ".join(key.ours)).replace("%", "%%")}
    if isinstance(key.default, list):
        return dataclasses.field(default_factory=list, metadata=help_of)
    return dataclasses.field(default=key.default, metadata=help_of)


Fields: Any = dataclasses.make_dataclass(
    "Fields", [(key.theirs, type_of(key), _field(key)) for key in CONFIG_KEYS], init=False, repr=False
)
"""A dataclass of TRL's fields, for `dataclasses.replace`, `dataclasses.asdict` and `HfArgumentParser`."""


class GRPOConfig(Fields):  # type: ignore[misc]  # of a table
    """The settings of `GRPOTrainer`, by TRL's names and with its defaults: `GRPOConfig("out", learning_rate=2e-6)`.

    A field that was not given has TRL's default; `steps_per_generation` and `generation_batch_size` have the values
    that TRL computes. A subclass that is a dataclass may add fields, change defaults and have a `__post_init__`.

    Raises ConfigError, with a line for each: a name that TRL does not have, a value of a wrong type, one that is
    refused, or that contradicts another.
    """

    said: dict[str, Any]

    def __init_subclass__(cls) -> None:
        """Keep the constructor and the text of a subclass that is a dataclass."""
        for name in ("__init__", "__repr__"):
            setattr(cls, name, getattr(cls, name))

    def __init__(self, output_dir: Any = None, **given: Any) -> None:
        object.__setattr__(self, "said", {})
        named = given if output_dir is None else {"output_dir": output_dir, **given}
        table = Fields.__dataclass_fields__
        for each in dataclasses.fields(self):
            if each is not table.get(each.name):  # of a subclass
                if each.name not in named:
                    named[each.name] = _default_of(each)
                if each.name not in KEYS:
                    object.__setattr__(self, each.name, named.pop(each.name))
        if named.keys() >= table.keys() - {"output_dir"}:  # of a parser, or dataclasses.replace
            named = {name: value for name, value in named.items() if not _is_unsaid(name, value)}
        self.said.update({name: plain(name, value) for name, value in named.items()})
        self._check()
        self.__post_init__()

    def __post_init__(self) -> None:
        """Do nothing; for subclasses."""

    def __getattribute__(self, name: str) -> Any:
        if name not in KEYS:
            return object.__getattribute__(self, name)
        value = self.said.get(name, KEYS[name].default)
        if name == "scale_rewards":
            return {True: "group", False: "none"}.get(value, value)
        return self._computed(name) if value is None else value

    def __getattr__(self, name: str) -> Any:
        if name in PROCESS:
            return PROCESS[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def _computed(self, name: str) -> Any:
        """Return the value of a field that is None, or was not given and has no default."""
        if name == "steps_per_generation":
            return Computed(sizes(self.values()).accumulated)
        if name == "generation_batch_size":
            return Computed(sizes(self.values()).generation)
        if name == "bf16":
            return not self.fp16
        if name == "greater_is_better" and self.metric_for_best_model is not None:
            return True
        return UNSAID.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in KEYS and name in self.__dataclass_fields__:  # of a subclass
            return object.__setattr__(self, name, value)
        before = dict(self.said)
        self.said[name] = plain(name, value)
        try:
            self._check()
        except ConfigError:
            object.__setattr__(self, "said", before)
            raise

    def _check(self) -> None:
        """Raise ConfigError: a field that cannot be. The steps of an epoch are known to the trainer, by its rows."""
        epochs = [name for name in ("save_strategy", "eval_strategy") if self.said.get(name) == "epoch"]
        self.translated(**{name: Said("steps", type(self).__name__) for name in epochs})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.said.items())})"

    def to_dict(self) -> dict[str, Any]:
        """Return every field with its value."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    def values(self) -> Values:
        """Return the values of all keys, given or TRL's default."""
        return Values(DIALECT.table, self._placed())

    def _placed(self) -> dict[str, Said]:
        return {name: Said(value, type(self).__name__) for name, value in self.said.items()}

    def translated(self, **more: Said) -> Translation:
        """Return the settings here; `more`: other keys of the dialect, or other values. Raises ConfigError."""
        return DIALECT.translate({**self._placed(), **more})

    @property
    def recipe(self) -> str:
        """The settings as a recipe, with a comment per key; model, data and rewards are missing in it."""
        return recipe_of(self.translated())


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise TypeError(f"missing the argument {field.name!r}, which has no default")
    return field.default


def _is_unsaid(name: str, value: Any) -> bool:
    """Return whether a field has a value that it also has where it was not given."""
    usual = [KEYS[name].default, *([UNSAID[name]] if name in UNSAID else [])] if name in KEYS else []
    same = (value == each and isinstance(value, bool) == isinstance(each, bool) for each in usual)
    return isinstance(value, Computed) or any(same)


def plain(name: str, value: Any) -> Any:
    """Return a value as the table has it: enumerations and paths as text, JSON of a table as the table."""
    kinds = KEYS[name].types if name in KEYS else ()
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple) and list in kinds:
        return list(value)
    if isinstance(value, str) and dict in kinds:
        try:
            return json.loads(value)
        except ValueError:
            return value  # not of the right type, which the table says
    return dict(value) if isinstance(value, Mapping) else value
