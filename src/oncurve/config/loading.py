"""From a recipe and a command line to a `RunConfig`, and back to a file.

    class defaults  <  what the recipe extends  <  the recipe  <  what Python code says  <  the command line

Covered: strict keys with near names; impossible combinations; keys that the same layer made meaningless.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from oncurve.base.errors import ConfigError, command, shown
from oncurve.base.imports import looking
from oncurve.base.output import complain
from oncurve.base.paths import working_directory
from oncurve.components import Component, component_class, kind_of, leaf_types, nested_in
from oncurve.config.layers import Layer, from_mapping, from_overrides, read_layers
from oncurve.config.rules.combinations import check_config, check_inert
from oncurve.config.schema import IN_MEMORY, Config, Schema, Section
from oncurve.config.sections import RUN, RunConfig
from oncurve.config.trust import brought, check_trust
from oncurve.reward_models import REWARD_EXAMPLE_KINDS
from oncurve.rewards import REWARD_KINDS

EXAMPLE_NAMES = tuple(REWARD_EXAMPLE_KINDS)
"""Kinds of data that a reward model is trained on."""

HEADER = "# The resolved configuration: every setting of the run. `oncurve {command}` takes this file as a recipe.\n"


def load_config(
    recipe: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    settings: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, Path]:
    """Return the configuration of a recipe (file, run directory or preset's name; None: the class defaults), and its
    folder.

    `settings` are nested tables from Python, whose values may be components and objects; `overrides` are words like
    `"kl.coef=0.01"`. Paths in them are relative to the working directory, paths in a recipe to the recipe's folder.

    The keys that a run needs and a preset lacks (`model.path`, data, rewards) may be missing: `missing(config)` names
    them.
    Raises ConfigError for everything else that is wrong.
    """
    config, folder, layers = load(RUN, recipe, overrides, settings)
    if not any(True for _ in unread(config)):
        check_config(config)
        check_inert(config, layers)
    return config, folder


def load(
    schema: Schema[Config],
    recipe: str | Path | None = None,
    overrides: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> tuple[Config, Path, list[Layer]]:
    """Return a configuration of any schema, its recipe's folder, and the layers it was made of; see `load_config`."""
    here = working_directory()
    top, extends = from_overrides(overrides, here)
    layers, folder = read_layers(recipe, extends)
    if not looking():
        check_trust(layers)
    if settings:
        layers.append(from_mapping(settings, "the arguments", here))
    layers.append(top)
    said = [assignment for layer in layers for assignment in layer.assignments]
    if schema is RUN and any(path == ("data", "kind") and kind in EXAMPLE_NAMES for path, kind in said):
        does, made = command("reward-model", "train", recipe or "RECIPE"), folder / "model"
        if made.is_dir():
            raise ConfigError(f"{folder}: the training of a reward model, not of a policy; its model is {made}")
        raise ConfigError(f"{recipe}: a recipe for training a reward model, not a policy; it is taken by: {does}")
    tables = merge(layers, schema)
    try:
        config = schema.build(tables)
        for line in unread(config):
            complain(line)
        return config, folder, layers
    except ConfigError as error:
        raise ConfigError("\n".join(_placed(line, layers) for line in str(error).split("\n"))) from None


def unread(config: Component) -> Iterator[str]:
    """Yield a line for each component whose code was not imported, because a command only looks."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        parts = value if isinstance(value, tuple) else (value,)
        for part in (inner for each in parts for inner in (each, *nested_in(each))):
            if part.unread is not None:
                stands_in = type(part).__mro__[1].__name__
                yield (
                    f"{name}: {part.unread} was not imported, since this command runs no code: what is said of it "
                    f"is said of {stands_in}"
                )


_PLACE = re.compile(r"[\w.-]+(?=: )")


def _placed(line: str, layers: Sequence[Layer]) -> str:
    """Return a complaint about `section.key`, with the layer that said it last: a file, or the command line."""
    place = _PLACE.match(line)
    key = f"{place[0]}." if place is not None else ""
    for layer in reversed(layers):
        said = [".".join(map(str, path)) + "." for path, _ in layer.assignments]
        if key and any(key.startswith(path) or path.startswith(key) for path in said):
            return f"{line} ({layer.name})"
    return line


def merge(layers: Sequence[Layer], schema: Schema[Any] = RUN) -> dict[str, Any]:
    """Nested tables with the assignments of all layers, later ones winning.

    `rewards` is replaced as a whole, `rewards.0.weight` changes one item of what stands there. When a layer
    changes a section's kind, values of lower layers are kept for those fields that the new kind has with the same type.
    Raises ConfigError: a key that is not of depth 2, an item that does not exist.
    """
    tables: dict[str, Any] = {}
    for layer in layers:
        _drop_rivals(tables, layer)
        told = [each for path, value in layer.assignments for each in _code_as_path(path, value, schema)]
        for path, value in sorted(told, key=lambda assignment: assignment[0][1:] != ("kind",)):
            try:
                _assign(tables, path, value, schema)
            except ConfigError as error:
                raise ConfigError(f"{error} ({layer.name})") from None
    return tables


def _code_as_path(
    path: tuple[str | int, ...], value: Any, schema: Schema[Any]
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield an assignment; two in place of a `kind` that is a path to code, where that code runs in workers alone."""
    section = schema.sections.get(str(path[0]))
    if section is None or section.path_kind is None or path[1:] != ("kind",) or ":" not in str(value):
        yield path, value
    else:
        yield path, section.path_kind
        yield (path[0], "path"), value


RIVALS = (("run.steps", "run.epochs"), ("learner.warmup_steps", "learner.warmup_ratio"), ("sft.steps", "sft.epochs"))
"""Keys of which one says what the other would: the later layer's counts."""


def _drop_rivals(tables: dict[str, Any], layer: Layer) -> None:
    """Take what lower layers say by the one key out of `tables`, where this layer uses the other.

    Raises ConfigError: it uses both.
    """
    said = {".".join(map(str, path)): value for path, value in layer.assignments if not layer.complete}
    for pair in RIVALS:
        used = [key for key in pair if said.get(key) is not None]
        if len(used) == 2:
            raise ConfigError(f"{pair[1]}: {pair[0]} says it in another way; leave one of them out ({layer.name})")
        for rival in pair if used else ():
            section, _, name = rival.partition(".")
            tables[section] = {key: value for key, value in tables.get(section, {}).items() if key != name}


def _is_table(kinds: Mapping[str, type[Component]], key: str) -> bool:
    """Return whether a setting is a table, so that a third part of a key changes one entry: `data.columns.prompt=q`."""
    fields = [cls.model_fields[key] for cls in kinds.values() if key in cls.model_fields]
    return any(key in cls.nested for cls in kinds.values()) or any(
        leaf_types(field.annotation) & {dict, Mapping} for field in fields
    )


def _assign(tables: dict[str, Any], path: tuple[str | int, ...], value: Any, schema: Schema[Any]) -> None:
    section, keys, sections = str(path[0]), path[1:], schema.sections
    if not keys:
        if isinstance(value, Component) and section in sections:
            table = component_table(value, sections[section].kinds)
            chosen = sections[section].default is not None  # else there is one kind, and the key is unknown
            value = {key: inner for key, inner in table.items() if key != "kind" or chosen}
        tables[section] = value
    elif section == "rewards":
        _assign_reward(tables, keys, value)
    elif len(keys) == 2 and section in sections and _is_table(sections[section].kinds, str(keys[0])):
        told = tables.get(section, {}).get(str(keys[0]))
        _assign(tables, path[:2], {**(told if isinstance(told, Mapping) else {}), str(keys[1]): value}, schema)
    elif len(keys) == 1:
        if not isinstance(tables.get(section, {}), Mapping):
            raise ConfigError(f"{section}: expected a table of settings, got {shown(tables[section])}")
        table = tables.get(section, {})
        kept = _kept(sections.get(section), section, table, value) if keys == ("kind",) else table
        tables[section] = {**kept, str(keys[0]): value}
    else:
        key = ".".join(map(str, path))
        raise ConfigError(f"{key}: {schema.unknown(key)}")


def _assign_reward(tables: dict[str, Any], keys: tuple[str | int, ...], value: Any) -> None:
    index, *rest = keys
    items = [
        component_table(item, REWARD_KINDS) if isinstance(item, Component) else item
        for item in tables.get("rewards", ())
    ]
    where = f"rewards.{'.'.join(map(str, keys))}"
    if isinstance(index, int) and index < len(items) and len(rest) == 2 and _is_table(REWARD_KINDS, str(rest[0])):
        told = items[index].get(str(rest[0]), {})
        rest, value = rest[:1], {**told, str(rest[1]): value}
    if not isinstance(index, int) or len(rest) > 1:
        raise ConfigError(
            f"{where}: rewards are a list; in a file write [[rewards]], with two brackets; "
            "on the command line write rewards.0.weight=2, or 'rewards=[{kind=\"math\"}]'"
        )
    if index == len(items) and rest == ["kind"]:
        items.append({})
    if index >= len(items):
        there = {0: "is no reward", 1: "is 1 reward"}.get(len(items), f"are {len(items)} rewards")
        raise ConfigError(f"{where}: there {there}; the first is 0, and rewards.{len(items)}.kind=... adds one")
    items[index] = {**items[index], str(rest[0]): value} if rest else value
    tables["rewards"] = items


def _kept(known: Section | None, section: str, table: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the part of the lower layers' `table` that holds when its kind becomes `kind`: keys of one name and type.

    A class of the user's may have a field that is called like one of the replaced kind and is something else.
    """
    if known is None or known.default is None or known.kind_in(table) == kind:
        return dict(table)
    if looking() and isinstance(kind, str) and ":" in kind:
        return {}
    fields = component_class(kind, known.kinds, section).model_fields
    replaced = known.kinds.get(known.kind_in(table))
    before = replaced.model_fields if replaced is not None else {}
    return {
        key: value
        for key, value in table.items()
        if key in fields and (key not in before or before[key].annotation == fields[key].annotation)
    }


def to_toml(config: Component, schema: Schema[Any] = RUN) -> str:
    """Return the whole configuration as TOML that `load_config` reads back to the same; what is None is left out.

    An object that has no path is written as `in-memory:name`, which loads only where it is given again.
    """
    return HEADER.format(command=schema.command) + tomli_w.dumps({"resolved": True, **to_tables(config, schema)})


def to_tables(config: Component, schema: Schema[Any] = RUN, nones: bool = False) -> dict[str, Any]:
    """Return the whole configuration as nested tables of TOML values, sections in their order. None is left out, unless
    with `nones`.
    """
    tables: dict[str, Any] = {}
    for name in schema.config.model_fields:
        value = getattr(config, name)
        if name == "rewards":
            tables[name] = [component_table(item, REWARD_KINDS, _plain, nones) for item in value]
        else:
            section = schema.sections[name]
            table = component_table(value, section.kinds, _plain, nones)
            tables[name] = {key: inner for key, inner in table.items() if key != "kind" or section.default is not None}
    return tables


def brought_by(config: Component) -> list[str]:
    """Return what a loaded configuration brings, as `brought` has that of its file."""
    return brought([((section,), table) for section, table in to_tables(config).items()])


def default_tables(config: Component, schema: Schema[Any] = RUN) -> dict[str, Any]:
    """Return the tables, with nones, of a configuration that has components of the same kinds and all their keys at
    their defaults; a key without a default has its value.
    """
    defaults = {
        name: [_at_defaults(each) for each in part] if name == "rewards" else _at_defaults(part)
        for name, part in config
    }
    return to_tables(config.model_copy(update=defaults), schema, nones=True)


def _at_defaults(component: Component) -> Component:
    fields = type(component).model_fields.items()
    found = {key: field.get_default(call_default_factory=True) for key, field in fields if not field.is_required()}
    inner = {key: value for key in component.nested if (value := getattr(component, key)) is not None}
    return component.model_copy(update=found | {key: _at_defaults(value) for key, value in inner.items()})


def component_table(
    component: Component,
    kinds: Mapping[str, type[Component]],
    plain: Callable[[Any], Any] = lambda value: value,
    nones: bool = False,
) -> dict[str, Any]:
    """Return the table that `spec.build` would make this component of; values go through `plain`.

    None is `"none"` where it is not the default (TOML has no null), and else left out, or None with `nones`.
    """
    table: dict[str, Any] = {"kind": kind_of(component, kinds)}
    if component.unread is not None:
        return table | {key: plain(value) for key, value in component.given.items()}
    for key, field in type(component).model_fields.items():
        value = getattr(component, key)
        if value is not None and key in component.nested:
            table[key] = component_table(value, kinds, plain, nones)
        elif value is not None:
            table[key] = plain(value)
        elif field.default is not None:
            table[key] = "none"
        elif nones:
            table[key] = None
    return table


def _plain(value: Any) -> Any:
    """Return a value as TOML has it."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Component):
        return {key: _plain(getattr(value, key)) for key in type(value).model_fields if getattr(value, key) is not None}
    return f"{IN_MEMORY}{getattr(value, '__qualname__', type(value).__name__)}"
