import pytest
import torch

from oncurve.models.loading.precision import resolved
from oncurve.models.loading.weights import ModelConfig

CPU = torch.device("cpu")


def with_features(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(features, True))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("features", "dtype", "why"),
    [
        (("amx_bf16", "avx512_bf16"), "bfloat16", "AMX"),
        (("avx512_bf16",), "bfloat16", "AVX-512 BF16"),
        (("bf16",), "bfloat16", "NEON BF16"),
        (("avx2", "avx512_f", "amx_int8"), "float32", "no bfloat16 products"),
    ],
)
def test_auto_is_bfloat16_where_the_processor_multiplies_it(monkeypatch, features, dtype, why):
    with_features(monkeypatch, *features)
    got, reason = resolved("auto", CPU)
    assert got == dtype
    assert why in reason
    assert ModelConfig(device="cpu").torch_dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_asked_for_by_name_is_what_it_is(monkeypatch, dtype):
    with_features(monkeypatch, "avx2")
    assert resolved(dtype, CPU)[0] == dtype
