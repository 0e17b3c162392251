"""What a run is put together from, named by, listed with, and what a resume says of its changes."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.tables import table
from fakes.tiny_policy import TinyLM
from oncurve import durable
from oncurve.base.errors import ConfigError
from oncurve.config import RunConfig
from oncurve.config.loading import load_config
from oncurve.models.loading.weights import loaded_from
from oncurve.report import read_run
from oncurve.run import free_directory, list_runs, table_of, words_for
from oncurve.run.arguments import ARGUMENT_OF, OTHER_NAMES, _reward_table, run_name
from oncurve.run.assembly import Overrides, assemble
from oncurve.run.continuing import changes_between, check_changes, worth_saying
from oncurve.run.directory import listing


@pytest.mark.parametrize(("given", "table"), table("naming", "rewards_by_name"))
def test_a_reward_by_its_name(given: Any, table: dict[str, Any]) -> None:
    assert _reward_table(given) == table


def test_a_folder_is_a_reward_model(tmp_path: Path) -> None:
    assert _reward_table(str(tmp_path)) == {"kind": "model", "path": str(tmp_path)}


def test_what_is_no_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a function, a kind"):
        _reward_table(3)


def put_together(coef: float):
    settings = {
        "data": {"kind": "list", "rows": tuple({"prompt": ids, "answer": "1"} for ids in ([1, 2], [3, 4]))},
        "rollout": {"group_size": 2, "max_new_tokens": 2},
        "kl": {"coef": coef},
        **({"reference": {"every": 2}} if coef else {}),
        "rewards": [{"kind": "task"}],
    }
    config, base = load_config(settings=settings)
    return assemble(config, base, Overrides(loaded_from(TinyLM(), None), loaded_from(TinyLM(seed=1), None)))


@pytest.mark.parametrize("coef", [0.0, 0.1])
def test_a_reference_that_was_given_is_kept_whether_there_is_a_kl_term_or_the_objective_wants_it(coef: float):
    with put_together(coef) as run:
        state, facts = run.learner.reference.state(), run.facts()
    assert facts.reference_given
    given = dict(TinyLM(seed=1).named_parameters())
    assert facts.reference_bytes == sum(4 * tensor.numel() for tensor in given.values())
    assert all(torch.equal(tensor, given[name]) for name, tensor in state.items())


RECIPE = "rewards=[{kind='task'}]"


@pytest.mark.parametrize(
    ("before", "now", "said"), table("changes", "another_kind_is_said_without_the_keys_that_come_and_go_with_it")
)
def test_another_kind_is_said_without_the_keys_that_come_and_go_with_it(
    before: list[str], now: list[str], said: list[str]
) -> None:
    old, new = (load_config(None, [RECIPE, *words])[0] for words in (before, now))
    assert [str(change) for change in worth_saying(changes_between(old, new), new)] == said


FSDP = ["cluster.sharding=fsdp", "cluster.learner_ranks=2"]


@pytest.mark.parametrize("other", [["cluster.kind=none"], ["cluster.learner_ranks=2"]])
@pytest.mark.parametrize("there", [True, False])
def test_a_state_in_parts_does_not_become_a_whole_one_nor_the_other_way_round(other: list[str], there: bool) -> None:
    before, now = (load_config(None, [RECIPE, *words])[0] for words in ((other, FSDP) if there else (FSDP, other)))
    changes = changes_between(before, now)
    with pytest.raises(ConfigError, match=r"cluster\.sharding: cannot become .* in a resume: .* begin a new run"):
        check_changes(before, now, changes, done=1)
    check_changes(before, now, changes, done=0)  # there is no checkpoint yet


def config(model: str, name: str | None = None) -> RunConfig:
    given: dict[str, Any] = {"model": {"path": model}, "run": {"name": name}}
    return RunConfig.model_validate(given)


@pytest.mark.parametrize(
    ("recipe", "model", "name"),
    [*table("naming", "a_run_has_the_names_of_recipe_and_model"), ("a" * 200, "m", "a" * 80)],
)
def test_a_run_has_the_names_of_recipe_and_model(recipe: str, model: str, name: str) -> None:
    assert run_name(recipe, config(model)) == name


def test_a_taken_name_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("runs/x", "runs/x-2", "runs/x-3"):
        assert free_directory("x") == Path(expected)
        Path(expected).mkdir(parents=True)
    with pytest.raises(ConfigError, match="too long"):
        free_directory("x" * 5000)


NAMES = sorted({*OTHER_NAMES, *OTHER_NAMES.values(), *ARGUMENT_OF.values(), "out", "outt", "lr", "no_such_thing"})


@pytest.mark.parametrize("options", [[], ["--data"], [f"--{name}" for name in NAMES]], ids=["none", "one", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_an_option_of_any_name_has_words_or_none(name: str, options: list[str]) -> None:
    words = words_for(f"--{name.replace('_', '-')}", "1", options)
    assert words is None or words
    assert words is None or not words.startswith("write") or "=1" in words or " 1" in words or "one of" in words


CONFIG = "[run]\nsteps = 20\n[checkpoint]\nbest = 'eval/reward'\n"
REWARDS = {0: 0.1, 2: 0.5, 4: 0.5, 8: 0.4}
LINES = (*({"step": step, "eval/reward": reward} for step, reward in REWARDS.items()), {"step": 9})


def lay_out(path: Path, *lines: dict[str, float], config: str = CONFIG, age: float = 0.0) -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config)
    (path / "run.json").write_text("{}")
    (path / ".lock").write_bytes(b"")
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path / "metrics.jsonl", (time.time() - age,) * 2)
    return path


def test_runs_are_listed_with_state_step_best_and_age_the_last_first(tmp_path: Path) -> None:
    lay_out(tmp_path / "a" / "stopped", *LINES, age=7200)
    lay_out(tmp_path / "finished", {"step": 20}, age=200000)
    durable.write_directory(tmp_path / "finished" / "model", {"x": b"1"})
    lay_out(tmp_path / "damaged", config="[run", age=70)
    (tmp_path / "no run").mkdir()
    held = durable.hold(lay_out(tmp_path / "running", *LINES[:1]) / ".lock", b"")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    try:
        found = list_runs(tmp_path)
    finally:
        os.close(held)
    assert [(run.path.name, run.state, run.step, run.steps) for run in found] == [
        ("running", "running", 0, 20),
        ("damaged", "damaged", 0, None),
        ("stopped", "stopped", 9, 20),
        ("finished", "finished", 20, 20),
    ]
    best = "eval/reward 0.5 at 2 (no checkpoint of it)"
    assert [run.cells()[3:] for run in found[1:]] == [("-", "1 min"), (best, "2 h"), ("-", "2 d")]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert table_of(found).splitlines()[3].split("  ")[-1] == "2 h"
    assert json.loads(json.dumps([run.to_json() for run in found]))[2]["best_step"] == 2
    (tmp_path / "a/stopped/checkpoints/step-000004").mkdir(parents=True)
    assert list_runs(tmp_path / "a")[0].cells()[3] == "eval/reward 0.5 at 4"


def test_a_run_in_its_warm_start_says_so(tmp_path: Path) -> None:
    lay_out(tmp_path / "run", age=7200)
    lay_out(tmp_path / "run" / "sft", {"step": 1}, age=60)
    (run,) = list_runs(tmp_path)
    assert run.cells()[2:] == ("warm start", "-", "1 min")
    assert (run.to_json()["step"], "warm_start" in run.to_json()) == (0, False)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 2}\n')
    assert list_runs(tmp_path)[0].cells()[2] == "2/20"


def test_a_run_that_cannot_be_read_leaves_the_others_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> Any:
        if path.name == "theirs":
            raise PermissionError(13, "Permission denied", str(path))
        return read_run(path)

    for name in ("mine", "theirs"):
        lay_out(tmp_path / name, *LINES)
    monkeypatch.setattr(listing, "read_run", read)
    assert sorted((run.path.name, run.state) for run in list_runs(tmp_path)) == [
        ("mine", "stopped"),
        ("theirs", "damaged"),
    ]


def test_a_run_is_listed_by_itself_and_what_is_inside_of_one_is_not(tmp_path: Path) -> None:
    lay_out(tmp_path / "run", *LINES)
    lay_out(tmp_path / "run" / "inner")
    assert [run.path for run in list_runs(tmp_path / "run")] == [tmp_path / "run"]
    assert [run.path for run in list_runs(tmp_path)] == [tmp_path / "run"]
