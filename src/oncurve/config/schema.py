"""The schema of a configuration file: its sections, and the components that each section may select."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from oncurve.base.errors import ConfigError, noted, refuse, suggest
from oncurve.base.hints import word_for
from oncurve.components import Component, build, validated
from oncurve.rewards import REWARD_KINDS, check_reward, kind_meant

IN_MEMORY = "in-memory:"
"""Begins what a resolved file holds in place of an object that has no path."""

Config = TypeVar("Config", bound=Component)


@dataclass(frozen=True)
class Section:
    """The components that a section of the file may be, by kind. `default` is the kind meant when `kind` is left out.

    Without a `default` there is one component and nothing to choose: `kind` is no key of the section. `check` says what
    is wrong with a component, which may be a class of the user's; None: nothing. `meant` is the kind of a table that
    has keys and no `kind`; None: the default. A `kind` that is a path to code means the kind `path_kind` with this
    `path`, where that is set: its code is imported in workers alone.
    """

    kinds: Mapping[str, type[Component]]
    default: str | None = None
    check: Callable[[object], str | None] = lambda component: None
    meant: Callable[[Mapping[str, Any]], str | None] = lambda table: None
    path_kind: str | None = None

    def kind_in(self, table: Any) -> Any:
        """Return the kind of a table: as it says, or else as its keys mean, or else the default."""
        if not isinstance(table, Mapping):
            return self.default
        return table.get("kind", self.meant(table) or self.default)


@dataclass(frozen=True)
class Schema(Generic[Config]):
    """A kind of recipe: the configuration that it makes, a field a section.

    `chosen` are the sections with a choice of kinds; each other one is a component of the field's type. `rewards` is a
    list of tables, where the configuration has such a field. `command`: what takes such a recipe.
    """

    config: type[Config]
    chosen: Mapping[str, Section]
    command: str = "train"

    @cached_property
    def sections(self) -> dict[str, Section]:
        """Sections by name; `rewards`, a list of tables, is none."""
        types: dict[str, Any] = {name: field.annotation for name, field in self.config.model_fields.items()}
        found = {name: self.chosen.get(name) or Section({cls.__name__: cls}) for name, cls in types.items()}
        return {name: section for name, section in found.items() if name != "rewards"}

    @property
    def names(self) -> list[str]:
        """All sections."""
        return [*self.sections, *(["rewards"] if "rewards" in self.config.model_fields else [])]

    def build(self, tables: Mapping[str, Any]) -> Config:
        """Return the configuration that nested tables describe; sections left out have their defaults.

        Raises ConfigError with a line for everything that is wrong, in all sections.
        """
        built: dict[str, Any] = {}
        problems: list[str] = []
        for name, table in tables.items():
            with noted(problems):
                _refuse_lost_objects(name, table)
                built[name] = self._section(name, table)
        refuse(problems)
        return validated(self.config, built, "")

    def _section(self, name: str, table: Any) -> Component | tuple[Component, ...]:
        if name == "rewards" and name in self.names:
            return _build_rewards(table)
        if name not in self.sections:
            leaves = [key for key in _leaves(name, table) if key != name and word_for(key) is not None]
            raise ConfigError("\n".join(f"{key}: {self.unknown(key)}" for key in leaves or [name]))
        section = self.sections[name]
        if isinstance(table, Mapping) and "kind" in table and section.default is None:
            raise ConfigError(f"{name}.kind: unknown key; there is only one kind of [{name}]")
        component = build(table, section.kinds, name, section.kind_in(table))
        _refuse(section.check(component), name)
        return component

    def unknown(self, key: str) -> str:
        """Return the error for `key`, dotted or not, which is neither a section nor a setting of one."""
        *sections, name = key.lstrip("+~").split(".")
        word = word_for(key)
        if word is not None and all(self.knows(meant) for meant in word.keys):
            others = [] if sections else [owner for owner in self.owners(name) if owner not in word.keys]
            meant = " or ".join([str(word), *others])
            return f"unknown key; did you mean {meant}?" if word.keys else f"unknown key; {word}"
        owners = self.owners(name)
        if ".".join([*sections, name]) in owners:
            table = f"settings={{{sections[0]!r}: {{{name!r}: ...}}}}"
            return f"one key with a dot in it; a setting stands in its section: [{sections[0]}], in Python {table}"
        if owners:
            return f"a setting stands in its section; did you mean {' or '.join(owners)}?"
        if sections:
            return "settings have two parts, section.key"
        return "unknown section" + (suggest(name, self.names) or f"; the sections are: {', '.join(self.names)}")

    def owners(self, name: str) -> list[str]:
        """Return the settings that are called `name`, each with its section."""
        tables = {owner: section.kinds.values() for owner, section in self.sections.items()}
        return [owner + "." + name for owner, kinds in tables.items() if any(name in cls.model_fields for cls in kinds)]

    def knows(self, key: str) -> bool:
        """Return whether `key` is a setting: `section.key`, `section.kind` where there is a choice, or
        `rewards.0.key`.
        """
        section, _, name = key.partition(".")
        if section == "rewards":
            kinds = REWARD_KINDS.values() if "rewards" in self.names else ()
            return any(name.partition(".")[2] in cls.model_fields for cls in kinds)
        chosen = section in self.sections and self.sections[section].default is not None
        return key in self.owners(name) or (name == "kind" and chosen)


def _leaves(name: str, table: Any) -> list[str]:
    """Return the dotted keys of a nested table, and `name` itself where it is none."""
    if not isinstance(table, Mapping) or not table:
        return [name]
    return [leaf for key, inner in table.items() for leaf in _leaves(f"{name}.{key}", inner)]


def _build_rewards(table: Any) -> tuple[Component, ...]:
    if isinstance(table, (str, Mapping)) or not isinstance(table, Sequence):
        raise ConfigError(
            "rewards: expected a list of tables; write each as [[rewards]], with two brackets; on the command line "
            "--reward math, or \"rewards=[{kind='math'}]\", with all of its quotes"
        )
    rewards = [build(item, REWARD_KINDS, f"rewards.{index}", kind_meant(item)) for index, item in enumerate(table)]
    for index, reward in enumerate(rewards):
        _refuse(check_reward(reward), f"rewards.{index}")
    return tuple(rewards)


def _refuse(problem: str | None, where: str) -> None:
    """Raises ConfigError where there is a problem with the kind of a table."""
    if problem is not None:
        raise ConfigError(f"{where}.kind: {problem}")


_BY_PATH = {"function": "path", "classes": "path", "functions": "tools"}


def _refuse_lost_objects(name: str, table: Any) -> None:
    for part in table if isinstance(table, list) else [table]:
        for key, given in part.items() if isinstance(part, Mapping) else ():
            several = given.values() if isinstance(given, Mapping) else given if isinstance(given, list) else [given]
            value = next(iter(several), None)
            if isinstance(value, str) and value.startswith(IN_MEMORY):
                what = value.removeprefix(IN_MEMORY)
                fix = f", or write {_BY_PATH.get(key, key)} = 'file.py:{what}' here, and add --trust"
                raise ConfigError(
                    f"{name}.{key}: {what} was an object in Python, which no file can hold; give it again "
                    f"(oncurve.resume){fix * ('<' not in what)}"
                )
