"""No module asks for the class of another room's component: it reads what the component says of itself."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from fakes.sources import SOURCE, modules, room, tree_of
from oncurve.components import Component
from oncurve.config import RunConfig
from oncurve.learner import NoCritic
from oncurve.losses import OBJECTIVE_KINDS, Clipped

NOT_EVERYWHERE = ("__main__", ".triton_kernels", ".triton_sums")
FILES = {name: path for name, path in modules(SOURCE / "oncurve").items() if not name.endswith(NOT_EVERYWHERE)}
"""Those with kernels are imported only where Triton is."""


def below(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from below(sub)


def components() -> set[type]:
    """Subclasses of `Component` in oncurve, and what stands in its tables of kinds."""
    modules = [importlib.import_module(name) for name in FILES]
    tables = [table for module in modules for name, table in vars(module).items() if name.endswith("_KINDS")]
    entries = [entry for table in tables if isinstance(table, Mapping) for entry in table.values()]
    found = {*below(Component), *(entry if isinstance(entry, type) else type(entry) for entry in entries)}
    return {cls for cls in found if cls.__module__.startswith("oncurve.")}


COMPONENTS = components()


def names_in(tree: ast.AST, module: Any) -> dict[str, Any]:
    """What each name of a file is: globals of the module, and what functions import."""
    names = dict(vars(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if "triton" in node.module or importlib.util.find_spec(node.module.partition(".")[0]) is None:
                continue
            home = importlib.import_module(node.module)
            names |= {alias.asname or alias.name: getattr(home, alias.name, None) for alias in node.names}
    return names


def classes_in(node: ast.AST, names: Mapping[str, Any]) -> Iterator[type]:
    """The component classes that an expression names: itself, in a tuple, a union, or a table of kinds."""
    for part in ast.walk(node):
        value = None
        if isinstance(part, ast.Name):
            value = names.get(part.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            value = getattr(names.get(part.value.id), part.attr, None)
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value]
        yield from (each for each in values if isinstance(each, type) and each in COMPONENTS)


def is_type_of(node: ast.AST) -> bool:
    """`type(x)` or `x.__class__`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def asked(tree: ast.AST) -> Iterator[ast.AST]:
    """What is compared with the class of something: by isinstance, issubclass, type(x) is, a table by type, a match."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
                yield node.args[1]
        elif isinstance(node, ast.Compare) and any(map(is_type_of, (node.left, *node.comparators))):
            yield node
        elif isinstance(node, ast.MatchClass):
            yield node.cls
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)


def foreign(module: str, source: str) -> list[str]:
    """The classes of other rooms' components that a file asks for."""
    tree = tree_of(source)
    names = names_in(tree, importlib.import_module(module))
    found = [cls for node in asked(tree) for cls in classes_in(node, names)]
    return sorted({cls.__qualname__ for cls in found if room(cls.__module__) != room(module)})


def test_no_module_asks_for_the_class_of_another_rooms_component() -> None:
    found = {module: foreign(module, path.read_text(encoding="utf-8")) for module, path in FILES.items()}
    assert {module: classes for module, classes in found.items() if classes} == {}


def test_the_components_are_found() -> None:
    assert {Clipped, NoCritic, RunConfig, *OBJECTIVE_KINDS.values()} <= COMPONENTS
    assert Component not in COMPONENTS
