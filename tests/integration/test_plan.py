"""`oncurve plan`: what it prints, what it exits with, and that `oncurve train` refuses what cannot fit."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import oncurve
import oncurve.forecast.command as forecasting
from fakes.tables import table
from oncurve.base.errors import ConfigError, UserError
from oncurve.cli import app
from oncurve.config.layers import RECIPES
from oncurve.config.loading import load_config
from oncurve.forecast import scaling
from oncurve.forecast.shapes import AvailableMemory

ROOT = Path(__file__).parents[2]
TASK = RECIPES / "task.toml"
SMALL_STEP = ["data.prompts_per_step=2", "rollout.group_size=2", "rollout.max_new_tokens=4"]
CARD = table("plan", "card")


def plan(*words: str | Path) -> tuple[int, str, dict[str, Any]]:
    """Exit code, what was printed, and the JSON of it."""
    done = CliRunner().invoke(app, ["plan", *map(str, words), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_the_plan_of_a_shipped_recipe() -> None:
    code, printed, found = plan(TASK, *SMALL_STEP)
    assert code == 0
    assert found["parameters"] == 361_088
    assert f"{found['parameters']:,} × " in printed
    assert found["fits"]
    assert "It fits" in printed
    assert found["limit"] in printed
    assert found["seconds_are"] == "measured and scaled"
    seconds = found["seconds"]
    phases = {"prefill", "decode", "reference", "old", "train", "optimizer"}
    assert set(seconds) == phases | {"decode_step", "step"}
    assert seconds["step"] == pytest.approx(sum(seconds[phase] for phase in phases))
    assert all(seconds[phase] > 0 for phase in phases - {"old"})
    assert seconds["old"] == 0  # one update a step
    # 2 prompts of the task have about 20 to 40 tokens
    assert 10 < found["work"]["prompt_tokens"] < 80
    assert found["memory"]["process"] < found["peak_bytes"] < 4e9
    assert found["peak_bytes"] == max(found["phases"].values())


def test_a_phase_whose_time_is_lost_in_noise_takes_its_limit_and_never_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = scaling.rehearse
    without = lambda *given: replace(found := measured(*given), seconds=dict.fromkeys(found.seconds, 0.0))  # noqa: E731
    monkeypatch.setattr(scaling, "rehearse", without)
    _, _, found = plan(TASK, *SMALL_STEP)
    assert all(found["seconds"][phase] > 0 for phase in ("prefill", "decode", "reference", "train", "optimizer"))


def test_a_size_that_does_not_fit_says_what_would() -> None:
    code, printed, found = plan("--parameters", "7e9", *CARD, "--memory", "100GiB")
    assert code == 1
    assert not found["fits"]
    assert "It does not fit" in printed
    together = found["suggestions"][-1]
    assert together["peak_bytes"] < found["available_bytes"] < found["peak_bytes"]
    assert "learner.tokens_per_micro_batch=" in together["settings"]
    assert "learner.masters=" in together["settings"]
    assert together["settings"] in printed


@pytest.mark.parametrize(("machine", "size"), [("t4", "1.5B"), ("rtx4090", "7B"), ("a100", "7B"), ("a100", "14B")])
@pytest.mark.parametrize("settings", table("plan", "settings_that_are_said_to_fit"))
def test_settings_that_are_said_to_fit_do_fit_when_they_are_applied(
    machine: str, size: str, settings: list[str]
) -> None:
    words = [*settings, "--parameters", size, "--machine", machine]
    code, printed, found = plan(*words)
    assert (code == 0) == found["fits"]
    said = [each for each in found["suggestions"] if each["peak_bytes"] <= found["available_bytes"]]
    assert found["fits"] or said or "smaller model" in printed
    for each in said:
        code, _, applied = plan(*words, *shlex.split(each["settings"]))
        assert code == 0
        assert applied["peak_bytes"] <= each["peak_bytes"] * 1.001


def test_kl_is_not_switched_off_next_to_other_settings_of_it() -> None:
    words = ["grpo", "--parameters", "7B", "--machine", "t4"]
    assert "kl.coef=0" in {each["settings"] for each in plan(*words)[2]["suggestions"]}
    _, printed, found = plan(*words, "kl.estimator=k2")
    assert "kl.coef=0" not in printed
    plan(*words, "kl.estimator=k2", *shlex.split(found["suggestions"][-1]["settings"]))


def test_a_card_is_planned_with_the_rows_that_it_samples_at_once() -> None:
    words = ["grpo", "--parameters", "7B", "--machine", "h200", "data.prompts_per_step=128", "rollout.group_size=8"]
    rows = "rollout.max_concurrent="
    own, most, fewer = (plan(*words, *more)[2] for more in ([], [rows + "1024"], [rows + "256"]))
    assert own["memory"] == most["memory"]
    assert own["memory"]["keys_and_values"] > fewer["memory"]["keys_and_values"]


def test_no_recipe_and_no_machine_is_this_one() -> None:
    _, printed, found = plan("--model", ROOT / "src/oncurve/models/tiny", *SMALL_STEP)
    assert "LIMITS by formula, which nothing reaches" in printed
    assert found["machine"]["name"].startswith("this machine")
    assert found["seconds_are"] == "limits by formula"


@pytest.mark.parametrize(("words", "said"), table("plan", "bad_input_says_the_mend"))
def test_bad_input_says_the_mend(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError) as error:
        plan(*words)
    assert said in str(error.value)


@pytest.mark.parametrize("word", ["rollout.max_new_tokens=300", "eval.max_new_tokens=300"])
def test_a_plan_and_a_run_refuse_a_context_in_the_same_words(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leaves no room for a prompt") as planned:
        plan(TASK, word)
    with pytest.raises(ConfigError) as run:
        oncurve.train(TASK, settings={word.partition("=")[0]: 300}, out=tmp_path / "out")
    assert str(run.value) == str(planned.value)


def test_the_longest_that_a_model_takes_is_planned_and_one_more_is_not() -> None:
    words = ["--model", ROOT / "src/oncurve/models/tiny", "--machine", "rtx4090", "--prompt-tokens", "100"]
    assert plan(*words, "rollout.max_new_tokens=157")[0] == 0  # the last token is never fed
    with pytest.raises(UserError, match=r"lower rollout\.max_new_tokens by 1,"):
        plan(*words, "rollout.max_new_tokens=158")


def test_where_all_fixes_together_are_too_few_the_plan_says_it() -> None:
    code, printed, found = plan("--parameters", "7B", *CARD, "--memory", "4GiB")
    assert code == 1
    assert min(suggestion["peak_bytes"] for suggestion in found["suggestions"]) > found["available_bytes"]
    assert "All of them together do not make it fit: take a smaller model, or more memory." in printed
    _, printed, _ = plan("--parameters", "7B", *CARD, "--memory", "100GiB")
    assert "All of them together" not in printed


def with_room(available: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasting, "memory_here", lambda: AvailableMemory(available, "a test"))


def test_training_is_refused_where_it_clearly_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = load_config(TASK, ["data.prompts_per_step=64", "rollout.group_size=64"])
    assert forecasting.check_memory(config) == []
    with_room(300e6, monkeypatch)
    with pytest.raises(UserError, match="what makes it smaller") as error:
        forecasting.check_memory(config)
    assert "learner.tokens_per_micro_batch=" in str(error.value)
    assert "a test" in str(error.value)


@pytest.mark.slow
def test_the_processes_of_a_cluster_are_counted_and_so_is_what_makes_them_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["cluster.learner_ranks=4", "cluster.rollout_workers=2", *SMALL_STEP]
    _, _, alone = plan(TASK, "learner.minibatches=2", *SMALL_STEP)
    assert (alone["processes"], alone["needed_bytes"]) == (1, alone["peak_bytes"])
    assert alone["seconds"]["old"] > 0
    _, printed, found = plan(TASK, *words)
    assert found["processes"] == 6
    assert found["needed_bytes"] > found["peak_bytes"]
    assert "this one and 5 of [cluster]" in printed
    assert any("times are those of one process" in note for note in found["notes"])
    with_room((found["needed_bytes"] + found["peak_bytes"]) / 2, monkeypatch)
    _, printed, found = plan(TASK, *words)
    assert not found["fits"]
    assert "It does not fit" in printed
    least = [float(least_said(words[:count], monkeypatch)) for count in (0, 2)]
    assert least[1] > 1.5 * least[0]


@pytest.mark.slow
def test_processes_of_a_ray_elsewhere_need_no_memory_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine is the run's own process for certain."""
    words = ["cluster.kind=ray", "cluster.learner_ranks=4", "cluster.rollout_workers=2"]
    elsewhere = [*words, "cluster.address=10.0.0.1:6379"]
    _, _, alone = plan(TASK, *SMALL_STEP)
    _, _, here = plan(TASK, *words, *SMALL_STEP)
    _, printed, there = plan(TASK, *elsewhere, *SMALL_STEP)
    assert (here["processes"], there["processes"]) == (6, 1)
    assert there["needed_bytes"] == pytest.approx(alone["needed_bytes"], rel=0.05)  # a part of it is measured
    assert there["needed_bytes"] < here["needed_bytes"]
    assert "the run's own process; those of [cluster] are elsewhere" in printed
    assert any("memory and times are those of one process" in note for note in there["notes"])
    needs = []
    for each in (words, elsewhere):
        with_room(1.0, monkeypatch)
        with pytest.raises(UserError, match=r"the run.* needs about [\d.]+ GB") as error:
            forecasting.check_memory(load_config(TASK, each)[0])
        needs.append(float(str(error.value).partition("about ")[2].partition(" GB")[0]))
        assert ("of 6 processes" in str(error.value)) == (each is words)
    assert needs[1] < needs[0]


def test_training_takes_of_a_card_what_the_plan_says_and_no_cache_next_to_servers(tmp_path: Path) -> None:
    found = {}
    for tokens in (64, 4096):
        words = ["cluster.engine=vllm", "cluster.rollout_workers=1", f"learner.tokens_per_micro_batch={tokens}"]
        found[tokens] = [
            forecasting.training_bytes(load_config(TASK, [*words, f"rollout.max_concurrent={rows}"])[0])
            for rows in (8, 256)
        ]
        assert found[tokens][0] == found[tokens][1] > forecasting.CONTEXT
    assert found[64] < found[4096]
    assert forecasting.training_bytes(load_config(TASK, [f"model.path={tmp_path}"])[0]) == math.inf


def test_a_gpu_needs_room_for_one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = load_config(TASK, ["data.prompts_per_step=64", "rollout.group_size=64", "model.dtype=bfloat16"])
    monkeypatch.setattr(type(config.model), "torch_device", torch.device("cuda"))
    said = []
    for free in (80e9, 170e6, 1e6):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_, free=free: (free, 80e9))
        try:
            said.append(forecasting.check_memory(config))
        except UserError as error:
            said.append([str(error)])
    assert said[0] == []
    assert "goes on with smaller micro-batches" in said[1][0]
    assert "the run needs about" in said[2][0]
    assert "the GPU's free memory" in said[2][0]


def least_said(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """GB that a refused run would need with all that makes it smaller."""
    config, _ = load_config(TASK, [*words, "data.prompts_per_step=64", "rollout.group_size=64"])
    with_room(1e8, monkeypatch)
    with pytest.raises(UserError, match="what makes it smaller") as refused:
        forecasting.check_memory(config)
    return str(refused.value).rpartition("about ")[2].removesuffix(" GB")


def test_training_where_memory_is_tight_begins_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = load_config(TASK)
    with_room(1.0, monkeypatch)
    with pytest.raises(UserError, match=r"needs about [\d.]+ GB") as error:
        forecasting.check_memory(config)
    needed = float(str(error.value).partition("about ")[2].partition(" GB")[0]) * 1e9
    with_room(0.95 * needed, monkeypatch)
    (line,) = forecasting.check_memory(config)
    assert line.startswith("warning: ")
