"""A warm start in whole runs: a model learns a form, GRPO goes on from it, and kills in both stages change no bit."""

import json
from pathlib import Path

import pytest
import torch

import oncurve
from fakes.killed_runs import PLACES, compare, finish, killed_at, metrics_of
from fakes.project import RECIPES, Command
from fakes.tables import table
from oncurve import durable
from oncurve.base.errors import ConfigError
from oncurve.compat.trl import SFTConfig, SFTTrainer

pytestmark = pytest.mark.slow

SFT, STEPS = 60, 4
RECIPE = (RECIPES / "warm_start.toml").read_text(encoding="utf-8")
UPDATE = PLACES["update"][:3]


@pytest.fixture(scope="module")
def site(laid_out: Path) -> Path:
    words = [f"w{n} w{n + step}" for step in (1, 2, 3, 5) for n in range(10, 50)]
    demonstrations = [{"prompt": asked, "completion": f"w9 {asked.split()[0]}"} for asked in words]
    held_out = [{"prompt": f"w{n} w{n + 4}"} for n in range(10, 50)]
    shown = {"demonstrations": demonstrations[:120], "other_demonstrations": demonstrations[120:]}
    for name, rows in (*shown.items(), ("held_out", held_out)):
        (laid_out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (laid_out / "recipe.toml").write_text(RECIPE)
    return laid_out


@pytest.fixture(scope="module")
def whole(site: Path) -> Path:
    oncurve.train(site / "recipe.toml", out=site / "whole").close()
    return site / "whole"


def test_it_goes_from_no_form_to_the_form_and_grpo_goes_on_from_there(whole: Path) -> None:
    warm = [line for line in metrics_of(whole / "sft") if "eval/accuracy" in line]
    assert warm[0]["step"] == warm[0]["eval/accuracy"] == 0
    assert warm[-1]["eval/accuracy"] >= 0.95
    assert warm[-1]["eval/loss"] < warm[0]["eval/loss"]
    before, *steps = metrics_of(whole)
    assert before["eval/accuracy"] == warm[-1]["eval/accuracy"]
    assert steps[0]["policy/kl"] == 0  # the reference is the model of the warm start
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert durable.read_json(whole / "run.json")["settings"]["sft.steps"] == SFT


def test_killed_in_both_stages_it_ends_with_the_same_bits(site: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    killed_at((*UPDATE, 8), "train", str(site / "recipe.toml"), "--out", str(out))
    assert not (out / "sft" / "model").exists()
    killed_at((*UPDATE, SFT - 4 + 2), "resume", str(out))  # the second update of GRPO
    assert (out / "sft" / "model").is_dir()
    finish("resume", str(out))
    compare(whole / "sft", out / "sft", SFT)
    compare(whole, out, STEPS)


def test_an_adapter_that_is_warmed_up_is_the_one_that_grpo_trains(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"lora": {"rank": 4}, "learner": {"learning_rate": 0.0}, "sft": {"steps": 4}, "eval": {"every": 0}}
    with oncurve.train(site / "recipe.toml", steps=1, settings=settings, out=out) as run:
        assert run.metrics[0]["policy/kl"] == 0
    files = [out / part / "model" / "adapter" / "adapter_model.safetensors" for part in ("sft", ".")]
    warm, after = map(durable.read_tensors, files)
    assert warm.keys() == after.keys() != set()
    assert all(torch.equal(warm[name], after[name]) for name in warm)
    assert any(bool(tensor.any()) for name, tensor in warm.items() if "lora_B" in name)


def test_the_command_alone_and_the_function_make_the_same_run(site: Path, command: Command, tmp_path: Path) -> None:
    words = ("run.threads=1", "model.dtype=float32", "sft.steps=3")
    model, rows = str(site / "model"), str(site / "demonstrations.jsonl")
    assert command("sft", model, "--data", rows, *words, "--out", str(tmp_path / "command")).code == 0
    listed = [json.loads(line) for line in Path(rows).read_text().splitlines()]
    settings = {"run": {"threads": 1}, "model": {"dtype": "float32"}}
    with oncurve.sft(model=model, data=listed, steps=3, settings=settings, out=tmp_path / "function") as run:
        assert [line["step"] for line in run.metrics] == [1, 2, 3]
    compare(tmp_path / "command", tmp_path / "function", 3)
    with oncurve.resume(tmp_path / "function", settings={"run": {"steps": 4}}, changed=True) as again:
        assert again.metrics[-1]["step"] == 4


def test_python_trains_with_a_warm_start_and_rewards_that_no_file_has(site: Path, tmp_path: Path) -> None:
    def form(completion: str) -> float:
        return float(completion.startswith("w9"))

    settings = {"eval": {"every": 2}, "sft": {"steps": 4}}
    with oncurve.train(site / "recipe.toml", reward=form, steps=1, settings=settings, out=tmp_path / "run") as run:
        assert [line["step"] for line in run.metrics] == [1]
    assert len(metrics_of(tmp_path / "run" / "sft")) == 5
    with pytest.raises(ConfigError, match=r"a warm start has its own, sft\.learning_rate"):
        oncurve.sft(model=site / "model", data=site / "demonstrations.jsonl", settings={"learner.learning_rate": 1e-4})
    with pytest.raises(ConfigError, match=r"sft.data: its model has a place only in a run's directory"):
        oncurve.train(site / "recipe.toml", steps=1)


def test_a_script_of_trls_quick_start_makes_the_same_updates(site: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (site / "demonstrations.jsonl").read_text().splitlines()]
    args = SFTConfig(tmp_path / "trl", **table("warm_start", "sft_config"))
    trainer = SFTTrainer(str(site / "model"), args, rows[:40], rows[40:60])
    trainer.train()
    settings = {"model.dtype": "float32", "model.device": "cpu", "learner.schedule": "linear", "data.chat": "never"}
    options = {"steps": 4, "batch_size": 4, "learning_rate": 1e-2, "seed": 7}
    with oncurve.sft(model=site / "model", data=rows[:40], settings=settings, **options) as run:
        losses = [line["policy/loss"] for line in run.metrics]
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["loss"] for line in logged] == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])
    assert trainer.evaluate()["eval_loss"] == trainer.state.log_history[-1]["eval_loss"]
    trainer.save_model(tmp_path / "saved")
    assert (tmp_path / "saved" / "config.json").is_file()
    plain = SFTTrainer(str(site / "model"), SFTConfig(tmp_path / "plain", max_steps=1), rows[:8])
    assert plain.train().global_step == 1
    with pytest.raises(ConfigError, match=r"TRL 1\.16 has no such setting; did you mean 'packing'"):
        SFTConfig("out", packin=True)
    with pytest.raises(ConfigError, match="callbacks is not available here"):
        SFTTrainer(str(site / "model"), args, rows, callbacks=[print])


@pytest.mark.parametrize(("words", "says"), table("warm_start", "bad_input_ends_before_anything_is_made"))
def test_bad_input_ends_before_anything_is_made(
    words: list[str], says: str, site: Path, command: Command, project: Path
) -> None:
    for name in ("recipe.toml", "demonstrations.jsonl", "other_demonstrations.jsonl", "held_out.jsonl"):
        (project / name).write_text((site / name).read_text())
    said = command(*words, "--out", "out")
    assert said.code == 2, said
    assert says in said.err
    assert not (project / "out").exists()


def test_a_resume_cannot_change_the_warm_start(whole: Path, command: Command) -> None:
    said = command("resume", str(whole), "run.steps=9", "sft.epochs=9", "sft.steps=null")
    assert (said.code, "sft.epochs: cannot change in a resume" in said.err) == (2, True), said
