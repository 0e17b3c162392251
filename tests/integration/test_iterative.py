"""Iterative GRPO whole: what changes when, what is replayed, and kills inside each of its phases."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.killed_runs import PLACES, compare, finish, killed_at
from fakes.solutions import solution
from fakes.tables import table
from oncurve.config.layers import RECIPES
from oncurve.config.loading import load_config
from oncurve.models import tiny
from oncurve.reward_models import LabelledSteps, PreferencePair
from oncurve.reward_models.learner import OutcomeModel, ProcessModel, RewardModelSettings
from oncurve.run.assembly import Run, assemble
from oncurve.tasks.arithmetic import check_steps, problems

pytestmark = pytest.mark.slow

RECIPE = RECIPES / "task.toml"
STEPS, ITERATION = 6, 2
SETTINGS = [
    *table("iterative", "settings"),
    f"run.steps={STEPS}",
    f"iterative.steps={ITERATION}",
]
KINDS = table("iterative", "kinds")


def half_right(question: str, right: str) -> LabelledSteps:
    """A solution whose last line is wrong."""
    text = right[: right.rindex(" ") + 1] + "1"
    steps = check_steps(text, question)
    return LabelledSteps(question, text, tuple(end for end, _ in steps), tuple(float(sound) for _, sound in steps))


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A reward model of either kind that has seen a few examples."""
    folder = tmp_path_factory.mktemp("networks")
    solved = [(item.prompt, solution(item)) for item in problems("train", 24, seed=9)]
    wrong = [half_right(prompt, text) for prompt, text in solved]
    examples: dict[str, list[Any]] = {
        "process": wrong,
        "outcome": [PreferencePair(w.prompt, text, w.completion) for w, (_, text) in zip(wrong, solved, strict=True)],
    }
    settings: dict[str, RewardModelSettings] = {
        "process": ProcessModel(path=str(tiny.path()), learning_rate=1e-3),
        "outcome": OutcomeModel(path=str(tiny.path()), learning_rate=1e-3),
    }
    for kind, model in settings.items():
        learner = model.build(model.load(new_head=True))
        for start in range(0, 24, 8):
            learner.update(examples[kind][start : start + 8])
        learner.export(folder / kind)
    return {kind: folder / kind for kind in settings}


def words(kind: str, networks: dict[str, Path]) -> list[str]:
    return [*SETTINGS, *KINDS[kind], f"reward_model.path={networks[kind]}"]


@contextmanager
def put_together(overrides: list[str]) -> Iterator[Run]:
    config, base = load_config(RECIPE, overrides)
    with assemble(config, base) as run:
        yield run


def copied(tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
    assert tensors is not None
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def replaying(folder: Path) -> list[str]:
    """Words for a run that is given 30 earlier examples, and trains on half of all again."""
    rows = [half_right(item.prompt, solution(item)) for item in problems("train", 30, seed=2)]
    history = folder / "history.jsonl"
    history.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    return [f"iterative.history={history}", "iterative.replay=0.5"]


@pytest.mark.parametrize("kind", ["process", "outcome"])
def test_reference_and_reward_model_change_at_the_boundaries_and_held_out_prompts_measure_it(
    kind: str, networks: dict[str, Path], tmp_path: Path
) -> None:
    """A process model is trained on a share of all earlier examples again, too."""
    references, models, policies, metrics, seen = [], [], [], [], []
    known, more = (30.0, replaying(tmp_path)) if kind == "process" else (0.0, [])
    with put_together([*words(kind, networks), *more]) as run:
        iterations = run.iterations
        assert iterations is not None
        update = iterations.learner.update
        iterations.learner.update = lambda given: seen.append(len(given)) or update(given)  # type: ignore[method-assign]

        def look(result: Any = None) -> None:
            references.append(copied(run.learner.reference.state()))
            models.append(copied(iterations.learner.optimizer.state()))
            policies.append(copied(dict(run.learner.optimizer.masters)))
            if result is not None:
                metrics.append(result.metrics)

        look()
        assert run.train(look) is None
        numbers = range(1, 1 + STEPS // ITERATION)
        trained, held_out = (
            {str(example.prompt) for number in numbers for example in iterations.replay.of(number, held_out=held)}
            for held in (False, True)
        )
        measured = [number for number in numbers if iterations.replay.of(number, held_out=True)]
    moved = [not same(before, after) for before, after in pairwise(references)]
    assert moved == [step % ITERATION == 1 and step > 1 for step in range(1, STEPS + 1)]
    for step in range(ITERATION + 1, STEPS + 1, ITERATION):
        assert same(references[step], policies[step - 1])
        assert metrics[step - 1]["policy/kl"] == 0.0
    taught = [not same(before, after) for before, after in pairwise(models)]
    new = [line.get("reward_model/new_examples", 0.0) for line in metrics]
    assert taught == [count > 0 for count in new]
    assert [count > 0 for count in new] == [step % ITERATION == 0 for step in range(1, STEPS + 1)]
    assert [line["progress/iteration"] for line in metrics] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert all("rewards/truth" in line for line in metrics)
    for line in metrics[ITERATION - 1 :: ITERATION] if more else ():
        assert line["reward_model/history_examples"] == known
        assert line["reward_model/replayed_examples"] == round(0.5 * known)
        known += line["reward_model/new_examples"]
    counted = ("reward_model/new_examples", "reward_model/replayed_examples")
    assert sum(seen) == sum(line.get(name, 0.0) for line in metrics for name in counted)
    assert trained
    assert held_out
    assert not trained & held_out
    for number in measured:
        line = metrics[number * ITERATION - 1]
        assert 0 <= line["reward_model/heldout_accuracy_before"] <= 1
        assert 0 <= line["reward_model/heldout_accuracy"] <= 1
        assert line["reward_model/heldout_loss"] > 0


@pytest.fixture(scope="session")
def whole(networks: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The uninterrupted run of either kind, made when it is asked for."""
    folder = tmp_path_factory.mktemp("whole")

    def run(kind: str) -> Path:
        if not (folder / kind).exists():
            finish("train", str(RECIPE), *words(kind, networks), "--out", str(folder / kind))
        return folder / kind

    return run


@pytest.mark.parametrize(("place", "kind"), list(zip(PLACES, [*KINDS, *KINDS], strict=True)))
def test_a_kill_inside_any_phase_and_a_resume_are_the_uninterrupted_run_bit_for_bit(
    place: str, kind: str, networks: dict[str, Path], whole: Callable[[str], Path], tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    killed_at(PLACES[place], "train", str(RECIPE), *words(kind, networks), "--out", out)
    finish("resume", out)
    compare(whole(kind), tmp_path / "run", STEPS)


def test_earlier_examples_that_the_reward_model_cannot_read_are_said(
    networks: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "1+1=", "chosen": "2", "rejected": text} for text in ("3", "3 " * 300)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with put_together([*words("outcome", networks), f"iterative.history={tmp_path / 'pairs.jsonl'}"]) as run:
        assert run.iterations is not None
        assert len(run.iterations.replay.earlier(1)) == 1
    assert "iterative.history: 1 of 2 examples are left out, too long for 256 tokens" in capfd.readouterr().err


def test_a_finished_run_is_evaluated_by_its_verifier(whole: Callable[[str], Path]) -> None:
    assert "greedy accuracy" in finish("eval", str(whole("outcome")), "--n", "2", "--limit", "6")
    shutil.rmtree(whole("outcome") / "reward_model")  # as where a kill came before it was written
    assert "is finished" not in finish("resume", str(whole("outcome")))
    again = finish("resume", str(whole("outcome")))
    assert "is finished" in again
    assert "reward_model" in again
