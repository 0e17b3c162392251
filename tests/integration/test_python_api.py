"""`oncurve.train` and `oncurve.GRPO` as a script or a notebook uses them, the shortest ways to a run among them."""

import functools
import inspect
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
import torch

import oncurve
from fakes.architectures import architecture
from fakes.project import ROWS, words_tokenizer
from fakes.rewards import Callable, by_columns, like_trl, like_verl
from fakes.tables import table
from fakes.tiny_policy import VOCABULARY, TinyLM
from oncurve.base.errors import ConfigError, DataError
from oncurve.config import RUN
from oncurve.run import CommonSettings
from oncurve.run.arguments import ARGUMENT_OF
from oncurve.run.commands.evaluation import evaluate_target
from oncurve.run.session import resume_run

SETTINGS = table("python_api", "settings")


def train(**arguments: Any) -> oncurve.TrainedRun:
    given = {"data": ROWS, "steps": 1, "settings": SETTINGS, **arguments}
    if "model" not in given:
        given |= {"model": architecture("llama"), "tokenizer": words_tokenizer()}
    return oncurve.train(**given)


def closure(size: int) -> Any:
    def remainder(completion: str) -> float:
        return float(len(completion) % size)

    return remainder


def test_every_form_of_reward_trains_and_they_add_up_under_their_names() -> None:
    """Equal names are told apart."""
    rewards = [
        closure(3),
        closure(2),
        lambda completion: float(len(completion) % 3),
        functools.partial(closure(3)),
        Callable(),
        like_trl,
        like_verl,
        by_columns,
        {"kind": "regex", "pattern": "w1"},
    ]
    names = ["remainder", "remainder_2", "reward", "remainder_3", "Callable", "like_trl", "like_verl", "by_columns"]
    with train(reward=rewards) as run:
        last = run.metrics[0]
    assert last["reward/mean"] == pytest.approx(sum(last[f"rewards/{name}"] for name in (*names, "regex")))


def test_every_step_is_handed_to_on_step_and_the_module_is_trained_in_place_without_a_directory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = architecture("llama")
    before = [parameter.clone() for parameter in module.parameters()]
    steps: list[int] = []
    given = {"model": module, "tokenizer": words_tokenizer(), "reward": closure(3), "steps": 3}
    run = train(**given, on_step=lambda result: steps.append(result.step))
    said = capsys.readouterr().out
    assert "Nothing is written" in said
    assert "checkpoint every" not in said
    assert steps == [metrics["step"] for metrics in run.metrics] == [1, 2, 3]
    assert run.model is module
    assert any(not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert repr(run) == "TrainedRun(steps=3, directory=None, stopped_by=None)"
    assert run.groups().step == run.groups(3).step == 3
    assert "run without a directory" in repr(run.report())
    with pytest.raises(ConfigError, match=r"step 1 are not kept.*known: those of step 3"):
        run.groups(1)
    run.close()


CONTAINERS: dict[str, Any] = {
    "a list": lambda: ROWS,
    "a DataFrame": lambda: pandas.DataFrame(ROWS),
    "a Dataset": lambda: datasets.Dataset.from_list(ROWS),
    "a generator": lambda: (row for row in ROWS),
}


KEPT = {**SETTINGS, "checkpoint": {"every": 1}}


@pytest.fixture(scope="module")
def whole() -> oncurve.TrainedRun:
    """Two steps that nothing interrupted."""
    run = train(reward=closure(3), steps=2, settings=KEPT)
    run.close()
    return run


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_run_of_objects_goes_on_when_they_are_given_again_with_the_rows_that_its_directory_kept(
    container: str, whole: oncurve.TrainedRun, tmp_path: Path
) -> None:
    def stop(result: Any) -> None:
        if result.step == 1:
            raise RuntimeError("pulled the plug")

    reward = closure(3)  # a function at the top of this file would be imported with it, by each worker
    out, rows = tmp_path / "cut", CONTAINERS[container]()
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(data=rows, reward=reward, steps=2, settings=KEPT, out=out, on_step=stop)
    objects = {"model": architecture("llama"), "tokenizer": words_tokenizer(), "reward": reward}
    with oncurve.resume(out, **objects) as again:
        assert [step["policy/loss"] for step in again.metrics] == [step["policy/loss"] for step in whole.metrics]
        for name, weight in whole.model.state_dict().items():
            assert torch.equal(weight, again.model.state_dict()[name]), name
    with oncurve.resume(out, **objects) as finished:
        assert len(finished.metrics) == 2


def test_prompts_may_be_bare_strings_or_token_ids() -> None:
    words = train(data=["w3 w4", "w5"], reward=closure(3))
    words.close()
    assert words.metrics[0]["progress/prompts_seen"] == 2
    reward = lambda completion_ids: float(len(set(completion_ids)))  # noqa: E731 - what a notebook has
    ids = train(model=TinyLM(vocabulary=VOCABULARY), tokenizer=None, data=[torch.tensor([1, 2]), [3]], reward=reward)
    ids.close()
    assert 1 <= ids.metrics[0]["reward/mean"] <= 5  # different tokens among the 5 of a completion


def test_without_held_out_rows_python_and_the_command_line_evaluate_the_same_prompts(
    laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(laid_out)
    settings = {**SETTINGS, "eval": {"limit": 3}}
    run = train(model=laid_out / "model", reward="reward.py:length", out=tmp_path / "run", settings=settings)
    here = run.evaluate(2)
    run.close()
    _, there = evaluate_target(str(tmp_path / "run"), n=2)
    assert not here.held_out
    assert here.prompts == 3
    assert there.to_json() == here.to_json()
    assert "prompts of the training data (the recipe holds none out)" in there.text()


@pytest.mark.parametrize("held_out", [True, False])
def test_a_limit_counts_prompts_that_are_evaluated_not_those_that_were_dropped(
    laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: bool
) -> None:
    monkeypatch.chdir(laid_out)
    rows = [{"prompt": "w3 " * (9 if index % 2 else 2), "answer": "w3"} for index in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["data.max_prompt_tokens=5", "data.overlong=drop", f"data.path={tmp_path / 'rows.jsonl'}"]
    words += ["rewards=[{kind='exact'}]", "rollout.max_new_tokens=2"]
    words += ["data.eval_fraction=0.5"] if held_out else []
    _, found = evaluate_target(str(laid_out / "model"), words, n=1, limit=8)
    assert (found.prompts, found.held_out) == (8, held_out)


def test_a_rotation_by_the_longest_row_is_in_an_evaluation_afterwards_what_it_was_in_the_run(
    laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(laid_out)
    shutil.copytree(laid_out / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    half = config["head_dim"] // 2
    factors = {"short_factor": [1.0] * half, "long_factor": [3.0] * half, "original_max_position_embeddings": 8}
    config["rope_parameters"] = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0, **factors}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    for name, lengths in {"train": (2, 9), "held_out": (3, 5)}.items():
        rows = [{"prompt": " ".join(["w3"] * length), "answer": "w3"} for length in lengths]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reaches: list[int] = []
    monkeypatch.setattr("oncurve.run.building.set_reach", lambda module, tokens: reaches.append(tokens))
    held_out = {"eval_path": str(tmp_path / "held_out.jsonl"), "prompts_per_step": 2}
    train(
        model=tmp_path / "model",
        data=tmp_path / "train.jsonl",
        reward="reward.py:length",
        out=tmp_path / "run",
        settings={**SETTINGS, "data": held_out},
    ).close()
    in_the_run = reaches[-1]
    for limit in (None, 1):
        evaluate_target(str(tmp_path / "run"), n=1, limit=limit)
        assert reaches[-1] == in_the_run
    assert len(reaches) == 3


def test_an_argument_and_its_setting_are_the_same_configuration(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('extends = "grpo_paper"\n[run]\nsteps = 1\n[rollout]\ngroup_size = 4\nmax_new_tokens = 5\n')
    template, reward = "{answer} w1", closure(3)

    def config(data: dict[str, Any] | None = None, **arguments: Any) -> Any:
        tables = {**SETTINGS, **arguments.pop("tables", {}), "data": {"prompts_per_step": 2, **(data or {})}}
        run = train(**{"reward": reward, "settings": tables, **arguments})
        run.close()
        return run.run.config

    said = config(seed=5, template=template, kl_coef=0.5, lora_rank=None)
    rewards = [{"kind": "python", "function": reward}]
    tables = {"run": {"seed": 5}, "rewards": rewards, "kl.coef": 0.5}
    assert said == config({"template": template}, tables=tables, reward=None)
    assert config(recipe=recipe, steps=None).kl.coef == 0.04
    both = config(preset=["dr_grpo", "lora"])
    assert (both.advantage, both.lora.rank) == (config(preset="dr_grpo").advantage, 16)
    assert config(recipe=recipe, steps=None, preset="dr_grpo").kl.coef == 0  # as `extends=dr_grpo` on the command line


def test_a_run_shows_itself_its_groups_its_samples_and_its_metrics(laid_out: Path, tmp_path: Path) -> None:
    with train(model=laid_out / "model", reward=closure(3), steps=2, out=tmp_path / "run") as run:
        assert "2 steps" in run._repr_html_()
        assert "w3" not in run._repr_html_()  # no rows
        table = run.metrics.to_pandas()
        assert list(table.index) == [1, 2]
        assert table["reward/mean"].tolist() == [line["reward/mean"] for line in run.metrics]
        last, first = run.groups(), run.groups(1)
        assert (last.step, first.step) == (2, 1)
        assert [len(group["completions"]) for group in first] == [4, 4]
        with pytest.raises(ConfigError, match=r"no groups of step 3; .* there are those of: 1, 2"):
            run.groups(3)
        sampled, again = run.sample(3), run.sample(3)
        assert [group["completions"][0]["reward"] is None for group in sampled] == [False] * 3
        assert [g["completions"][0]["ids"] for g in sampled] != [g["completions"][0]["ids"] for g in again]
        (greedy,) = run.sample(2, "w3 w4", temperature=0)
        assert greedy["completions"][0]["ids"] == greedy["completions"][1]["ids"]
        assert run.report().path == tmp_path / "run" / "report.html"
        assert "reward/mean" in run.plot("reward/mean").html
        for wrong in (
            {"n": 0},
            {"n": "3"},
            {"n": 1.5},
            *({"temperature": t} for t in (-1.0, math.nan, math.inf, "hot")),
        ):
            with pytest.raises(ConfigError, match=r"at least [01], got"):
                run.sample(**wrong)
        with pytest.raises(ConfigError, match="at least 0, got -1"):
            run.evaluate(-1)
        with pytest.raises(DataError, match="prompt: "):
            run.sample(1, 5)
    for call in (run.sample, run.evaluate):
        with pytest.raises(ConfigError, match="the run is closed"):
            call()
    resumed = oncurve.resume(tmp_path / "run", reward=closure(3))
    resumed.close()
    kept = resumed.groups()
    assert kept.step == 2
    assert kept == last


def test_every_argument_that_is_a_setting_is_offered_and_documented() -> None:
    source = Path(str(inspect.getsourcefile(CommonSettings))).read_text(encoding="utf-8")
    offered = inspect.signature(oncurve.train).parameters
    known = {"model", "template", "steps", "seed", *CommonSettings.__annotations__}
    key_of = {name: key for key, name in ARGUMENT_OF.items() if name in known}
    for name, key in key_of.items():
        assert RUN.knows(key)
        assert offered[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert name in ("model", "template", "steps", "seed") or f"    {name}: Annotated[" in source
    assert set(key_of) == known


def test_a_function_of_a_file_needs_nothing_at_resume(
    laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores_of_mine.py").write_text("def remainder(completion):\n    return float(len(completion) % 3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    from scores_of_mine import remainder

    train(model=laid_out / "model", reward=remainder, steps=1, out=tmp_path / "run").close()
    saved = (tmp_path / "run" / "config.toml").read_text()
    assert f'path = "{tmp_path}/scores_of_mine.py:remainder"' in saved
    (tmp_path / "run" / "config.toml").write_text(saved.replace("steps = 1", "steps = 2"))
    assert resume_run(tmp_path / "run") is None
    assert "step 2/2" in capsys.readouterr().out


def test_an_interrupt_before_the_first_step_has_a_sentence_for_a_notebook_and_no_frames(laid_out: Path) -> None:
    def rows() -> Any:
        yield {"prompt": "a b"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="before the first step; nothing was trained") as caught:
        oncurve.train(model=laid_out / "model", data=rows(), reward=by_columns, settings=SETTINGS)
    assert len(caught.value._render_traceback_()) == 1  # type: ignore[attr-defined]  # what a cell shows


def test_what_a_notebook_shows_begins_with_the_evaluation_before_training(tmp_path: Path) -> None:
    settings = {"eval.every": 1, "eval.limit": 8, "data.prompts_per_step": 2, "run.threads": 1}
    with oncurve.train("task", steps=2, settings=settings, out=tmp_path / "run") as run:
        lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [0, 1, 2]
        card, evaluation = run._repr_html_(), run.evaluate(2)
        assert "step 0" in run.plot("eval/accuracy").html
    with oncurve.resume(tmp_path / "run") as again:
        assert again._repr_html_() == card
        assert [line["step"] for line in again.metrics] == [1, 2]
        assert again.run.before == lines[0]
    first = lines[0]["eval/accuracy"]
    assert f"{first:.0%}".removesuffix("%") in card.partition("accuracy, held out")[2][:200]
    printer = io.StringIO()
    printer.text = printer.write  # type: ignore[attr-defined]  # IPython's printer has this method
    evaluation._repr_pretty_(printer, False)
    assert printer.getvalue().startswith("8 held-out prompts, 2 samples each\n  greedy accuracy")
