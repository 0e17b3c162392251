"""The words that every command with a recipe takes: `RECIPE|MODEL --data FILE --reward REWARD --preset NAME`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, UserError, command, nearest
from oncurve.base.hints import known_words, word_for
from oncurve.base.output import complain
from oncurve.base.paths import names_rows
from oncurve.config import RUN, RunConfig, names_model
from oncurve.data import read_rows
from oncurve.run.arguments import (
    ARGUMENT_OF,
    OTHER_NAMES,
    check_for_stage,
    configured,
    data_arguments,
    reward_arguments,
)

ENOUGH_ROWS, MOST_HELD_OUT, EVALUATED_EVERY = 200, 100, 50
"""With `--data` and no word about evaluation: of so many rows a tenth is held out, this many at most, and evaluated
before step 1, every so many steps, and at the end. An evaluation takes less than a step of the presets: 256
completions."""


def command_config(
    target: str | None,
    overrides: Sequence[str] = (),
    data: str | None = None,
    rewards: Sequence[str] = (),
    presets: Sequence[str] = (),
    of: str = "train",
) -> tuple[RunConfig, Path, str]:
    """Return the configuration of the words of a command, the folder in which relative paths start, and a name.

    The name is that of the recipe or preset, after which a run's folder is called.

    target    a recipe, or with `data` or `rewards` a model; None: neither
    data      as the argument `data` of `oncurve.train`: a file or another source
    rewards   kinds, paths "file.py:name", reward models
    presets   later ones win; without a recipe and a preset "grpo"
    of        the command, for messages: "data check"

    Raises ConfigError: a word that names nothing, a model without data and rewards, and whatever is wrong with the
    settings.
    """
    overrides, data = data_among(overrides, data)
    is_model = target is not None and names_model(target)
    if is_model and data is None and not rewards:
        example = command(*of.split(), target, "--data", "train.jsonl", "--reward", "math")
        raise ConfigError(f"{target} is no recipe; to take a model, name data and a reward, too, like: {example}")
    found = _configured(target, is_model, overrides, data_arguments(data), rewards, presets)
    if data is None or any(word.startswith("eval.every") for word in overrides):
        return found
    chosen = any(word.startswith("data.eval_") for word in overrides)
    evaluated = _evaluated_by_default(found[0], found[1], chosen)
    if not evaluated:
        return found
    *fraction, every = evaluated.values()
    held_out = (
        f"{fraction[0]:.3g} of the rows is held out, and evaluated" if fraction else "held-out rows are evaluated"
    )
    none = "data.eval_fraction=0 trains on all rows" if fraction else "eval.every=0 leaves that out"
    complain(f"by default {held_out} every {'step' if every == 1 else f'{every} steps'} (eval.every); {none}")
    return _configured(target, is_model, overrides, data_arguments(data) | evaluated, rewards, presets)


def sft_config(
    target: str, overrides: Sequence[str], data: str | None, rewards: Sequence[str], presets: Sequence[str]
) -> tuple[RunConfig, Path, str]:
    """Return the configuration of the words of `oncurve sft`, as `command_config` does: the warm start by itself.

    Raises ConfigError: there are no demonstrations, and whatever `command_config` raises.
    """
    overrides, data = data_among(overrides, data)
    check_for_stage(word.partition("=")[0] for word in overrides)
    shown_by, is_model = {} if data is None else {"sft.data": data}, names_model(target)
    config, base, _ = _configured(target, is_model, overrides, shown_by, rewards, presets)
    return config.stage, base, "sft" if is_model else target


def _configured(
    target: str | None,
    is_model: bool,
    overrides: Sequence[str],
    arguments: Mapping[str, Any],
    rewards: Sequence[str],
    presets: Sequence[str],
) -> tuple[RunConfig, Path, str]:
    """Return configuration, folder and name. `arguments`: those of the data."""
    given = {"model.path": target} if is_model else {}
    given |= {**arguments, **reward_arguments(list(rewards) or None)}
    recipe = None if is_model else target
    config, base = configured(recipe, list(presets) or None, given, overrides=overrides, word="--preset")
    return config, base, recipe or "-".join(presets or ["grpo"])


def data_among(words: Sequence[str], data: str | None) -> tuple[list[str], str | None]:
    """Return `words` without the file or folder of rows among them, and the data: that file where `data` is None."""
    rows = [word for word in words if word.strip() and "=" not in word and (names_rows(word) or Path(word).is_dir())]
    if data is not None or len(rows) != 1:
        return list(words), data
    return [word for word in words if word != rows[0]], rows[0]


def _evaluated_by_default(config: RunConfig, base: Path, chosen: bool) -> dict[str, Any]:
    """Return the settings that hold rows out, where there are enough, and evaluate them, where the run does not yet.

    `chosen`: whether rows are held out is said already.
    """
    if "every" in config.eval.model_fields_set or not config.rewards or (chosen and not config.data.holds_out):
        return {}
    try:
        count = len(read_rows(config.data, base)[0])
    except UserError:
        return {}  # the command itself reports it, or does not read the data
    if config.data.holds_out:
        return {"eval.every": min(EVALUATED_EVERY, config.over(count).run.steps)}
    if count < ENOUGH_ROWS:
        return {}
    fraction = min(0.1, MOST_HELD_OUT / count)
    every = min(EVALUATED_EVERY, config.over(count - int(fraction * count)).run.steps)
    return {"data.eval_fraction": fraction, "eval.every": every}


def words_for(option: str, value: str, options: Collection[str]) -> str | None:
    """Return what to do in place of an option that a command does not have, or None where nothing is known.

    `options`: those that the command has. Example: `words_for("--lr", "1e-5", [])` is `"write
    learner.learning_rate=1e-5"`.
    """
    name = option.lstrip("-").replace("-", "_")
    key_of, word = {argument: key for key, argument in reversed(ARGUMENT_OF.items())}, word_for(name)
    keys = [key_of[name]] if name in key_of else list(word.keys) if word is not None else RUN.owners(name)
    own = [f"--{each}" for each in (OTHER_NAMES.get(name), *map(ARGUMENT_OF.get, keys[:1])) if f"--{each}" in options]
    if own:
        return f"write {shlex.join([own[0], value])}"
    if keys == ["model.path"]:
        return f"write {shlex.quote(value)} as the first word"
    if word is None and len(keys) > 1:
        return f"write one of {', '.join(keys)}"
    if not keys and word is None:
        near = nearest(name, [*key_of, *known_words(), *OTHER_NAMES])
        return None if near is None or near == name else words_for(near, value, options)
    note = word.note if word is not None else ""
    written = shlex.join(f"{key}={value}" for key in keys)
    return f"write {written}" + (f" ({note})" if note else "") if keys else note
