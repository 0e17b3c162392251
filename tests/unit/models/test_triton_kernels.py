"""Triton's kernels against the plain functions: on a GPU where there is one, otherwise in Triton's interpreter.

The interpreter is chosen when Triton is first imported, and has no products in bfloat16.
"""

import os
import sys

import pytest
import torch
from hypothesis import given, settings, strategies as st

from oncurve.models.decode import paged_attention as plain

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    if "triton" in sys.modules and "TRITON_INTERPRET" not in os.environ:
        pytest.skip("Triton has been imported without its interpreter", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")
np = pytest.importorskip("numpy")
if DEVICE == "cpu" and tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4):
    pytest.skip("Triton's interpreter needs numpy < 2.4", allow_module_level=True)

from oncurve.models.decode import triton_kernels as fast  # noqa: E402 - Triton is there, and interprets
from oncurve.rollout import sampler, triton_sums  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
DTYPES = {torch.float32: 1e-5, torch.float16: 5e-3} | ({torch.bfloat16: 4e-2} if DEVICE == "cuda" else {})


@st.composite
def steps(draw):
    """Rows with pages in any order, some shared; what they see begins and ends anywhere."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    page = draw(st.sampled_from([8, 32]))
    size = draw(st.sampled_from([8, 24, 64, 80]))
    heads, shared = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 3, 7, 17]))
    dtype = draw(st.sampled_from(list(DTYPES)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    pages = rows * columns + 1
    table = torch.randint(0, pages, (rows, columns), generator=generator, dtype=torch.int32)
    ends = torch.tensor([draw(st.integers(1, columns * page)) for _ in range(rows)])
    starts = torch.tensor([draw(st.integers(0, int(end) - 1)) for end in ends])
    keys, values = torch.randn(2, pages * page, heads, size, generator=generator).to(dtype)
    query = torch.randn(rows, size, heads * shared, generator=generator).to(dtype).transpose(1, 2)
    return [x.to(DEVICE) for x in (query, keys, values, table, starts, ends)], page


@settings(max_examples=40)
@given(steps(), st.sampled_from([1, 4, 64]))
def test_attention_over_pages_is_that_of_the_plain_function(step, programs):
    tensors, page = step
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fast, "_PROGRAMS", programs)
        got = fast.attend(*tensors, page, 0.3)
    exact = [x.double() if x.is_floating_point() else x for x in tensors]
    close = DTYPES[got.dtype]
    torch.testing.assert_close(got.double(), plain.attend(*exact, page, 0.3), rtol=close, atol=close)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from([8, 24, 64]), st.sampled_from(list(DTYPES)))
def test_keys_and_values_are_written_where_the_plain_function_writes_them(rows, heads, size, dtype):
    key = torch.randn(heads, rows, size, device=DEVICE).to(dtype).transpose(0, 1)
    value = torch.randn(rows, heads * 2, size, device=DEVICE).to(dtype)[:, ::2]
    places = torch.randperm(40, device=DEVICE)[:rows]
    got, wanted = (torch.zeros(2, 40, heads, size, dtype=dtype, device=DEVICE) for _ in range(2))
    fast.write(key, value, got[0], got[1], places)
    plain.write(key, value, wanted[0], wanted[1], places)
    assert torch.equal(got, wanted)


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 3000), st.sampled_from([0.5, 1.0, 1.7]), st.sampled_from(list(DTYPES)))
def test_the_sampler_has_the_sums_of_the_cpu(rows, vocabulary, temperature, dtype):
    logits = torch.randn(rows, vocabulary, device=DEVICE).mul(4).to(dtype)
    logits[0, 1::3] = logits[:, 70:140] = float("-inf")
    pairs = zip(sampler._sums_on_gpu(logits, temperature), sampler._sums_in_cache(logits, temperature), strict=True)
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-12)


def test_a_logit_that_is_not_a_number_is_in_the_sum_of_its_block():
    logits = torch.zeros(1, 130, device=DEVICE)
    logits[0, 65] = float("nan")
    assert triton_sums.tops_and_sums(logits, 64, 1.0)[1].isnan().tolist() == [[False, True, False]]
