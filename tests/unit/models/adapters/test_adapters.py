"""The adapter in a model: how it begins, what is trained, and switching it off, on and to frozen copies."""

import copy
import sys
from contextlib import nullcontext

import pytest
import torch

from fakes.adapted import NAMES, adapted, base, fill
from fakes.architectures import RAGGED, UNIFORM, architecture, logits_of
from fakes.decoding import graphs_of, request
from fakes.recorder import record
from fakes.tables import table
from oncurve.base.errors import ConfigError, ModelError
from oncurve.config import load_config
from oncurve.learner.optimizer.update import MasterAdamW
from oncurve.models import LoraSettings, ModelConfig, tiny, wrap
from oncurve.models.adapters import put_adapter
from oncurve.models.decode.graph_buffers import GraphBuffers
from oncurve.models.decode.host_loop import HostLoop
from oncurve.models.layers.prepacked_weights import join
from oncurve.models.loading.precision import quantization_config
from oncurve.models.probe import forced_logits
from oncurve.randomness import row_keys


def logits(model, rows=RAGGED):
    with torch.no_grad():
        return logits_of(model, rows)


def decoded(model, rows=UNIFORM):
    """Logits of the token loop that rollout runs."""
    written = rows.completion_ids.view(3, 2, -1)
    return forced_logits(model.token_loop(), list(rows.prompts), written, rows.lengths.view(3, 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_new_adapter_changes_nothing_and_off_is_the_base(name):
    module = base(name, torch.float32)
    plain = wrap(copy.deepcopy(module))
    model = adapted(module, trained=False)
    before, sampled = logits(plain), decoded(plain)
    assert model.adapter.begins_as_base()
    assert torch.equal(logits(model), before)
    assert torch.equal(decoded(model), sampled)
    fill(model.adapter.parameters)
    assert not torch.allclose(logits(model), before, atol=1e-2)
    assert not torch.allclose(decoded(model), sampled, atol=1e-2)
    with model.adapter.off():
        assert torch.equal(logits(model), before)
        assert torch.equal(decoded(model), sampled)
    assert not torch.allclose(logits(model), before, atol=1e-2)


@pytest.mark.parametrize("attention", ["auto", "generic"])
def test_a_frozen_copy_stays_when_the_adapter_moves(attention):
    model = adapted(architecture("qwen2"), attention)
    frozen = model.adapter.copy_frozen()
    then, sampled = logits(model), decoded(model)
    with torch.no_grad():
        for parameter in model.adapter.parameters.values():
            parameter.add_(0.1)
    moved = logits(model)
    assert not torch.allclose(moved, then, atol=1e-2)
    with model.adapter.using(frozen):
        assert torch.equal(logits(model), then)
        assert torch.equal(decoded(model), sampled)
        with model.adapter.off():
            assert not torch.allclose(logits(model), then, atol=1e-2)
        assert torch.equal(logits(model), then)
    assert torch.equal(logits(model), moved)
    with torch.no_grad():
        for name, tensor in frozen.items():
            tensor.copy_(model.adapter.parameters[name])
    with model.adapter.using(frozen):
        assert torch.equal(logits(model), moved)


def test_steps_that_were_captured_are_captured_again_when_the_factors_change():
    """What a graph replays are the factors that it read when it was captured: their values, while they stay in use."""
    model = adapted(architecture("qwen2", torch.float64))
    frozen, buffers = model.adapter.copy_frozen(), GraphBuffers(torch.device("cpu"), record)
    asked = request(list(UNIFORM.prompts), row_keys(1, 2, torch.arange(6), torch.arange(6)), [], 8)
    fill(model.adapter.parameters, 0.4)
    model._buffers, found = buffers, []
    for state in (nullcontext(), nullcontext(), model.adapter.off(), model.adapter.using(frozen), nullcontext()):
        with state:
            got = model.token_loop()(asked)
            wanted = HostLoop(model.decoder, torch.device("cpu"))(asked)
        for left, right in zip(got, wanted, strict=True):
            assert left.ids == right.ids
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-12)
        found.append([row.logprobs for row in wanted])
    assert found[0] == found[1] == found[4]
    assert found[0] != found[2] != found[3] != found[0]
    graphs = len(graphs_of(buffers))
    fill(model.adapter.parameters, 0.1)
    got, wanted = model.token_loop()(asked), HostLoop(model.decoder, torch.device("cpu"))(asked)
    assert [row.ids for row in got] == [row.ids for row in wanted]
    assert found[0] != [row.logprobs for row in wanted]
    assert len(graphs_of(buffers)) == graphs  # an update of the factors changes values, and no addresses
    assert model._joined  # the products were of joined weights


def test_copies_that_share_frozen_weights_share_them_joined():
    model = adapted(architecture("qwen2", torch.float64))
    frozen = [parameter for name, parameter in model.module.named_parameters() if "lora" not in name]
    other = copy.deepcopy(model, {id(parameter): parameter for parameter in frozen})
    places = []
    for each in (model, other, model):
        each._joined = join(each._products(), each._joined)
        assert all(one.holds for some in each._joined.values() for one in some)
        places.append([parameter.data_ptr() for parameter in frozen])
    assert places[0] == places[1] == places[2]


def test_only_the_factors_are_trained_and_only_they_have_masters():
    model = adapted(architecture("llama"), trained=False)
    trained = {name for name, parameter in model.module.named_parameters() if parameter.requires_grad}
    assert trained == model.adapter.parameters.keys()
    assert len(trained) == 2 * 14
    optimizer = MasterAdamW(model.module, torch.bfloat16)
    assert set(optimizer.trained) == trained
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.module.parameters())
    assert all(optimizer.masters[name].dtype == torch.float32 for name in trained)


@pytest.mark.parametrize(("name", "targets", "said"), table("adapters", "targets"))
def test_targets_that_cannot_be_are_refused_by_name(name, targets, said):
    module = base(name)
    before = {key: id(part) for key, part in module.named_modules()}
    with pytest.raises(ModelError, match=said):
        put_adapter(module, LoraSettings(rank=1, targets=targets), 0)
    assert before == {key: id(part) for key, part in module.named_modules()}
    assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize(("settings", "said"), table("adapters", "refused"))
def test_settings_that_cannot_be_are_refused_at_load(settings, said):
    with pytest.raises(ConfigError, match=said):
        load_config("grpo", settings)


QUANTISED = ["model.quantization=nf4", "lora.rank=4"]


def test_a_cpu_and_full_training_are_refused_when_settings_are_loaded():
    assert load_config("grpo", QUANTISED)[0].model.quantization == "nf4"
    with pytest.raises(ConfigError, match="every product would unpack its weights"):
        load_config("grpo", [*QUANTISED, "model.device=cpu"])
    with pytest.raises(ConfigError, match=r"quantised weights cannot be trained, .* set lora\.rank"):
        load_config("grpo", QUANTISED[:1])
    with pytest.raises(ConfigError, match="int3"):
        load_config("grpo", ["model.quantization=int3", "lora.rank=4"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_machine_without_a_gpu_is_refused_before_anything_is_loaded():
    config = ModelConfig(path=str(tiny.path()), quantization="nf4")
    with pytest.raises(ModelError, match="needs a CUDA device, and the model is on a CPU"):
        config.build(lora=LoraSettings(rank=4))


def test_a_missing_package_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModelError, match=r"pip install 'oncurve\[qlora\]'"):
        quantization_config("nf4", torch.bfloat16, torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"pip install 'oncurve\[lora\]'"):
        ModelConfig(path=str(tiny.path())).build(lora=LoraSettings(rank=4))
