"""The pure rooms state the shapes of their tensors in their signatures; the tests check them, users pay nothing."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes.shapes import ROOMS, ShapeError
from fakes.sources import tree_of
from oncurve import ops
from oncurve.advantages import gae, group_advantages
from oncurve.batching import collate
from oncurve.losses import TokenMean
from oncurve.types import Completion, Group, Prompt, Score, TokenStats, TrainBatch

SOURCE = Path(__file__).resolve().parents[2] / "src" / "oncurve"


def modules() -> Iterator[str]:
    for room in ROOMS:
        yield room
        if (SOURCE / room).is_dir():
            yield from (f"{room}.{module.name}" for module in pkgutil.iter_modules([str(SOURCE / room)]))


def bare_tensors(annotation: ast.expr | None) -> bool:
    """Whether a `Tensor` stands there without a shape: outside `Float[Tensor, "B T"]` and its like."""
    if annotation is None:
        return False
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("Float", "Int", "Bool", "Num"):
        return False
    if isinstance(annotation, ast.Name):
        return annotation.id == "Tensor"
    children = ast.iter_child_nodes(annotation)
    return any(bare_tensors(child) for child in children if isinstance(child, ast.expr))


def public_functions(module: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions and methods of a module that others call, by their names within it."""
    folder = SOURCE / Path(*module.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    tree = tree_of(path.read_text(encoding="utf-8"))
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in inside:
            if not isinstance(function, ast.FunctionDef) or owner.startswith("_"):
                continue
            if not function.name.startswith("_") or function.name == "__call__":
                yield owner + function.name, function


def test_every_public_function_states_the_shapes_of_its_tensors() -> None:
    bare = []
    for module, (name, function) in ((room, found) for room in modules() for found in public_functions(room)):
        parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        bare += [(module, name, each.arg) for each in parameters if bare_tensors(each.annotation)]
        bare += [(module, name, "returns")] if bare_tensors(function.returns) else []
    assert bare == [], 'they need Float[Tensor, "B T"]'


def test_fields_of_the_batch_state_the_shape_that_their_axes_say() -> None:
    dimensions = {"BT": "B T", "B": "B", "BS": "B S", "BK": "B K", "NH": "N H", "G": "_", "R": "_"}
    for name, field in TrainBatch.__dataclass_fields__.items():
        assert f"[Tensor, {dimensions[field.metadata['axes']]!r}]" in str(field.type), name


def batch() -> TrainBatch:
    completions = (Completion((1, 2), "", (-1.0, -1.0), "eos", 0, 0), Completion((3,), "", (-1.0,), "eos", 1, 0))
    return collate([Group(Prompt(0, "", (1,)), completions, (Score(1.0), Score(0.0)))])


x, mask, ids = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
valid = ids == 0
WRONG: list[Callable[[], object]] = [
    lambda: ops.masked_mean(x, mask[:, :2]),
    lambda: gae(x, x, mask, 1.0, 0.95, torch.zeros(3)),
    lambda: group_advantages(x[:, 0], valid[:1], ids),
    lambda: TokenStats(x, entropy=x[0]),
    lambda: batch().having(values=torch.zeros(2, 1)),
    lambda: batch().having(truncated=torch.zeros(2)),
]


@pytest.mark.parametrize("call", WRONG, ids=[inspect.getsource(call).strip() for call in WRONG])
def test_a_wrong_shape_or_dtype_is_refused_while_tests_run(call: Callable[[], object]) -> None:
    with pytest.raises(ShapeError, match=r" not .*\b(Float|Int|Bool|Num)\[Tensor, "):
        call()


def test_a_result_of_a_wrong_shape_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def flattened(loss_mask: Tensor) -> Tensor:
        return loss_mask.flatten().double()

    monkeypatch.setattr("oncurve.losses.aggregate.token_mean_weights", flattened)
    with pytest.raises(ShapeError, match="return"):
        TokenMean()(batch())


def test_every_function_of_the_rooms_is_checked() -> None:
    wrong = []
    for module, (name, _) in ((room, found) for room in modules() for found in public_functions(room)):
        loaded = importlib.import_module(f"oncurve.{module}")
        owner, _, method = name.rpartition(".")
        found = vars(getattr(loaded, owner) if owner else loaded)[method]
        found = getattr(found, "fget", getattr(found, "__func__", found))  # of a property, of a class method
        stated = any("[Tensor, '" in str(hint) for hint in found.__annotations__.values())
        if (found.__code__.co_name == "within") != stated:
            wrong.append(f"{module}.{name}")
    assert wrong == []


@pytest.mark.slow
def test_outside_the_tests_nothing_is_checked_and_nothing_more_is_imported() -> None:
    code = """
import sys, oncurve
assert "jaxtyping" not in sys.modules and "torch" not in sys.modules
import torch
from oncurve.kl import k3
assert k3.__code__.co_filename.endswith("kl.py"), "the function itself"
assert k3(torch.zeros(2, 3), torch.zeros(1, 3)).shape == (2, 3)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
