"""verl's settings: the table of them, what words or a YAML file give, and the run by them.

`DIALECT` is put together from the TOML files next to this module. Each setting that was given has its value and place.
`oncurve train --verl` runs in the folder and with the resumption that they say.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from oncurve.base.errors import ConfigError, command, noted, refuse, shown
from oncurve.base.output import say
from oncurve.compat.dialect import Dialect, Said, Translation, Values, keys_of
from oncurve.compat.recipe import config_of
from oncurve.compat.verl import algorithm, reward, run
from oncurve.compat.verl.hydra import DEEPEST, Assignment, assignment, is_assignment, plain, resolved
from oncurve.compat.verl.reward import checker_notes
from oncurve.config import yaml_node
from oncurve.report import rendered
from oncurve.run import train_or_resume, train_recipe

VERSION = "0.9"
"""The version of verl whose `ppo_trainer.yaml` the table has, next to names of older ones."""

HERE = Path(__file__).parent
FILES = ("algorithm", "actor", "data", "rollout", "critic", "reward", "trainer", "unused")
FUNCTIONS = vars(algorithm) | vars(run) | vars(reward)
DIALECT = Dialect("verl", VERSION, tuple(key for name in FILES for key in keys_of(HERE / f"{name}.toml", FUNCTIONS)))

OPEN = tuple(key.theirs for key in DIALECT.keys if dict in key.types)
"""Settings that are tables with free names: `custom_reward_function.reward_kwargs.limit=3` is a part of one."""

ABOUT = (HERE / "about.md").read_text(encoding="utf-8") + "\n".join(reward.checker_rows())
"""The text of the page "Coming from another tool" before the table of settings."""


YAML = (".yaml", ".yml")
OWN_CONFIG = re.compile(r"ppo(_\w+)?_trainer(\.yaml)?")
CONFIG_FLAGS = ("--config-path", "--config-name", "--config-dir", "-cp", "-cn", "-cd")


@dataclass(frozen=True)
class VerlReading:
    """The settings that were given, by name, and notes on those that do not count."""

    said: dict[str, Said]
    notes: tuple[str, ...] = ()


def read(words: Sequence[str]) -> VerlReading:
    """Return what the words of `--verl` give: a YAML file, if the first one is a file, and assignments, which win.

    Raises ConfigError, each line with its place: what cannot be read.
    """
    if not words:
        raise ConfigError("--verl: name a YAML file, or settings like algorithm.adv_estimator=grpo")
    notes = list[str]()
    flags, others = _flags(words)
    found = _config_of(flags, notes)
    first = others[0] if others else ""
    if first and (not is_assignment(first) or Path(first).is_file()):
        found += _in_file(Path(first), notes)
        others = others[1:]
    problems = list[str]()
    for word in others:
        with noted(problems):
            found.append(assignment(word))
    refuse(problems)
    return _settled(found, notes)


def _in_file(path: Path, notes: list[str]) -> list[Assignment]:
    if path.suffix == ".sh":
        raise ConfigError(
            f"{path}: scripts are not read; write `oncurve train --verl` in it where `python3 -m "
            "verl.trainer.main_ppo` stands, and run it"
        )
    if not path.is_file() or path.suffix not in YAML:
        raise ConfigError(
            f"{path}: expected a YAML file that is there; --verl takes one, or settings like "
            "algorithm.adv_estimator=grpo"
        )
    found, said = assignments_of(path)
    notes += said
    return found


def _flags(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of Hydra's flags that name a file, and the other words."""
    flags, others, rest = dict[str, str](), list[str](), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in CONFIG_FLAGS:
            flags[name.lstrip("-")] = value if equals else next(rest, "")
        else:
            others.append(word)
    return flags, others


def _config_of(flags: dict[str, str], notes: list[str]) -> list[Assignment]:
    """Return the assignments of the YAML file that Hydra's flags name; the table has the defaults of verl's own."""
    name = flags.get("config-name", flags.get("cn"))
    if name is None or OWN_CONFIG.fullmatch(name):
        return []
    folder = next((flags[each] for each in ("config-path", "cp", "config-dir", "cd") if each in flags), "")
    file = Path(folder) / (name if name.endswith(YAML) else f"{name}.yaml")
    if not file.is_file():
        raise ConfigError(f"--config-name={name}: there is no file {file}; give its path as the first word instead")
    return _in_file(file, notes)


def _settled(found: Sequence[Assignment], notes: list[str]) -> VerlReading:
    """Return what was given, by name: tables flattened, free tables put together, the last value, `${...}`."""
    latest = dict[str, Assignment]()
    for leaf in (leaf for each in found for leaf in _flat(each)):
        if leaf.key in latest and leaf.mark != "~":
            notes.append(f"{leaf.key} is given more than once; {shown(leaf.value)} counts, the last")
            del latest[leaf.key]
        latest[leaf.key] = leaf
    table, problems, said = DIALECT.table_for(latest), list[str](), dict[str, Said]()

    def lookup(name: str) -> Any:
        return latest[name].value if name in latest else table[name].default

    for key, each in latest.items():
        value = each.value
        try:
            value = resolved(value, key, lookup)
        except ConfigError as error:
            if key not in table or table[key].fate != "no meaning":
                problems.append(f"{each.place}: {key}: {error}" if each.place else f"{key}: {error}")
        said[key] = Said(value, each.place)
    refuse(problems)
    return VerlReading(_gathered(said), tuple(notes))


def _flat(each: Assignment) -> Iterator[Assignment]:
    """Yield a table's leaves, where its names are settings; a free table as it is."""
    free = each.key in OPEN or any(each.key.startswith(f"{name}.") for name in OPEN)
    if not isinstance(each.value, dict) or not each.value or free:
        yield each
        return
    for name, value in each.value.items():
        yield from _flat(Assignment(f"{each.key}.{name}", value, each.place, each.mark))


def _gathered(said: dict[str, Said]) -> dict[str, Said]:
    """Return the settings with those of a free table as one: `reward_kwargs.limit=3` is `reward_kwargs={limit: 3}`."""
    found = dict[str, Said]()
    for key, each in said.items():
        name = next((name for name in OPEN if key.startswith(f"{name}.")), None)
        if name is None:
            before = found[key].value if key in found and isinstance(found[key].value, dict) else {}
            merged = {**before, **each.value} if isinstance(each.value, dict) else each.value
            found[key] = Said(merged, each.place)
            continue
        table = found[name].value if name in found and found[name].value is not None else {}
        if not isinstance(table, dict):
            raise ConfigError(f"{key}: {name}={shown(table)} is given, too, and is no table; leave one of them out")
        found[name] = Said(_inserted(table, key.removeprefix(f"{name}.").split("."), each.value), each.place)
    return found


def _inserted(table: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    inner = table.get(path[0])
    if len(path) == 1:
        return {**table, path[0]: value}
    return {**table, path[0]: _inserted(inner if isinstance(inner, dict) else {}, path[1:], value)}


def assignments_of(path: Path) -> tuple[list[Assignment], list[str]]:
    """Return the settings of a YAML file, and a note on its `defaults`, which are files of verl and not read.

    Raises ConfigError: it cannot be read, is no YAML, no table, or has a key twice; with the line.
    """
    try:
        root = yaml_node(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        place = "" if mark is None else f" (line {mark.line + 1})"
        raise ConfigError(f"{path}: {problem}{place}") from None
    if root is None:
        return [], []
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}: expected sections with settings, as verl's ppo_trainer.yaml has")
    found = list(_leaves(root, "", path, 0))
    said = "its files are not read; verl's own defaults are in their place"
    notes = [f"{each.place}: defaults: {said}" for each in found if each.key == "defaults"]
    return [each for each in found if each.key != "defaults"], notes


def _leaves(node: Any, above: str, path: Path, depth: int) -> Iterator[Assignment]:
    if depth > DEEPEST:
        raise ConfigError(f"{path}: nested more than {DEEPEST} levels deep")
    seen = set[str]()
    for name, inner in node.value:
        place = f"{path} line {name.start_mark.line + 1}"
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError(f"{place}: a key is a name")
        if name.value in seen:
            raise ConfigError(f"{place}: {name.value} stands twice")
        seen.add(name.value)
        key = f"{above}.{name.value}" if above else name.value
        if isinstance(inner, yaml.MappingNode) and inner.value:
            yield from _leaves(inner, key, path, depth + 1)
        else:
            yield Assignment(key, _value(inner, place, depth), place)


def _value(node: Any, place: str, depth: int) -> Any:
    """Return a scalar by Hydra's rules (1e-6 is a number, which it is not in YAML), or a list."""
    if depth > DEEPEST:
        raise ConfigError(f"{place}: nested more than {DEEPEST} levels deep")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, place, depth + 1) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(name.value): _value(item, place, depth + 1) for name, item in node.value}
    if node.style in ("'", '"', "|", ">"):
        return node.value
    if node.value in ("", "~"):
        return None
    return {"yes": True, "on": True, "no": False, "off": False}.get(node.value.lower(), plain(node.value))


def train_verl(words: Sequence[str], out: Path | None = None, resume_if_there: bool = False) -> str | None:
    """Train by verl's settings; return the signal that stopped the run, or None.

    words             a YAML file, or assignments; see `read`
    out               the run's folder; None: `trainer.default_local_dir`
    resume_if_there   continue the run that is there; so does `trainer.resume_mode=auto`, verl's default

    Prints what the settings became. Raises ConfigError, before anything expensive.
    """
    reading = read(words)
    translation = DIALECT.translate(reading.said)
    config, base = config_of(translation)
    values = Values(DIALECT.table, reading.said)
    folder = out or _folder(values)
    for line in [*summary(translation, reading, values, words), f"folder  {folder}", ""]:
        say(line)
    if resume_if_there or values["trainer.resume_mode"] == "auto":
        return train_or_resume(config, base, folder)
    return train_recipe(config, base, folder)


def _folder(values: Values) -> Path:
    """Return `trainer.default_local_dir`; verl's default names project and experiment. Raises ConfigError."""
    text = str(values["trainer.default_local_dir"])
    for name in ("trainer.project_name", "trainer.experiment_name"):
        text = text.replace(f"${{{name}}}", str(values[name]))
    if not text or "://" in text:
        raise ConfigError(f"trainer.default_local_dir: expected a folder here, got {shown(text)}; give --out")
    return Path(text).expanduser()


def summary(translation: Translation, reading: VerlReading, values: Values, words: Sequence[str]) -> list[str]:
    """Return the counted line, the differences that are worth reading, and the command that prints all."""
    counts = {"nodes": values["trainer.nnodes"], "devices": values["trainer.n_gpus_per_node"]}
    several = any(isinstance(count, int) and count > 1 for count in counts.values())
    texts = {"nodes_note": DIALECT.table["trainer.nnodes"].note, "whole": command("config", "from-verl", *words)}
    about = {"translation": translation, "reading": reading, "checkers": checker_notes(values), "several": several}
    return rendered("verl.j2", **about, **counts, **texts, command=command, short=_short).splitlines()


def _short(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 60 else shown(value)
