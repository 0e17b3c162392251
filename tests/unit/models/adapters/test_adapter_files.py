"""Adapters on disk: ours load in PEFT, PEFT's load here, merged models load in transformers; all give equal logits."""

import copy
import json
import warnings
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.adapted import adapted, base, fill, trained_adapter
from fakes.architectures import RAGGED, architecture
from fakes.tables import table
from oncurve import durable
from oncurve.base.errors import ModelError
from oncurve.models import LoraSettings, ModelConfig, save, tiny
from oncurve.models.adapters import put_adapter
from oncurve.models.adapters.adapter_files import read_adapter
from oncurve.models.loading import stored_adapter
from oncurve.models.loading.saving import hub_tensors

IDS = torch.tensor([[5, 9, 2, 40, 11, 7, 33, 1]])


def logits_of(module, ids=IDS):
    with torch.no_grad():
        return module(ids).logits


def saved(name, tmp_path, dtype=torch.float32, **settings):
    """A base in the folder base, and in memory with an adapter, which is in the folder adapter."""
    module = base(name, dtype)
    save(module, None, tmp_path / "base")
    module.name_or_path = str(tmp_path / "base")
    adapter = trained_adapter(module, **settings)
    durable.write_directory(tmp_path / "adapter", adapter.files())
    return module, adapter


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "qwen3-moe"])
def test_peft_loads_it_with_equal_logits(name, tmp_path):
    module, _ = saved(name, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    assert torch.allclose(logits_of(theirs), logits_of(module), atol=2e-5)
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(tmp_path / "base")
    assert (written["r"], written["lora_alpha"], written["peft_type"]) == (3, 7, "LORA")
    assert written["inference_mode"]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "qwen3-moe"])
def test_the_merged_model_loads_in_transformers_with_equal_logits_and_buckets_have_its_weights(name, tmp_path):
    module, adapter = saved(name, tmp_path)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    save(module, None, tmp_path / "merged", adapter=adapter)
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.allclose(logits_of(merged), logits_of(module), atol=2e-5)
    assert not torch.allclose(logits_of(merged), logits_of(plain), atol=0.1)
    written, buckets = load_file(tmp_path / "merged" / "model.safetensors"), dict(hub_tensors(module, adapter))
    assert written.keys() == load_file(tmp_path / "base" / "model.safetensors").keys() == buckets.keys()
    assert all(torch.equal(buckets[key], written[key]) for key in written)


@pytest.mark.parametrize(
    "options", [{}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"q_proj": 2}}]
)
def test_an_adapter_of_pefts_loads_here_with_equal_logits(options, tmp_path):
    plain = architecture("qwen2")
    config = peft.LoraConfig(r=2, lora_alpha=6, lora_dropout=0.1, target_modules=["q_proj", "down_proj"], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = peft.get_peft_model(copy.deepcopy(plain), config).eval()
        fill({name: parameter for name, parameter in theirs.named_parameters() if "lora_" in name})
        theirs.save_pretrained(tmp_path / "adapter")
    adapter = put_adapter(plain, LoraSettings(path="x"), 0, stored_adapter(str(tmp_path / "adapter")))
    assert len(adapter.paths) == 4
    assert torch.allclose(logits_of(plain), logits_of(theirs), atol=1e-5)
    assert not adapter.begins_as_base()
    durable.write_directory(tmp_path / "again", adapter.files())
    first, again = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("adapter", "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    reread = read_adapter(tmp_path / "again", peft)
    assert reread.config.r == 2
    assert reread.config.use_rslora == bool(options.get("use_rslora"))


def test_a_model_is_loaded_with_a_stored_adapter(tmp_path):
    config = ModelConfig(path=str(tiny.path()), dtype="float32")
    first = config.build(masters=True, lora=LoraSettings(rank=4), seed=5)
    fill(first.model.adapter.parameters)
    durable.write_directory(tmp_path / "adapter", first.model.adapter.files())
    second = config.build(lora=LoraSettings(path=str(tmp_path / "adapter")))
    rows = (RAGGED.prompts, RAGGED.group_ids, RAGGED.completion_ids % 10, RAGGED.lengths)
    rows = ([prompt % 10 for prompt in rows[0]], *rows[1:])
    with torch.no_grad():
        assert torch.equal(second.model.completion_hidden(*rows), first.model.completion_hidden(*rows))
    save(second.model.module, second.tokenizer, tmp_path / "merged", adapter=second.model.adapter)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged") is not None
    merged = ModelConfig(path=str(tmp_path / "merged"), dtype="float32").build()
    with torch.no_grad():
        assert torch.allclose(merged.model.completion_hidden(*rows), first.model.completion_hidden(*rows), atol=1e-5)


def test_over_a_quantised_base_the_adapter_is_all_that_is_saved(tmp_path):
    module = architecture("llama")
    adapter = trained_adapter(module)
    for part in module.modules():
        if hasattr(part, "base_layer"):
            packed = torch.zeros(part.base_layer.weight.numel() // 2, 1, dtype=torch.uint8)  # two weights per byte
            part.base_layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    with pytest.raises(ModelError, match="the base model is quantised"):
        adapter.merged()
    save(module, None, tmp_path / "model", adapter=adapter)
    found = sorted(path.relative_to(tmp_path / "model").as_posix() for path in (tmp_path / "model").rglob("*.*"))
    assert found == ["adapter/adapter_config.json", "adapter/adapter_model.safetensors", "manifest.json"]
    assert len(stored_adapter(str(tmp_path / "model" / "adapter")).shapes) == 14


def written(folder, change=None, base_name="llama"):
    durable.write_directory(folder, trained_adapter(architecture(base_name)).files())
    if change is not None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return folder


@pytest.mark.parametrize(
    ("change", "said"), [*table("adapter_files", "no_plain_lora"), ({"peft_type": None}, "type None")]
)
def test_what_is_no_plain_lora_is_refused_by_name(change, said, tmp_path):
    with pytest.raises(ModelError, match=said):
        stored_adapter(str(written(tmp_path / "adapter", change)))


def test_what_is_no_adapter_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"has no adapter_config\.json"):
        stored_adapter(str(tmp_path))
    with pytest.raises(ModelError, match="no such directory"):
        stored_adapter(str(tmp_path / "missing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="is a file"):
        stored_adapter(str(tmp_path / "file"))
    folder = written(tmp_path / "adapter")
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match="cannot be read"):
        stored_adapter(str(folder))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no adapter_model"):
        stored_adapter(str(folder))
    (folder / "adapter_config.json").write_text("[1]")
    with pytest.raises(ModelError, match="table of settings"):
        stored_adapter(str(folder))


@pytest.mark.parametrize("other", ["qwen2", "gpt2"])
def test_an_adapter_of_another_base_is_refused(other, tmp_path):
    stored = stored_adapter(str(written(tmp_path / "adapter")))
    module = architecture(other)
    if other == "qwen2":
        module.model.layers[1].mlp.up_proj = torch.nn.Linear(32, 47)
    before = list(module.state_dict())
    said = r"layers\.1\.mlp\.up_proj takes 32 numbers to 48, the model's 32 to 47" if other == "qwen2" else "is not in"
    with pytest.raises(ModelError, match=said):
        put_adapter(module, LoraSettings(path="x"), 0, stored)
    assert list(module.state_dict()) == before


def test_merged_model_and_adapter_are_one_folder_that_verifies(tmp_path: Path) -> None:
    model = adapted(architecture("llama"))
    save(model.module, None, tmp_path / "model", adapter=model.adapter)
    assert not durable.verify(tmp_path / "model")
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"model/model.safetensors", "model/adapter/adapter_model.safetensors"} <= names
    (tmp_path / "model" / "adapter" / "adapter_config.json").write_text("{}")
    assert durable.verify(tmp_path / "model")
