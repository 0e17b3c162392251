"""`run.epochs` in place of `run.steps`, and `eval.temperature`, in whole runs of the shipped model."""

import json
import tomllib
from pathlib import Path

import pytest

from fakes.project import RECIPES
from oncurve.config import load_config, plan
from oncurve.models import tiny
from oncurve.run.assembly import assemble
from oncurve.run.session import resume_run, train_recipe

RECIPE = (RECIPES / "epochs.toml").read_text(encoding="utf-8")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rows = ["1+1=", "2+2=", "3+3=", "4+4=", "5+5=", "9" * 40]  # the last is too long, and dropped
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    (tmp_path / "recipe.toml").write_text(RECIPE.format(model=tiny.path()))
    return tmp_path / "recipe.toml"


def steps_of(folder: Path) -> int:
    return len((folder / "metrics.jsonl").read_text().splitlines())


def test_the_steps_follow_from_the_rows_that_are_kept(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1.5 · 5 / 2 = 3.75, so 4 steps; a finished run goes on where its file says more steps, or epochs."""
    out = recipe.parent / "run"
    config, base = load_config(recipe)
    assert "1.5 epochs of the training rows, 2 prompts per step." in plan(config)
    train_recipe(config, base, out)
    assert "4 steps take 8 prompts: 1.6 epochs of 5 rows; 1 prompt too long, dropped." in capsys.readouterr().out
    assert steps_of(out) == 4
    resolved = (out / "config.toml").read_text()
    assert "steps = 4" in resolved
    assert "epochs" not in tomllib.loads(resolved)["run"]
    (out / "config.toml").write_text(resolved.replace("steps = 4", "steps = 5"))
    resume_run(out)
    assert steps_of(out) == 5
    (out / "config.toml").write_text(resolved.replace("steps = 4", "steps = 4\nepochs = 2.4"))
    resume_run(out)
    assert steps_of(out) == 6


def test_ten_tenths_are_one(recipe: Path) -> None:
    config, _ = load_config(recipe, ["run.epochs=0.1"])
    assert config.over(60).run.steps == 3  # 0.1 · 60 / 2, which is above 3 in floating point
    assert config.over(61).run.steps == 4
    assert config.over(1).run.steps == 1
    assert load_config(recipe, ["run.steps=9"])[0].over(60).run.steps == 9


def test_the_samples_of_an_evaluation_have_a_temperature_of_their_own(recipe: Path) -> None:
    """At a temperature near 0 the samples are the greedy completion; at 1 they are not."""

    def rewards(*words: str) -> tuple[float, float]:
        held = ["data.eval_fraction=0.5", "data.template={prompt}", "rewards.0.pattern=[1-9]"]
        with assemble(*load_config(recipe, ["run.epochs=1", *held, *words])) as run:
            found = run.evaluate(8)
        assert found.mean_reward is not None
        assert found.greedy_reward is not None
        return found.mean_reward.value, found.greedy_reward.value

    sampled, greedy = rewards("eval.temperature=0.001")
    assert sampled == greedy
    assert rewards("rollout.temperature=5.0")[0] != greedy
