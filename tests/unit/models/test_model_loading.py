"""From a directory to a model and back; what cannot be loaded is refused with the mend."""

import json
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from fakes.architectures import UNIFORM, architecture
from fakes.project import words_tokenizer
from fakes.tables import table
from oncurve.base.errors import ModelError
from oncurve.forecast.unloaded import read_model_config
from oncurve.models import ModelConfig, TransformersModel, save, tiny
from oncurve.models.layers.alignment import ALIGNMENT
from oncurve.models.loading.precision import resolved
from oncurve.models.loading.weights import loaded_from


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    save(architecture("llama"), words_tokenizer(), path)
    return path


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def hidden(model):
    return model.completion_hidden(UNIFORM.prompts, UNIFORM.group_ids, UNIFORM.completion_ids, UNIFORM.lengths)


def test_a_directory_loads_on_the_fast_path_without_the_network(folder, no_network):
    loaded = ModelConfig(path=str(folder), dtype="float32").build()
    assert isinstance(loaded.model, TransformersModel)
    assert loaded.name == "model"
    assert loaded.eos_ids == (2,)
    assert loaded.model.longest_row == 129
    assert loaded.tokenizer.decode([5, 6]) == "w5 w6"
    assert torch.equal(hidden(loaded.model), hidden(TransformersModel(architecture("llama"))))


@pytest.mark.parametrize(
    ("computes_in", "stored", "loaded"),
    [
        ("bfloat16", torch.bfloat16, torch.bfloat16),
        ("bfloat16", torch.float32, torch.float32),
        ("bfloat16", torch.float16, torch.float32),
        ("float32", torch.bfloat16, torch.float32),
    ],
)
def test_weights_for_a_learner_come_in_the_narrowest_form_without_loss(tmp_path, computes_in, stored, loaded):
    module = architecture("qwen3")
    save(module, words_tokenizer(), tmp_path / "out", dtype=stored)
    config = tmp_path / "out" / "config.json"
    config.write_text(config.read_text().replace(str(stored).removeprefix("torch."), "bfloat16"))  # the files decide
    got = ModelConfig(path=str(tmp_path / "out"), dtype=computes_in).build(masters=True).model.module
    assert {parameter.dtype for parameter in got.parameters()} == {loaded}
    for name, parameter in module.named_parameters():
        assert torch.equal(got.get_parameter(name).float(), parameter.to(stored).float())


def test_loads_at_once_in_one_process_find_all_weights_and_leave_the_settings_of_transformers(folder):
    def said() -> tuple:
        bars, conversion = logging.is_progress_bar_enabled(), os.environ.get("DISABLE_SAFETENSORS_CONVERSION")
        return logging.get_verbosity(), bars, conversion, constants.HF_HUB_OFFLINE

    before, config = said(), ModelConfig(path=str(folder), dtype="float32")
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(config.build, [False, True] * 4))
    states = [each.model.module.state_dict() for each in loaded]
    assert all(torch.equal(state[name], states[0][name]) for state in states for name in states[0])
    assert said() == before


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def pickled(folder):
    without_weights(folder)
    torch.save({}, folder / "pytorch_model.bin")


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def half_the_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "layers.1" not in k}, folder / "model.safetensors", {"format": "pt"})


def saying(**said):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | said))

    return change


CODE = {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "no such directory"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (without_weights, r"no weights \(\*.safetensors\)"),
        (pickled, r"only pickled weights \(pytorch_model.bin\)"),
        (without_tokenizer, "no tokenizer"),
        (half_the_weights, "the weights lack model.layers.1"),
        (saying(vocab_size=70), "model cannot be loaded|the weights lack"),
        (saying(model_type="something_new", auto_map=CODE), "trust_remote_code=true"),
        (lambda folder: (folder / "config.json").write_text("{"), "model cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "model cannot be loaded"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(folder, change, message):
    change(folder)
    with pytest.raises(ModelError, match=message):
        ModelConfig(path=str(folder)).build()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_what_was_saved_loads_in_transformers_as_it_is(tmp_path, name, dtype):
    module = architecture(name)
    save(module, words_tokenizer(), tmp_path / "out", dtype=dtype)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"  # transformers before 5 refuses weights that do not say so
    assert again.dtype == dtype
    for key, tensor in module.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor.to(dtype))


COMMITS = {"main": "a" * 40, "dev": "b" * 40}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that cannot be reached, and a cache with two revisions of one model."""
    for branch, commit in COMMITS.items():
        folder = tmp_path / "models--lab--tiny"
        snapshot = folder / "snapshots" / commit
        shutil.copytree(tiny.path(), snapshot, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / branch).write_text(commit)
        if branch == "dev":
            weights = {name: 2 * tensor for name, tensor in load_file(snapshot / "model.safetensors").items()}
            save_file(weights, snapshot / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def first_of(model: ModelConfig) -> torch.Tensor:
    return next(model.build().model.module.parameters()).detach()


@pytest.mark.usefixtures("hub")
def test_a_branch_and_its_commit_are_loaded() -> None:
    dev = ModelConfig(path="lab/tiny", revision="dev", dtype="float32")
    assert torch.equal(first_of(dev), 2 * first_of(ModelConfig(path=str(tiny.path()), dtype="float32")))
    assert torch.equal(first_of(dev), first_of(dev.model_copy(update={"revision": COMMITS["dev"]})))
    assert not torch.equal(first_of(dev), first_of(dev.model_copy(update={"revision": "main"})))
    assert dev.build().name == "lab/tiny"
    assert read_model_config(dev.source(weights=False)).vocab_size == 128


@pytest.mark.usefixtures("hub")
def test_a_revision_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="lab/tiny at revision v2 is neither a directory here nor a model the hub"):
        ModelConfig(path="lab/tiny", revision="v2").build()


CPU = torch.device("cpu")


def with_features(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(features, True))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)


@pytest.mark.parametrize(("features", "dtype", "why"), table("model_loading", "processors"))
def test_auto_is_bfloat16_where_the_processor_multiplies_it(monkeypatch, features, dtype, why):
    with_features(monkeypatch, *features)
    got, reason = resolved("auto", CPU)
    assert got == dtype
    assert why in reason
    assert ModelConfig(device="cpu").torch_dtype == getattr(torch, dtype)


SIZES = pytest.mark.parametrize("size", [0, 8, 24, 40])


def lengthened(folder, size):
    """The folder, with `size` bytes more in the header of its weights' file."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt", "filler": "x" * size})
    return folder


def starts(module):
    return {tensor.data_ptr() % ALIGNMENT for tensor in (*module.parameters(), *module.buffers())}


@SIZES
def test_a_loaded_model_lies_where_torch_puts_tensors(tmp_path, size):
    folder = lengthened(tmp_path / shutil.copytree(tiny.path(), tmp_path / "model"), size)
    stored = load_file(folder / "model.safetensors")
    loaded = [ModelConfig(path=str(folder), dtype="float32").build(masters=masters) for masters in (False, True)]
    own = loaded_from(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    for each in (*loaded, own):
        assert starts(each.model.module) == {0}
        state = each.model.module.state_dict()
        assert all(torch.equal(tensor, stored[name].float()) for name, tensor in state.items() if name in stored)
