"""Prepacked products: side by side, by pieces where a matrix is large, biases and all, equal to the layers' own."""

import pytest
import torch
from torch import nn

from oncurve.models.layers import prepacked_weights as packing
from oncurve.models.layers.prepacked_weights import PrepackedLinear


def layers(dtype, sizes=((12, True), (7, False), (129, True))):
    torch.manual_seed(0)
    return [nn.Linear(16, size, bias=bias).to(dtype) for size, bias in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [packing.PIECE_BYTES, 1000])
def test_a_packed_product_is_the_layers_side_by_side(
    dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PIECE_BYTES", piece)
    some = layers(dtype)
    x = torch.randn(5, 16, dtype=dtype)
    with torch.no_grad():
        given, wanted = PrepackedLinear(some, 5)(x), torch.cat([layer(x) for layer in some], -1)
        exact = torch.cat([layer.double()(x.double()) for layer in some], -1)
    torch.testing.assert_close(given, wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-2)
    assert float((given - exact).abs().max()) < (2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_a_large_matrix_is_packed_by_pieces_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    half = layers(torch.bfloat16, ((256, False),))
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products in bfloat16, so nothing is packed")
    assert len(PrepackedLinear(half, 4)._pieces) == 1
    monkeypatch.setattr(packing, "PIECE_BYTES", half[0].weight.nbytes // 4)
    assert len(PrepackedLinear(half, 4)._pieces) == 4
