"""What the parts of verl's table share: names of its sections, rows without a change of value, and sums of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Key, Values

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REF, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"

NUMBER, WHOLE, TEXT, YES_OR_NO = (float,), (int,), (str,), (bool,)
OR_NONE = (type(None),)


def idle(section: str, names: str, why: str) -> tuple[Key, ...]:
    """Rows of settings without meaning here: `names` of one section, separated by blanks, and the reason."""
    return tuple(Key(f"{section}.{name}" if section else name, (), why) for name in names.split())


def sections(names: str, why: str) -> tuple[Key, ...]:
    """Return the rows of whole sections without meaning here, whatever stands in them, and the reason."""
    return tuple(Key(f"{name}.*", (), why) for name in names.split())


def refused(theirs: str, what_to_do: str, *harmless: Any) -> Key:
    """The row of a setting that oncurve cannot take, but for values that change nothing."""
    return Key(theirs, (), what_to_do, refused=True, harmless=harmless)


def meaning(value: Any, words: Mapping[str, str], refusals: Mapping[str, str] | None = None) -> str:
    """Our word for one of verl's. Raises ConfigError: it has none here, with what to do, or verl has no such word."""
    if value in (refusals or {}):
        raise ConfigError(f"{value}: not available here: {(refusals or {})[value]}")
    if not isinstance(value, str) or value not in words:
        known = [*words, *(refusals or {})]
        raise ConfigError(f"expected one of {', '.join(known)}, got {shown(value)}{suggest(str(value), known)}")
    return words[value]


def updates_per_step(values: Values) -> int:
    """Optimizer updates of one step of verl: minibatches times epochs. Raises ConfigError: they do not divide."""
    return minibatches(values) * int(values[f"{ACTOR}.ppo_epochs"])


def minibatches(values: Values) -> int:
    """How many minibatches a step has. Raises ConfigError: they are not whole, which verl refuses too."""
    batch, each = values["data.train_batch_size"], values[f"{ACTOR}.ppo_mini_batch_size"]
    if not isinstance(batch, int) or not isinstance(each, int) or batch < 1 or each < 1:
        raise ConfigError(f"expected numbers of prompts above 0, got {shown(each)} of {shown(batch)}")
    if batch % each:
        raise ConfigError(
            f"data.train_batch_size={batch} prompts are not whole minibatches of {each}; give a divisor of {batch}"
        )
    return batch // each


def either(values: Values, *names: str) -> Any:
    """The value of the first of several names of one setting that was given, else the default of the last."""
    return next((values[name] for name in names if values.given(name) and values[name] is not None), values[names[-1]])


def is_given(values: Values, *names: str) -> bool:
    """Whether one of them was given with a value that is not null."""
    return any(values.given(name) and values[name] is not None for name in names)


def local(path: Any) -> str:
    """A path as it is. Raises ConfigError: a text that names no file of this machine, such as HDFS."""
    if not isinstance(path, str) or not path:
        raise ConfigError(f"expected a path, got {shown(path)}")
    scheme, colon, _ = path.partition("://")
    if colon:
        raise ConfigError(f"{scheme}://: files are read from this machine; copy it here and give its path")
    return path


def locals_of(paths: Any) -> str | list[str]:
    """One path or a list of them. Raises ConfigError as `local`."""
    return [local(path) for path in paths] if isinstance(paths, list) and paths else local(paths)


def optimizer(section: str) -> tuple[Key, ...]:
    """Return the refusals that the optimizers of policy and critic share."""
    betas = "AdamW has learner.betas and learner.epsilon; leave it out"
    ends = "the schedules begin and end at 0, over all updates of the run; leave it out"
    return (
        refused(f"{section}.min_lr_ratio", "the cosine ends at 0; set it to 0.0", 0, 0.0, None),
        refused(f"{section}.num_cycles", "the cosine is half a cycle; set it to 0.5", 0.5),
        refused(f"{section}.optimizer", "AdamW is the only one; leave it out", "AdamW", "adam", "adamw"),
        refused(f"{section}.name", "AdamW is the only one; leave it out", "AdamW"),
        refused(f"{section}.optimizer_impl", "AdamW is oncurve's own; leave it out", "torch.optim"),
        *(refused(f"{section}.{name}", ends, 0, 0.0) for name in (
            "min_lr", "lr_min", "min_lr_factor", "lr_start", "lr_warmup_init")),
        refused(f"{section}.lr_decay_ratio", ends, 1, 1.0),
        refused(f"{section}.lr_decay_steps", ends, None),
        Key(f"{section}.override_optimizer_config.*", (), betas, refused=True, harmless=(None, {})),
    )  # fmt: skip
