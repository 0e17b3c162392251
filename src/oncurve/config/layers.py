"""Layers of settings: presets, recipe files, what Python code says, the command line; later ones win.

A layer is a list of assignments, `(("kl", "coef"), 0.01)`, whatever it was written in. Paths in it are made absolute
against the folder it comes from before layers are merged, so a recipe may extend another from another folder.

The values of a YAML text are counted, with their aliases filled in, before anything is built of them.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from oncurve.base.errors import ConfigError, command, shown, suggest
from oncurve.base.hints import method_for
from oncurve.base.paths import (
    PRESETS as PRESETS,
    RECIPES as RECIPES,
    SUFFIXES,
    is_data_set_id,
    names_rows,
    not_a_file,
    shipped as shipped,
    usable_path,
    working_directory,
)

MOST_VALUES = 100_000  # aliases of aliases can mean more than any memory holds


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises YAMLError, also for a key that stands twice or is no name."""
    with _loaded(text) as (loader, node):
        return None if node is None else loader.construct_document(node)


def yaml_node(text: str) -> Any:
    """Return the root of a YAML text with the places of its parts, None if it is empty. Raises YAMLError."""
    with _loaded(text) as (_, node):
        return node


@contextmanager
def _loaded(text: str) -> Iterator[tuple[_Loader, Any]]:
    """Yield a loader and the root of a text. Raises YAMLError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None and _expanded(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES:,} values; do anchors refer to anchors?")
        yield loader, node
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    finally:
        loader.dispose()


def _expanded(node: Any, known: dict[int, float]) -> float:
    """Return how many values a node stands for with its anchors filled in; infinite where one contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf  # met again below itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        flat = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in flat)
    return known[id(node)]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """The safe loader, which in addition refuses a key that stands twice (plain YAML lets the last one win)."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        seen: set[str] = set()
        for key in keys:
            if not isinstance(key, str) or key in seen:
                problem = "stands twice" if isinstance(key, str) else "is not a name"
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} {problem}", node.start_mark)
            seen.add(key)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


DATA_KEYS = {("data", "path"), ("data", "eval_path"), ("sft", "data"), ("sft", "eval_data")}
FILE_KEYS = {*DATA_KEYS, ("iterative", "history")}
MODEL_KEYS = {("model", "path"), ("advantage", "teacher"), ("reward_model", "path"), ("rewards", "path")}
CODE_LISTS = {("tracking", "to"), ("environment", "tools")}
"""Lists whose items may be paths to code."""

INDEX = re.compile(r"[0-9]{1,9}")
CODE_PATH = re.compile(r"(.+\.py):([A-Za-z_][\w.]*)")
MODULE_PATH = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")

Assignment = tuple[tuple[str | int, ...], Any]


@dataclass(frozen=True)
class Layer:
    """Assignments from one place. `name` is how messages call it.

    `complete` marks a resolved configuration written by oncurve: every key stands in it, inert ones too. `file`: where
    it was read; `of_run`: that is a run's folder.
    """

    name: str
    assignments: tuple[Assignment, ...]
    complete: bool = False
    file: Path | None = None
    of_run: bool = False


def read_layers(recipe: str | Path | None, extends: Any = None) -> tuple[list[Layer], Path]:
    """Return the layers of a recipe, lowest first, and the folder it is in; of no recipe, those of `extends`.

    `recipe` is a file, a run directory (its `config.toml`), or the name of a preset or a recipe of the package.
    `extends`, a name or a list of names, replaces the presets that the recipe says it extends; recipes that it extends
    stay below. Its paths are relative to the working directory, those in a recipe to the recipe's folder. Of several
    the later ones win; a file that is reached twice counts where it is reached first.

    Raises ConfigError: no such recipe, it cannot be parsed, a circle of `extends`.
    """
    here, layers = working_directory(), dict[Path, Layer]()
    given = [find_recipe(name, "extends") for name in _names(extends, "extends")]
    if recipe is None:
        for found in given:
            _add(found, None, (), layers)
        return list(layers.values()), here
    file = _find(str(recipe), here)
    _add(file, None if extends is None else given, (), layers)
    if (here / str(recipe)).is_dir():
        layers[file] = replace(layers[file], of_run=True)
    return list(layers.values()), file.parent


def find_recipe(name: str, where: str) -> Path:
    """Return the file that a recipe's or preset's name means; `where` is the word that messages begin with.

    Raises ConfigError: there is none.
    """
    return _find(name, working_directory(), f"{where}: ")


def _add(file: Path, given: list[Path] | None, above: tuple[Path, ...], layers: dict[Path, Layer]) -> None:
    """Put the layer of `file` after those of what it extends. `above`: the files that were followed to it.

    `given` are files in the place of the presets among them; None: the presets stay.
    """
    if file in above:
        circle = " -> ".join(path.name for path in [*above, file])
        raise ConfigError(f"{file}: extends itself: {circle}")
    if file in layers:
        return
    table = read_table(file, file.suffix not in (".yaml", ".yml"))
    said = table.pop("extends", None)
    where = f"{file}: extends"
    files = [_find(name, file.parent, f"{where}: ") for name in _names(said, where)]
    if given is not None:
        files = [*(found for found in files if found.parent != PRESETS), *given]
    for found in files:
        _add(found, None, (*above, file), layers)
    complete = table.pop("resolved", False) is True
    name = f"preset {file.stem}" if file.parent == PRESETS else str(file)
    layers[file] = replace(from_mapping(table, name, file.parent, complete), file=file)


def _names(extends: Any, where: str) -> list[str]:
    """Return the names that `extends` has. Raises ConfigError: it is neither a name nor a list of names."""
    names = [] if extends is None else extends if isinstance(extends, list) else [extends]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: expected a preset's name or a file, or a list of them, got {shown(extends)}")
    return names


def names_recipe(name: str) -> bool:
    """Return whether a word is a recipe or preset: a name of the package's, a run directory, or a file's name like
    theirs.
    """
    own = name in shipped(PRESETS) or name in shipped(RECIPES)
    return own or name.endswith(SUFFIXES) or os.path.isfile(name) or os.path.isfile(os.path.join(name, "config.toml"))


def names_model(target: str) -> bool:
    """Return whether a word is a model, a folder or an id of the hub, and no recipe.

    Raises ConfigError: it is neither, or a recipe that is not there.
    """
    if names_recipe(target):
        _find(target, working_directory())
        return False
    here = usable_path(target, "RECIPE|MODEL")
    if not target.strip():
        raise ConfigError("RECIPE|MODEL: the name is empty; name a recipe, a preset or a model")
    if "/" in target or here.is_dir():
        return True
    if os.path.lexists(here):
        return False  # a pipe or a device: what reads recipes says so
    entries = sorted(Path().iterdir())
    files = [entry.name for entry in entries if entry.name.endswith(SUFFIXES)]
    models = [entry.name for entry in entries if (entry / "config.json").is_file()]
    presets, recipes = shipped(PRESETS), shipped(RECIPES)
    near = suggest(target, [*models, *files, *presets, *recipes]) or ";"
    raise ConfigError(
        f"there is no recipe, preset or model {shown(target)} here{near} "
        f"the presets are: {', '.join(presets)}; the recipes of the package are: {', '.join(recipes)}; "
        "a model of the hub is written OWNER/NAME; settings come after the name"
    )


def _find(name: str, folder: Path, where: str = "") -> Path:
    """Return the file that a recipe's or preset's name means."""
    if not name.strip():
        raise ConfigError(f"{where or 'RECIPE: '}the name is empty; name a recipe or a preset")
    path = Path(os.path.abspath(folder / usable_path(name, where.removesuffix(": ") or "RECIPE", folder)))
    if path.is_dir() and (path / "config.toml").is_file():
        return path / "config.toml"
    if path.is_file():
        return path
    special = not_a_file(path)
    if special is not None:
        raise ConfigError(f"{where}{path} is {special}; a recipe is a file, which a run can read again")
    presets, own = shipped(PRESETS), shipped(RECIPES)
    if name in presets or name in own:
        return presets.get(name) or own[name]
    known = f"the presets are: {', '.join(presets)}; the recipes of the package are: {', '.join(own)}"
    neighbours = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    recipes = [entry for entry in neighbours if entry.endswith(SUFFIXES)]
    if path.is_dir():
        raise ConfigError(f"{where}{path} is a folder, and no run: it has no config.toml; name a recipe; {known}")
    if path.suffix not in SUFFIXES:
        elsewhere = method_for(name)
        if elsewhere is not None:
            raise ConfigError(f"{where}there is no {name} here: {elsewhere}")
        near = suggest(name, [*presets, *own, *recipes]) or suggest(path.name, [*presets, *recipes])
        raise ConfigError(f"{where}there is no recipe or preset {shown(name)}{near or ';'} {known}")
    near = suggest(path.name, recipes) or suggest(path.stem, [*presets, *own])
    raise ConfigError(f"{where}there is no file {path}{near or ';'} {known}")


def read_table(file: Path, toml: bool) -> dict[str, Any]:
    """Return the tables of a file in TOML or YAML. Raises ConfigError: it cannot be read, or has no tables."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        table = tomllib.loads(text) if toml else read_yaml(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply; settings have two parts, section.key") from None
    except (yaml.YAMLError, ValueError) as error:  # TOML's own, a number or a date that cannot be, or not UTF-8
        _check_suffix(file)
        typed = isinstance(error, tomllib.TOMLDecodeError) and not set("“”„‘’").isdisjoint(text)
        quotes = "; it has typographic quotes, write straight ones" if typed else ""
        raise ConfigError(f"{file}: {_complaint(error)}{quotes}") from None
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: expected sections with settings, got {type(table).__name__}")
    return table


def _check_suffix(file: Path) -> None:
    """Raises ConfigError for a file that is no TOML and is not called like a recipe, but like rows or code."""
    if file.suffix in SUFFIXES:
        return
    use = ""
    if names_rows(file.name):
        example = command("train", "MODEL", "--data", _typed(file), "--reward", "math")
        use = f"; rows go after --data: {example}"
    elif file.suffix == ".py":
        use = f"; a reward goes after --reward, with the name of its function: --reward {_typed(file)}:NAME"
    raise ConfigError(f"{file}: no recipe, which is TOML or YAML and ends in {', '.join(SUFFIXES)}{use}")


def _typed(file: Path) -> str:
    """Return a file's path as short as it can be typed from here."""
    here = working_directory()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)


def _complaint(error: Exception) -> str:
    """Return a parser's error and its place, in one line."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
    return problem if mark is None else f"{problem} (at line {mark.line + 1}, column {mark.column + 1})"


def from_mapping(table: Mapping[str, Any], name: str, folder: Path, complete: bool = False) -> Layer:
    """Return the layer of nested tables `{"kl": {"coef": 0.01}, "rewards": [{...}]}`; relative paths start at
    `folder`.
    """
    assignments: list[Assignment] = []
    for section, content in table.items():
        if isinstance(content, Mapping):
            assignments += [((section, key), value) for key, value in content.items()]
            assignments += [] if content else [((section,), {})]
        else:
            assignments.append(((section,), content))
    return Layer(name, tuple(_absolute(assignments, folder)), complete)


def from_overrides(overrides: Iterable[str], folder: Path) -> tuple[Layer, list[Any] | None]:
    """Return the layer of `section.key=value` words, and what `extends=` among them says: several add up, the later
    ones win.

    A value is read as TOML (`1e-6`, `true`, `[1, 2]`, `"5"`, `{kind="math"}`), `null` as none; else it is a string.
    Raises ConfigError: no `=`, or a key that is not `section.key` or `rewards.0.key`.
    """
    assignments: list[Assignment] = []
    extends: list[Any] | None = None
    for word in overrides:
        key, equals, text = word.partition("=")
        parts = tuple(int(part) if INDEX.fullmatch(part) else part for part in key.strip().split("."))
        if not equals or "" in parts or key.translate(_PLAIN) != key:
            expected = "section.key=value, like learner.learning_rate=2e-6"
            raise ConfigError(f"{shown(word)}: expected {expected}{_typed_as(word)}")
        value = _parse_value(text)
        if parts == ("extends",):
            bare = re.fullmatch(r"\[([^\[\]\"']*)\]", text.strip())  # a shell takes the quotes of ["a", "b"]
            named = [name.strip() for name in bare[1].split(",") if name.strip()] if bare is not None else value
            extends = [*(extends or []), *(named if isinstance(named, list) else [str(named)])]
        elif isinstance(value, Mapping) and len(parts) == 1:
            assignments += [((*parts, inner), each) for inner, each in value.items()]
        else:
            assignments.append((parts, value))
    return Layer("the command line", tuple(_absolute(assignments, folder))), extends


_PLAIN = str.maketrans({**dict.fromkeys("“”„«»", '"'), **dict.fromkeys("‘’‚", "'"), **dict.fromkeys("–—−", "-")})


def _typed_as(word: str) -> str:
    """Return a hint on a word that a shell or an editor has changed."""
    if word[:1] in "–—−" and word:
        return f"; an option begins with two hyphens: --{word.lstrip('–—−-')}"
    code = CODE_PATH.fullmatch(word)
    if code is not None or word.endswith(".py"):
        return f"; a reward goes after --reward: --reward {shlex.quote(word if code is not None else f'{word}:NAME')}"
    if names_rows(word):
        return '; a command takes one file of rows, or a list of them in quotes: \'data.path=["A", "B"]\''
    if word.endswith(SUFFIXES):
        return '; a command takes one recipe, its first word, which may say: extends = ["OTHER.toml"]'
    if word.translate(_PLAIN) != word:
        return "; it has typographic quotes or dashes: type plain ones"
    return ", without blanks around the =" if re.fullmatch(r"[a-z_]+\.[\w.]+|=.*", word) else ""


def _parse_value(text: str) -> Any:
    if text.strip() == "null":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # not TOML
        return text
    value = parsed.get("value")
    dated = isinstance(value, (datetime.date, datetime.time))  # a run named 2026-08-01 is a name
    return text if dated or parsed.keys() != {"value"} else value


def _absolute(assignments: Sequence[Assignment], folder: Path) -> list[Assignment]:
    return [(path, _absolute_value(path, value, folder)) for path, value in assignments]


def _absolute_value(path: tuple[str | int, ...], value: Any, folder: Path) -> Any:
    """Return `value` with the files that it names made absolute; what is not here and may be a hub id stays."""
    if (path[0] == "rewards" or path in CODE_LISTS) and isinstance(value, Sequence) and not isinstance(value, str):
        return [_absolute_value(path if path in CODE_LISTS else ("rewards",), item, folder) for item in value]
    if path == ("rewards",) and isinstance(value, Mapping):
        return {key: _absolute_value(("rewards", key), inner, folder) for key, inner in value.items()}
    if path in DATA_KEYS and isinstance(value, list | tuple):
        return [_absolute_value(path, item, folder) for item in value]
    if not isinstance(value, str) or not value:
        return value
    where = ".".join(map(str, path))
    code = CODE_PATH.fullmatch(value)
    if code is not None:
        return f"{_join(folder, code[1], where)}:{code[2]}"
    is_model = (path[0], path[-1]) in MODEL_KEYS
    is_folder = is_model and (value.startswith((".", "~")) or (folder / usable_path(value, where, folder)).exists())
    if path in DATA_KEYS and is_data_set_id(value) and not (folder / usable_path(value, where, folder)).exists():
        return value
    return _join(folder, value, where) if path in FILE_KEYS or is_folder else value


def _join(folder: Path, path: str, where: str) -> str:
    return os.path.abspath(folder / usable_path(path, where, folder))
