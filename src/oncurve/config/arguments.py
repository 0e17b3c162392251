"""Arguments of the Python API as settings.

`tables_of` merges arguments with `settings` and refuses a setting that both give. `explains_arguments` answers
an argument that a function does not have with the one that it has, or with the setting.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, get_args, get_origin, get_type_hints

from oncurve.base.errors import ConfigError, suggest
from oncurve.base.hints import word_for
from oncurve.config.sections import RUN

P = ParamSpec("P")
R = TypeVar("R")


class ArgumentError(ConfigError, TypeError):
    """A function was given an argument that it does not have; a TypeError too, as Python's own is."""


def tables_of(arguments: Mapping[str, Any], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return nested tables of settings from `arguments`, which are settings by key, and from `settings`, nested or not.

    Example: `tables_of({"run.seed": 7}, {"kl.coef": 0.01})` is `{"kl": {"coef": 0.01}, "run": {"seed": 7}}`.

    Raises ConfigError: a setting is given twice, or `settings` is no mapping.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"settings: expected nested tables like {{'kl': {{'coef': 0.01}}}}, got {settings!r:.60}")
    whole_first = sorted((settings or {}).items(), key=lambda item: "." in str(item[0]))
    tables: dict[str, Any] = {}
    for name, value in (*whole_first, *arguments.items()):
        section, _, key = str(name).partition(".")
        table = tables.setdefault(section, {}) if key else tables
        if not isinstance(table, dict) or (key or section) in table:
            raise ConfigError(f"{name}: given twice, by arguments or settings; leave one of them out")
        table[key or section] = dict(value) if isinstance(value, Mapping) and not key else value
    return tables


def check_argument_names(
    function: str, given: Iterable[str], known: Iterable[str], of: Mapping[str, str], own: Mapping[str, str]
) -> None:
    """Raises ArgumentError for the first of `given` that is not `known`, with what to write in its place.

    `of`: the argument that a setting is, by key; `own`: other names of this function's arguments.
    """
    for name in given:
        if name not in set(known):
            raise ArgumentError(f"{function}() has no argument {name!r}{_answer(name, list(known), of, own)}")


def _answer(name: str, known: list[str], of: Mapping[str, str], own: Mapping[str, str]) -> str:
    if name in own:
        return f"; did you mean {own[name]}?"
    word = word_for(name)
    keys = list(word.keys) if word is not None else RUN.owners(name)
    arguments = list(dict.fromkeys(of[key] for key in keys if key in of))
    if arguments:
        return f"; did you mean {' or '.join(arguments)}?"
    if keys:
        written = " or ".join(_as_settings(key) for key in keys)
        return f"; write {written}" + (f": {word.note}" if word is not None and word.note else "")
    if word is not None:
        return f": {word.note}"
    if name in RUN.names:
        return f"; a section of settings is written settings={{{name!r}: {{...}}}}"
    return suggest(name, known) or f"; its arguments are: {', '.join(known)}"


def _as_settings(key: str) -> str:
    section, _, name = key.partition(".")
    if section == "rewards":
        return f"reward={{'kind': ..., {name.partition('.')[2]!r}: ...}}"
    return f"settings={{{section!r}: {{{name!r}: ...}}}}"


def _with_keywords(function: Callable[..., Any]) -> inspect.Signature:
    """Return the function's signature, `**common: Unpack[Keywords]` as the keywords of that mapping: an editor offers
    them.
    """
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    for hint in get_type_hints(function).values():
        if get_origin(hint) is Unpack:
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
                for name, kind in get_type_hints(get_args(hint)[0]).items()
            ]
    return signature.replace(parameters=parameters)


def explains_arguments(of: Mapping[str, str], own: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: an argument that the function does not have is an ArgumentError; see
    `check_argument_names`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = _with_keywords(function)
        known = list(signature.parameters)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            check_argument_names(function.__name__, kwargs, known, of, own)
            return function(*args, **kwargs)

        called.__signature__ = signature  # type: ignore[attr-defined]
        return called

    return decorate
