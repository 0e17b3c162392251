"""What checks the shapes in the signatures of the pure rooms while the tests run (see `conftest.py`).

Half of the rooms' tests is calls of a few small tensors, so a check may cost no more than they: a signature is read
once, and a call compares tuples of numbers. jaxtyping's own hook reads the signature at every call, and checks each
argument twice.
"""

import ast
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any, Union, get_args, get_origin

import torch
from torch import Tensor

ROOMS = ("types", "ops", "kl", "batching", "advantages", "losses")
Sizes = dict[str, Any]
Fits = Callable[[Any, Sizes], bool]
disabled = False
"""Whether shapes are words only, as they are for users."""


class ShapeError(TypeError):
    """A tensor of another shape or dtype than the signature states."""


class Finder:
    """Finds the modules of the rooms before others do, and has their functions and dataclasses `checked`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not any(f"{name}.".startswith(f"oncurve.{room}.") for room in ROOMS):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__checked__"] = checked
        super().exec_module(module)

    def get_code(self, fullname: str) -> types.CodeType:
        """The module's code with a decorator more; not that of `__pycache__`, nor kept there."""
        tree = ast.parse(self.get_data(self.path), self.path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                node.decorator_list.append(ast.copy_location(ast.Name("__checked__", ast.Load()), node))
            elif isinstance(node, ast.ClassDef):
                node.decorator_list.insert(0, ast.copy_location(ast.Name("__checked__", ast.Load()), node))
        return compile(tree, self.path, "exec", dont_inherit=True)


def checked(what: Any) -> Any:
    """A function, or a dataclass, that refuses tensors of other shapes and dtypes than it states; its other types are
    mypy's."""
    if isinstance(what, type):
        if is_dataclass(what):
            what.__init__ = checked(what.__init__)  # type: ignore[misc]
        return what
    stated = {name: hint for name, hint in what.__annotations__.items() if "[Tensor, '" in str(hint)}
    if not stated or hasattr(what, "__wrapped__"):
        return what
    parameters = inspect.signature(what).parameters
    names = tuple(parameters)
    numbers = {name: each.default for name, each in parameters.items() if type(each.default) is int}
    checks: dict[str, Fits] = {}

    @wraps(what)
    def within(*arguments: Any, **named: Any) -> Any:
        if disabled:
            return what(*arguments, **named)
        if not checks:  # at the first call: a hint may name a class that follows its function
            checks.update((name, _fits(_read(hint, what.__globals__))) for name, hint in stated.items())
        given = {**dict(zip(names, arguments, strict=False)), **named}
        sizes: Sizes = {f"{{{name}}}": value for name, value in {**numbers, **given}.items() if type(value) is int}
        for name, fits in checks.items():
            if name in given and not fits(given[name], sizes):
                raise ShapeError(_said(what, name, given[name], stated[name], sizes))
        result = what(*arguments, **named)
        if "return" in checks and not checks["return"](result, sizes):
            raise ShapeError(_said(what, "return", result, stated["return"], sizes))
        return result

    return within


def _read(hint: Any, names: dict[str, Any]) -> Any:
    return eval(hint, names) if isinstance(hint, str) else hint  # noqa: S307 - an annotation of ours


def _fits(hint: Any) -> Fits:
    """Whether a value is what `hint` says; the sizes of the axes that it names are kept, and must be the same later."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _any([_fits(each) for each in inner])
    if origin is tuple and inner[-1] is Ellipsis:
        each = _fits(inner[0])
        return lambda value, sizes: isinstance(value, tuple) and all(each(one, sizes) for one in value)
    if origin is tuple:
        parts = [_fits(part) for part in inner]
        return lambda value, sizes: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(fits(one, sizes) for fits, one in zip(parts, value, strict=True))
        )
    if origin in (Mapping, dict):
        each = _fits(inner[1])
        return lambda value, sizes: isinstance(value, Mapping) and all(each(one, sizes) for one in value.values())
    if hasattr(hint, "dim_str"):
        return _tensor({getattr(torch, name, None) for name in hint.dtypes}, hint.dim_str.split())
    if not isinstance(hint, type):
        raise TypeError(f"{hint}: this kind of hint is not checked yet")
    return lambda value, sizes: isinstance(value, hint)


def _any(choices: list[Fits]) -> Fits:
    return lambda value, sizes: any(fits(value, sizes) for fits in choices)


def _tensor(dtypes: set[Any], axes: list[str]) -> Fits:
    """`B T`: an axis of a name has one size in a call; `{groups}` is an argument; `*shape`, at the front, and `...` are
    any number of axes; `_` is of any size."""
    many = axes[0] if axes and (axes[0].startswith("*") or axes[0] == "...") else None
    single = axes[1:] if many else axes

    def fits(value: Any, sizes: Sizes) -> bool:
        if not isinstance(value, Tensor) or value.dtype not in dtypes:
            return False
        shape = value.shape
        front = len(shape) - len(single)
        if front < 0 or (front and not many):
            return False
        if many and many != "..." and sizes.setdefault(many, shape[:front]) != shape[:front]:
            return False
        return all(
            axis == "_" or (int(axis) if axis.isdigit() else sizes.setdefault(axis, size)) == size
            for axis, size in zip(single, shape[front:], strict=True)
        )

    return fits


def _said(what: Any, name: str, value: Any, hint: Any, sizes: Sizes) -> str:
    shown = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    return f"{what.__module__}.{what.__qualname__}: {name} is {shown}, not {hint}; sizes so far: {sizes}"


def install() -> None:
    """Check the rooms' modules that are imported from now on."""
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
