"""Equal work gives equal bits wherever its operands lie; what bits depend on is recorded, and a change is said."""

import itertools
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from oncurve.machine.fingerprint import LIBRARY_SETTINGS, digest_of_sample_results, library_settings
from oncurve.run.directory.folder import FOR_THE_READER, describe_environment, environment_changes

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
SHAPES = [(1, 64, 200), (5, 37, 3), (7, 32, 61), (33, 32, 96), (64, 64, 64), (130, 129, 131), (1, 896, 896)]
HEADS = [((2, 4, 7, 8), 7), ((2, 2, 33, 16), 40), ((1, 4, 1, 64), 50), ((3, 2, 5, 8), 130)]
OFFSETS = (0, 4, 8, 16, 32, 48)
"""Bytes past a multiple of 64, where torch lets its own tensors begin."""


def lying_at(tensor, offset):
    """The same numbers, from the next multiple of the element's size at least `offset` bytes past a multiple of 64."""
    size = tensor.element_size()
    room = torch.empty(tensor.numel() + 128 // size, dtype=tensor.dtype)
    start = (-room.data_ptr() % 64 + -(-offset // size) * size) // size
    return room[start : start + tensor.numel()].view(tensor.shape).copy_(tensor).requires_grad_()


def numbers(*shape, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def value_and_gradients(function, operands):
    """The result as bits, and the gradients of its sum of squares."""
    result = function(*operands)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), operands)]


def assert_the_same_anywhere(function, operands):
    wanted = value_and_gradients(function, [lying_at(operand, 0) for operand in operands])
    for number, offset in itertools.product(range(len(operands)), OFFSETS):
        placed = [lying_at(operand, offset if i == number else 0) for i, operand in enumerate(operands)]
        together = [lying_at(operand, offset) for operand in operands]
        for found in (value_and_gradients(function, placed), value_and_gradients(function, together)):
            assert all(torch.equal(*pair) for pair in zip(wanted, found, strict=True)), (number, offset)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_does_not_depend_on_where_its_operands_lie(shape, dtype):
    rows, inner, columns = shape
    assert_the_same_anywhere(F.linear, [numbers(rows, inner, dtype=dtype), numbers(columns, inner, dtype=dtype)])


@DTYPES
@pytest.mark.parametrize(("queries", "keys"), HEADS, ids=str)
def test_attention_does_not_depend_on_where_its_operands_lie(queries, keys, dtype):
    batch, heads, _, size = queries
    rest = [numbers(batch, heads, keys, size, dtype=dtype) for _ in range(2)]
    mask = (torch.arange(keys) <= torch.arange(queries[2])[:, None] + keys // 2)[None, None]
    assert_the_same_anywhere(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), [numbers(*queries, dtype=dtype), *rest]
    )


PROCESS = """
import oncurve, os
print(os.environ["MKL_CBWR"])
import torch
torch.set_num_threads({threads})
from oncurve.machine.fingerprint import digest_of_sample_results, library_settings
print(library_settings())
print(digest_of_sample_results())
"""


def said_by_another_process(**settings):
    kept = {name: value for name, value in os.environ.items() if name not in LIBRARY_SETTINGS}
    script = PROCESS.format(threads=torch.get_num_threads())
    return subprocess.run(
        [sys.executable, "-c", script], env=kept | settings, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other names for what they can do")
@pytest.mark.slow
def test_another_instruction_set_shows_in_what_is_recorded():
    other = "avx2" if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else "default"
    chosen, settings, digest = said_by_another_process(MKL_CBWR="COMPATIBLE", ATEN_CPU_CAPABILITY=other)
    assert chosen == "COMPATIBLE"  # a setting of the user's stands
    assert settings == f"ATEN_CPU_CAPABILITY={other} MKL_CBWR=COMPATIBLE"
    assert digest != digest_of_sample_results()
    here = describe_environment("cpu")
    lines = environment_changes(here, here | {"library_settings": settings, "sample_results": digest})
    assert lines == [
        f"library_settings was {library_settings()!r} and is {settings!r}",
        f"sample_results was {digest_of_sample_results()!r} and is {digest!r}",
    ]


def test_what_exactness_depends_on_is_recorded_and_what_was_not_is_passed_over():
    here = describe_environment("cpu")
    assert environment_changes(here, dict(here)) == []
    for key in here.keys() - FOR_THE_READER:
        assert len(environment_changes(here, here | {key: "another"})) == 1
        assert environment_changes({k: v for k, v in here.items() if k != key}, here) == []
