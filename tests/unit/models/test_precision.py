import pytest
import torch

from oncurve.base.errors import ModelError
from oncurve.config.loading import load_config, to_toml
from oncurve.models.loading.precision import native_bfloat16, resolved
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


def test_without_onednn_there_are_no_fast_products(monkeypatch):
    with_features(monkeypatch, "amx_bf16")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert resolved("auto", CPU)[0] == "float32"


def test_an_unknown_device_computes_in_float32():
    assert not native_bfloat16(torch.device("meta"))[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_asked_for_by_name_is_what_it_is(monkeypatch, dtype):
    with_features(monkeypatch, "avx2")
    assert resolved(dtype, CPU)[0] == dtype


def test_a_runs_own_file_names_what_auto_became(monkeypatch, tmp_path):
    with_features(monkeypatch, "amx_bf16")
    config, _ = load_config(None, ["model.device=cpu"])
    assert config.model.dtype == "auto"
    pinned = config.model_copy(update={"model": config.model.on_this_machine()})
    (tmp_path / "config.toml").write_text(to_toml(pinned))
    with_features(monkeypatch, "avx2")
    assert load_config(tmp_path)[0].model.torch_dtype == torch.bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_of_a_device_that_is_not_here_nothing_is_said():
    assert ModelConfig(device="cuda").precision_here() is None
    with pytest.raises(ModelError, match="no CUDA device"):
        ModelConfig(device="cuda").precision()
