"""Statements of a component about itself, and the default where it states nothing.

No room asks for the class of another room's component: it reads one of the component's statements, and a component from
elsewhere makes them as a built-in one does. Each room documents the statements of its components in its `__init__`, and
checks them at load. All kinds of components may have

    describe()    their part of the objective as an `Equation`
    impossible    rules: settings of the component that cannot be together
    inert         rules: keys of the component that its other settings make meaningless
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import getattr_static, signature
from typing import TYPE_CHECKING, Any

from oncurve.base.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Equation:
    """A part of the objective with its numbers filled in. Example: `Equation("1/N Σ_i Σ_t")`.

    term     the part, as the equation has it
    legend   the meaning of its letters. These are explained where a term or legend uses them, and need no entry: i, t,
             N (the trained tokens of an update), B (its completions), G (the completions of a prompt), r_i, Â_it,
             |o_i|, π_θ, π_old, π_ref
    """

    term: str
    legend: Mapping[str, str] = field(default_factory=dict)

    def mentions(self, letter: str) -> bool:
        """Return whether `letter` stands in the term or in what another letter stands for."""
        pattern = re.compile(rf"(?<![A-Za-zΑ-ω_]){re.escape(letter)}(?![A-Za-zΑ-ω_])")
        return any(pattern.search(text) for text in (self.term, *self.legend.values()))


@dataclass(frozen=True)
class Impossible:
    """Settings that cannot be together. `message` names the key, the reason and what to set instead."""

    holds: Callable[[Any], bool]
    message: str


@dataclass(frozen=True)
class Inert:
    """Keys without a meaning where `holds`, because of `causes` (keys as well) and for a `reason`."""

    keys: tuple[str, ...]
    causes: tuple[str, ...]
    holds: Callable[[Any], bool]
    reason: str


def stated(component: object, name: str, default: Any) -> Any:
    """Return a component's statement about its formula; `default` where there is none.

    A statement belongs to the `__call__` next to which it is written: a class that redefines `__call__` does not
    inherit it, and has to make it again.
    """
    for cls in type(component).__mro__:
        if name in vars(cls):
            return getattr(component, name)
        if "__call__" in vars(cls):
            return default
    return default


def described(component: object) -> Equation:
    """Return the component's `describe()`; of one without, its name and settings, and a line that says so."""
    unread: str | None = getattr(component, "unread", None)
    if unread is not None:
        name = unread.rpartition(":")[2]
        return Equation(name, {name: f"{unread}, which this command does not import: it runs no code of a recipe"})
    describe = stated(component, "describe", None)
    if describe is not None:
        equation: Equation = describe()
        return equation
    cls = type(component)
    fields = ", ".join(f"{key}={getattr(component, key)!r}" for key in getattr(cls, "model_fields", ()))
    return Equation(f"{cls.__name__}({fields})", {cls.__name__: "described nowhere: it has no describe() of its own"})


def rules_of(component: object, name: str) -> tuple[Any, ...]:
    """Return the component's own rules, "impossible" or "inert", whose `holds` takes the component; none where it has
    none.
    """
    return tuple(getattr(component, name, ()))


def lacking(component: object, names: Iterable[str], what: str) -> str | None:
    """Return the sentence that a component lacks some of `names` and so is no `what`; None: it has them all.

    No property is computed for that: one may start a process.
    """
    found = [name for name in names if getattr_static(component, name, None) is not None or hasattr(component, name)]
    missing = [name for name in names if name not in found]
    return f"{type(component).__name__} lacks {' and '.join(missing)}, so it is no {what}" if missing else None


def uncallable(component: Any, *arguments: str) -> str | None:
    """Return what is wrong with a component whose `__call__` is given these arguments in their order, or None."""
    try:
        signature(component).bind(*arguments)
    except TypeError as error:
        given = f"({', '.join(arguments)})"
        return f"{type(component).__name__}.__call__ is given {given}, which it does not take: {error}"
    return None


def unflagged(component: object, flags: Iterable[str]) -> str | None:
    """Return what is wrong with a component's `describe()` and the statements that must be True or False, or None."""
    name = type(component).__name__
    for flag in flags:
        value = stated(component, flag, False)
        if not isinstance(value, bool):
            return f"{name}.{flag} is {value!r}; it must be True or False"
    if stated(component, "describe", None) is None:
        return None
    try:
        found: object = described(component)
    except Exception as error:  # a component from elsewhere may raise anything
        return f"{name}.describe() failed: {type(error).__name__}: {error}"
    return None if isinstance(found, Equation) else f"{name}.describe() must return an oncurve.components.Equation"


def check_of(what: str, names: Iterable[str], flags: Iterable[str] = ()) -> Callable[[object], str | None]:
    """Return a check of a component: what is wrong with it as a `what`, which has `names` and may state `flags`."""
    return lambda component: lacking(component, names, what) or unflagged(component, flags)


def check_per_token(found: object, shape: Iterable[int], setting: str, what: str, hint: str = "") -> Tensor:
    """Return what a component returned for `what`, if it is one number per token: a tensor of `shape`, (B, T).

    Raises ConfigError with the setting's name, the shape that was returned, and the hint.
    """
    from torch import Tensor  # here: the module is light, for what reads settings alone

    if isinstance(found, Tensor) and tuple(found.shape) == tuple(shape):
        return found
    given = f"{tuple(found.shape)} {found.dtype}" if isinstance(found, Tensor) else repr(found)[:80]
    raise ConfigError(f"{setting}: {what}, a tensor (B, T), here {tuple(shape)}; it returned {given}{hint}")
