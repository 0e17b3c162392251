"""Distillation in whole runs of the shipped model: the KL to the teacher falls, a resume is exact."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.killed_runs import compare, finish, killed_at
from fakes.tables import table
from oncurve.advantages import TeacherSettings, teacher_of
from oncurve.base.errors import ConfigError, DataError
from oncurve.config import explain, load_config, plan
from oncurve.config.rules.combinations import missing
from oncurve.forecast.unloaded import teacher_bytes
from oncurve.models import tiny
from oncurve.models.loading import loaded_from
from oncurve.run.assembly import Overrides, Run, assemble
from oncurve.trainer import StepResult

pytestmark = pytest.mark.slow

SETTINGS = table("distillation", "settings")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model with noise in its matrices: another distribution over the same tokens."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(tiny.path(), folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if tensor.ndim == 2:
            weights[name] = tensor + 0.6 * tensor.std() * torch.randn(tensor.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def settings(*more: str) -> list[str]:
    return [*SETTINGS, f"model.path={tiny.path()}", *more]


def put_together(*more: str) -> Run:
    return assemble(*load_config(None, settings(*more)))


def trained(run: Run) -> list[StepResult]:
    results: list[StepResult] = []
    with run:
        run.train(results.append)
    return results


def test_the_kl_to_the_teacher_falls_without_any_reward(teacher: Path) -> None:
    few = ("run.steps=25", "data.size=4", "data.eval_size=0", "rollout.group_size=4")
    results = trained(put_together(f"advantage.teacher={teacher}", *few))
    distances = [result.metrics["policy/teacher_kl"] for result in results]
    assert sum(distances[-5:]) < 0.5 * sum(distances[:5])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_teacher_of_a_module_computes_in_its_dtype_whichever_that_is(teacher: Path, dtype: torch.dtype) -> None:
    module = AutoModelForCausalLM.from_pretrained(tiny.path(), dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    config, base = load_config(None, settings(f"advantage.teacher={teacher}", "run.steps=1"))
    run = assemble(config, base, Overrides(loaded_from(module, tokenizer)))
    assert run.teacher is not None
    assert {parameter.dtype for parameter in run.teacher.model.module.parameters()} == {dtype}
    (result,) = trained(run)
    assert result.metrics["optim/updates"] == 1


def test_the_policy_teaches_itself_by_a_prompt_of_its_own() -> None:
    results = trained(put_together("advantage.template={answer} {question}", "run.steps=2"))
    assert results[0].metrics["policy/teacher_kl"] != 0
    run = put_together("advantage.template={answer} {question}")
    with run:
        assert run.teacher is run.loaded
        assert run.facts().teacher_bytes is None
        prompt = run.prompts[0]
        assert prompt.teacher_ids != prompt.ids
        read = run.loaded.tokenizer.decode(prompt.teacher_ids, skip_special_tokens=True)
        assert read.startswith(f"{prompt.columns['answer']} ")


def test_no_reward_is_needed_and_the_teacher_stays_as_it_is(teacher: Path) -> None:
    """With a group of one and several updates per step."""
    run = put_together(f"advantage.teacher={teacher}", "rollout.group_size=1", "learner.minibatches=2", "run.steps=2")
    assert run.teacher is not None
    before = {name: tensor.clone() for name, tensor in run.teacher.model.module.state_dict().items()}
    first, _ = trained(run)
    after = run.teacher.model.module.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any(parameter.requires_grad for parameter in run.teacher.model.module.parameters())
    assert first.metrics["advantage/abs_mean"] > 0
    assert all(score.valid and score.reward == 0 for group in first.groups for score in group.scores)
    assert not {"reward/mean", "reward/std", "groups/constant"} & first.metrics.keys()
    (same,) = trained(put_together(f"advantage.teacher={tiny.path()}", "run.steps=1"))
    assert abs(same.metrics["policy/teacher_kl"]) < 1e-5


def test_a_killed_run_goes_on_to_the_bits_of_the_unbroken_one(teacher: Path, tmp_path: Path) -> None:
    more = ('advantage.base="grpo"', 'rewards=[{kind="regex", pattern="1"}]', "run.steps=4", "checkpoint.keep=9")
    words = ["train", "grpo", *settings(f"advantage.teacher={teacher}", *more)]
    finish(*words, "--out", str(tmp_path / "whole"))
    place = ("oncurve.learner.optimizer.update", "MasterAdamW", "gradient_norm", 3)
    killed_at(place, *words, "--out", str(tmp_path / "parts"))
    finish("resume", str(tmp_path / "parts"))
    compare(tmp_path / "whole", tmp_path / "parts", 4)


def test_a_relative_teacher_is_relative_to_the_recipe(teacher: Path) -> None:
    recipe = teacher.parent / "recipe.toml"
    recipe.write_text('[advantage]\nkind = "distill"\nteacher = "model"\n')
    assert teacher_of(load_config(recipe)[0].advantage) == TeacherSettings(str(teacher))


def test_the_plan_and_the_forecast_count_it(teacher: Path) -> None:
    config, _ = load_config(None, settings(f"advantage.teacher={teacher}"))
    assert "The teacher model scores every completion, after the policy's prompts; it takes memory" in "\n".join(
        plan(config)
    )
    stored = sum(tensor.numel() for tensor in load_file(teacher / "model.safetensors").values())
    assert teacher_bytes(config, "float32") == 4 * stored
    assert missing(config) == []
    lines = explain(config).splitlines()
    assert any(line.split("Â_it  ")[-1].strip() == "(log π_T - log π_old) at the token" for line in lines)
    assert any(line.endswith(f"the teacher: {teacher}") for line in lines)


@pytest.mark.parametrize(("words", "error"), table("distillation", "settings_that_cannot_be"))
def test_settings_that_cannot_be(words: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load_config(None, settings(*words))


def test_a_teacher_is_missing_and_no_reward() -> None:
    config, _ = load_config(None, settings())
    (line,) = missing(config)
    assert line.startswith("advantage.teacher: missing")
    config, _ = load_config(None, settings("advantage.template={answer}", 'advantage.base="grpo"'))
    (line,) = missing(config)
    assert line.startswith("rewards: missing")


def test_another_tokenizer_is_refused_by_the_token(teacher: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(teacher, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[5], vocabulary[6] = vocabulary[6], vocabulary[5]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"advantage\.teacher: other has another tokenizer than the policy: token"):
        put_together(f"advantage.teacher={other}")


def test_rows_that_make_no_prompt_for_the_teacher(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1+1=", "hint": "2"}\n{"prompt": "1+2="}\n')
    words = ('data.kind="files"', f"data.path={file}", "advantage.template={hint} {prompt}")
    with pytest.raises(DataError, match=r"rows\.jsonl line 2: column 'hint' is missing; it has: prompt"):
        put_together(*words)
    file.write_text(json.dumps({"prompt": "1+1=", "hint": "1" * 5000}) + "\n")
    with pytest.raises(DataError, match=r"line 1: the teacher's prompt .* has 5,00\d tokens"):
        put_together(*words)
