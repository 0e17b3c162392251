"""Names on the command line and in `oncurve.train` as settings: models, data, rewards, presets.

Every command with a recipe takes the words `RECIPE|MODEL --data FILE --reward REWARD --preset NAME`.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_type_hints

from oncurve.base.errors import ConfigError, UserError, command, nearest, refuse, shown
from oncurve.base.hints import known_words, word_for
from oncurve.base.output import complain
from oncurve.base.paths import names_rows, usable_path
from oncurve.components import Component
from oncurve.config import RUN, RunConfig, find_recipe, load_config, names_model, tables_of
from oncurve.data import read_rows
from oncurve.rewards import REWARD_KINDS, path_of


class CommonSettings(TypedDict, total=False):
    """Arguments of `oncurve.train` that are settings; None or left out: as the recipe or preset has it."""

    learning_rate: Annotated[float | None, "learner.learning_rate"]
    """The step size of the optimizer."""

    warmup_steps: Annotated[int | None, "learner.warmup_steps"]
    """Updates until the learning rate has its full value."""

    minibatches: Annotated[int | None, "learner.minibatches"]
    """Updates per step and pass."""

    group_size: Annotated[int | None, "rollout.group_size"]
    """Completions per prompt."""

    max_new_tokens: Annotated[int | None, "rollout.max_new_tokens"]
    """The longest completion."""

    temperature: Annotated[float | None, "rollout.temperature"]
    """The temperature of sampling."""

    prompts_per_step: Annotated[int | None, "data.prompts_per_step"]
    """Prompts of one rollout."""

    system: Annotated[str | None, "data.system"]
    """A system message before every prompt."""

    eval_fraction: Annotated[float | None, "data.eval_fraction"]
    """The share of rows that is held out for evaluation."""

    eval_every: Annotated[int | None, "eval.every"]
    """Steps between evaluations."""

    kl_coef: Annotated[float | None, "kl.coef"]
    """The weight of the KL penalty."""

    lora_rank: Annotated[int | None, "lora.rank"]
    """Train an adapter of this rank instead of all weights."""

    epochs: Annotated[float | None, "run.epochs"]
    """Passes over the data, in place of `steps`."""


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

_COMMON = {hint.__metadata__[0]: name for name, hint in get_type_hints(CommonSettings, include_extras=True).items()}

ARGUMENT_OF: dict[str, str] = _TABLES["train"] | _COMMON
"""The argument of `train` for a setting."""

SFT_ARGUMENT_OF: dict[str, str] = _TABLES["sft"]
"""The argument of `sft` for a setting."""

OTHER_NAMES = {name: argument for argument, names in _TABLES["other_names"].items() for name in names.split()}
"""The argument that another name means."""


def arguments_of(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are one setting each, by key; None: not given."""
    return {key: value for key, name in ARGUMENT_OF.items() if (value := named.get(name)) is not None}


def configured(
    recipe: str | Path | None,
    preset: str | Sequence[str] | None,
    arguments: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    word: str = "preset",
) -> tuple[RunConfig, Path]:
    """Return the configuration of a recipe, a preset ("grpo" if there is neither), arguments, settings and overrides.

    `word` is how the caller writes `preset`, for messages. Raises ConfigError for whatever is wrong.
    """
    chosen = "grpo" if preset is None and recipe is None else preset
    for name in chosen if isinstance(chosen, (list, tuple)) else () if chosen is None else (chosen,):
        if not isinstance(name, str):
            raise ConfigError(f"{word}: expected a preset's name, or a list of them, got {shown(preset)}")
        find_recipe(name, word)
    extends = [] if chosen is None else [f"extends={json.dumps(chosen)}"]
    return load_config(recipe, [*extends, *overrides], settings=tables_of(arguments, settings))


def data_arguments(data: Any) -> dict[str, Any]:
    """Return the data as settings: a file, or rows in memory."""
    if data is None:
        return {}
    kind, key, value = ("files", "path", str(data)) if isinstance(data, (str, Path)) else ("list", "rows", data)
    return {"data.kind": kind, f"data.{key}": value}


def environment_arguments(environment: Any, tools: Any) -> dict[str, Any]:
    """Return an environment and tools, as classes and functions or as paths, as settings. Raises ConfigError."""
    if isinstance(environment, Component) and not tools:
        return {"environment": environment}
    table: dict[str, Any] = {}
    if isinstance(environment, str):
        table = {"kind": "tools", "path": environment} if ":" in environment else {"kind": environment}
    elif isinstance(environment, Mapping):
        paths = (
            all(isinstance(each, str) and ":" in each for each in environment.values()) and "kind" not in environment
        )
        code = "path" if paths else "classes" if all(map(callable, environment.values())) else None
        table = dict(environment) if code is None or "path" in environment else {"kind": "tools", code: environment}
    elif callable(environment):
        table = {"kind": "tools", "classes": environment}
    elif environment is not None:
        raise ConfigError(f"environment: expected classes, a path 'file.py:Name' or a table, got {shown(environment)}")
    given = [tools] if isinstance(tools, str) or callable(tools) else list(tools or ())
    if given:
        paths = all(isinstance(each, str) for each in given)
        if not paths and not all(map(callable, given)):
            raise ConfigError("tools: expected functions, or paths like 'file.py:add'")
        table = {"kind": "tools", **table, ("tools" if paths else "functions"): tuple(given)}
    return {f"environment.{key}": value for key, value in table.items()}


def objects_of(config: RunConfig) -> dict[str, Any]:
    """Return the settings that may hold objects which no file can: rewards, and an environment of them."""
    environment: Any = config.environment
    return {"rewards": list(config.rewards), **({"environment": environment} if environment.objects else {})}


def check_for_stage(said: Iterable[str]) -> None:
    """Raise ConfigError for a setting that a warm start has under another name: it would have no effect."""
    instead = {"learner.learning_rate": "learning_rate", "data.prompts_per_step": "batch_size"}
    instead |= {f"run.{name}": name for name in ("steps", "epochs")}
    refuse(f"{key}: a warm start has its own, sft.{instead[key]}" for key in said if key in instead)


def reward_arguments(reward: Any) -> dict[str, Any]:
    """Return the rewards as settings: one, or several."""
    if reward is None:
        return {}
    alone = isinstance(reward, (str, Mapping, Component)) or callable(reward) or not isinstance(reward, Sequence)
    return {"rewards": [_reward_table(item) for item in ([reward] if alone else reward)]}


def _reward_table(reward: Any) -> Any:
    if isinstance(reward, (Mapping, Component)):
        return reward
    if isinstance(reward, str):
        if ":" in reward:
            return {"kind": "python", "path": reward}
        if reward.endswith(".py"):
            raise ConfigError(f"reward: {reward} names no function; write {reward}:NAME")
        is_model = reward not in REWARD_KINDS and ("/" in reward or Path(reward).is_dir())
        return {"kind": "model", "path": reward} if is_model else {"kind": reward}
    if callable(reward):
        path = path_of(reward)
        return {"kind": "python", "function": reward} if path is None else {"kind": "python", "path": path}
    raise ConfigError(f"reward: expected a function, a kind, a path 'file.py:name' or a table, got {reward!r}")


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
    held_out = f"{fraction[0]:.3g} of the rows is held out, and" if fraction else "held-out rows are"
    none = "data.eval_fraction=0 trains on all rows" if fraction else "eval.every=0 leaves that out"
    complain(f"by default {held_out} evaluated every {'step' if every == 1 else f'{every} steps'} (eval.every); {none}")
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
    if data is not None and (again := [word for word in words if word.startswith("data.path=")]):
        raise ConfigError(f"--data {data} and {again[0]} both name the rows: give one of them")
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


NAMELESS = ("config", "recipe", "model", "checkpoint", "best", "final", "latest", "last")
"""Names of files and folders that say nothing: a recipe is then called by its folder, and a model not at all."""

LONGEST = 80


def run_name(recipe: str | Path, config: RunConfig) -> str:
    """Return `run.name`, or the recipe's or preset's name and the model's: `"gsm8k-qwen2.5-0.5b"`.

    A recipe that is called `config` or `recipe` has the name of its folder. The model is left out where its folder's
    name says nothing, or the recipe's name has it.
    """
    if config.run.name is not None:
        return config.run.name
    of_recipe, of_model = _called(Path(recipe)), Path(config.model.path).name
    model = "" if of_model.lower() in NAMELESS else _plain(of_model)
    name = of_recipe if model in of_recipe else f"{of_recipe}-{model}".strip("-")
    return name[:LONGEST].strip("-.") or "run"


def free_directory(name: str) -> Path:
    """Return the first of `runs/<name>`, `runs/<name>-2` and so on that does not exist."""
    usable_path(Path("runs") / name, "run.name")
    paths = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in paths if not path.exists())


def _called(recipe: Path) -> str:
    """Return the name of a recipe's file, of a run's folder that is taken as a recipe, or of a preset."""
    name = recipe.stem if recipe.suffix in (".toml", ".yaml", ".yml") else recipe.name
    return _plain(recipe.resolve().parent.name if name.lower() in NAMELESS else name)


def _plain(name: str) -> str:
    """Return the name in small letters, with digits, dots and hyphens, as folders are called."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")
