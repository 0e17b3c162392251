"""Runs that train an adapter: what they leave, that an interrupted one ends with the same bits, what is refused."""

import copy
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import oncurve
from fakes.architectures import architecture
from fakes.reward_examples import write_examples
from fakes.tables import table
from fakes.tolerance import about, assert_close
from oncurve import durable
from oncurve.base.errors import ConfigError, ModelError
from oncurve.config import load_config, plan
from oncurve.models import tiny
from oncurve.run import evaluate_target
from oncurve.run.commands.reward_models import load_reward_recipe, train_reward_model
from oncurve.trainer import StepResult

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # of PEFT
]
SETTINGS = table("lora_runs", "settings")
IDS = torch.arange(7)[None] + 3


def reward_in_process() -> Callable[[str], float]:
    modulus = 7  # a closure, which runs in this process: no workers are started

    def spread(completion: str) -> float:
        return sum(map(ord, completion)) % modulus / modulus

    return spread


spread = reward_in_process()


def trained(out: Path, on_step: object = None, **sections: object) -> oncurve.TrainedRun:
    return oncurve.train(
        model=tiny.path(), reward=spread, steps=3, out=out, settings=SETTINGS | sections, on_step=on_step
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lora") / "whole"
    with trained(out) as run:
        assert next(line["policy/kl"] for line in run.metrics) == 0
    return out


def test_an_interrupted_run_ends_with_the_same_bits_and_the_base_is_stored_nowhere(whole: Path, tmp_path: Path) -> None:
    def stop(result: StepResult) -> None:
        if result.step == 2:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        trained(tmp_path / "run", stop)
    oncurve.resume(tmp_path / "run", reward=spread).close()
    for name in ("model/model.safetensors", "model/adapter/adapter_model.safetensors"):
        assert (whole / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    for number, path in durable.numbered(whole / "checkpoints"):
        record = durable.read_json(path / "state.json")["learner"]
        assert len(record["base"]) == 64
        with safe_open(path / "learner.safetensors", "pt") as file:
            assert all(".lora_" in name for name in file.keys())  # noqa: SIM118 - not a mapping
        stored = record["reference"]["tensors"]
        assert (stored is None) == (number < 3)  # the adapter is off until its first move, before step 3


def test_what_a_run_leaves_loads_in_transformers_and_in_peft_with_the_same_logits(whole: Path) -> None:
    merged = AutoModelForCausalLM.from_pretrained(whole / "model", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tiny.path(), dtype=torch.float32)
    plain = copy.deepcopy(base)
    apart = peft.PeftModel.from_pretrained(base, whole / "model" / "adapter")
    with torch.no_grad():
        ours, theirs, before = (each(IDS).logits for each in (merged, apart, plain))
    assert_close(ours, theirs, torch.float32)
    assert not torch.allclose(ours, before, atol=1e-3)


def test_run_adapter_and_merged_model_are_evaluated_alike(whole: Path) -> None:
    words = ["model.dtype=float32", "rollout.max_new_tokens=8"]
    recipe = str(whole / "config.toml")
    rewards = ["rewards=[{kind='task'}]"]
    targets = [str(whole), str(whole / "model"), str(whole / "model" / "adapter")]
    found = [evaluate_target(each, [*words, *rewards], recipe=recipe, n=2, limit=6)[1] for each in targets]
    assert found[0] == found[1]
    for merged, apart in zip(found[0].greedy, found[2].greedy, strict=True):  # merged weights round otherwise
        assert merged.scores == apart.scores
        for one, other in zip(merged.completions, apart.completions, strict=True):
            assert one.ids == other.ids
            assert one.logprobs == about(other.logprobs)


def test_an_adapter_is_trained_further_from_its_folder(whole: Path, tmp_path: Path) -> None:
    with trained(tmp_path / "on", lora={"path": str(whole / "model" / "adapter")}) as run:
        assert run.metrics[0]["policy/kl"] == 0
        assert run.run.learner.reference.state()


def test_a_module_is_given_an_adapter_and_a_peft_model_is_refused() -> None:
    rows = [{"prompt": [3 + index, 4 + index]} for index in range(4)]
    settings = table("lora_runs", "of_a_module")

    def low(completion_ids: list[int]) -> float:
        return sum(token < 20 for token in completion_ids) / len(completion_ids)

    module = architecture("llama")
    with oncurve.train(model=module, data=rows, reward=low, steps=1, settings=settings) as run:
        assert run.model is module
        assert {name for name, each in module.named_parameters() if each.requires_grad} == set(
            run.run.loaded.model.adapter.parameters
        )
    theirs = peft.get_peft_model(architecture("llama"), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ModelError, match=r"PeftModel.*unload\(\).*'path': FOLDER"):
        oncurve.train(model=theirs, data=rows, reward=low, steps=1, settings=settings)


def test_the_plan_names_the_adapter_and_a_rate_that_is_too_low() -> None:
    config, _ = load_config("lora", ["model.path=x"])
    assert (config.lora.rank, config.lora.scaled_by, config.learner.learning_rate) == (16, 32, 1e-5)
    lines = "\n".join(plan(config))
    assert "An adapter of rank 16 (α 32) on all linear layers is trained" in lines
    assert "that is the model with its adapter off: no second model" in lines
    assert "a rate of full fine-tuning" not in lines
    slow, _ = load_config("grpo", ["model.path=x", "lora.rank=4"])
    assert "learner.learning_rate = 1e-06 is a rate of full fine-tuning" in "\n".join(plan(slow))
    both, _ = load_config(None, ['extends=["dr_grpo", "lora"]'])
    assert (both.advantage.scale, both.lora.rank, both.kl.coef) == ("none", 16, 0.0)


@pytest.mark.parametrize("kind", ["outcome", "process"])
def test_a_reward_model_is_trained_with_an_adapter(kind: str, tmp_path: Path) -> None:
    folder = write_examples(tmp_path)
    recipe, base = load_reward_recipe(folder / f"{kind}.toml", ["lora.rank=4"])
    for out in ("whole", "again"):
        train_reward_model(recipe, base, folder / out)
    one, two = ((folder / out / "model" / "model.safetensors").read_bytes() for out in ("whole", "again"))
    assert one == two
    if kind == "outcome":
        model = AutoModelForSequenceClassification.from_pretrained(folder / "whole" / "model")
        assert float(model.score.weight.detach().abs().max()) > 0
    before = AutoModelForCausalLM.from_pretrained(tiny.path(), dtype=torch.float32).state_dict()
    after = durable.read_tensors(folder / "whole" / "model" / "model.safetensors")
    changed = {name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}


def test_a_reward_model_takes_no_trained_adapter(tmp_path: Path) -> None:
    folder = write_examples(tmp_path)
    with pytest.raises(ConfigError, match=r"lora\.dropout"):
        load_reward_recipe(folder / "outcome.toml", ["lora.rank=4", "lora.dropout=0.1"])
    recipe, base = load_reward_recipe(folder / "outcome.toml", ["lora.path=somewhere"])
    with pytest.raises(ModelError, match=r"lora\.path: a reward model begins with a new adapter"):
        train_reward_model(recipe, base, folder / "refused")
