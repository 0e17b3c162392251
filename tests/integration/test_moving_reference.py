"""A reference that follows the policy, in whole runs of the shipped model: its moves, and that a resume is exact."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes.killed_runs import metrics_of
from fakes.tables import table
from oncurve.config.layers import RECIPES
from oncurve.config.loading import load_config
from oncurve.run.assembly import Run, assemble
from oncurve.run.directory.folder import RunDirectory
from oncurve.run.session import create_directory
from oncurve.trainer import StepResult

RECIPE = RECIPES / "task.toml"
STEPS = 6
SETTINGS = [
    *table("moving_reference", "settings"),
    f"run.steps={STEPS}",
]
AVERAGE = ["reference.every=2", "reference.mixup_alpha=0.5"]


@contextmanager
def put_together(out: Path | None, *overrides: str) -> Iterator[Run]:
    """A run that begins in `out`, or one that goes on there."""
    if out is not None and out.exists():
        config, base = load_config(out / "config.toml")
        with assemble(config, base) as run:
            run.open_directory(RunDirectory.open(out))
            run.restore()
            yield run
        return
    config, base = load_config(RECIPE, [*SETTINGS, *overrides])
    with assemble(config, base) as run:
        if out is not None:
            create_directory(run, out)
        yield run


def ended(run: Run) -> dict[str, Tensor]:
    """Everything that the next step would begin with."""
    assert run.trainer.state.step == STEPS
    reference = {f"reference.{name}": tensor for name, tensor in run.learner.reference.state().items()}
    return {name: tensor.clone() for name, tensor in (run.learner.optimizer.state() | reference).items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_moves_at_its_steps_and_is_the_same_to_the_bit_in_between(dtype: str) -> None:
    references, policies, metrics = [], [], []

    with put_together(None, f"model.dtype={dtype}", "reference.every=2") as run:

        def look(result: StepResult) -> None:
            references.append({name: tensor.clone() for name, tensor in run.learner.reference.state().items()})
            weights = run.learner.weights().local().module.named_parameters()
            policies.append({name: parameter.detach().clone() for name, parameter in weights})
            metrics.append(result.metrics)

        given = {name: tensor.clone() for name, tensor in run.learner.reference.state().items()}
        run.train(look)
    right = [given, given, policies[1], policies[1], policies[3], policies[3]]
    assert all(same(seen, wanted) for seen, wanted in zip(references, right, strict=True))
    assert not same(policies[1], policies[3])
    assert [line["step"] for line in metrics if line.get("reference/moved") == 1] == [3, 5]
    assert all("reference/moved" not in metrics[index] for index in (0, 1, 3, 5))
    assert [line["policy/kl"] < 1e-9 for line in metrics] == [True, False] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["model.dtype=float32", *AVERAGE],
        ["model.dtype=bfloat16", *AVERAGE],
        ["model.dtype=bfloat16", "reference.every=2"],
    ],
    ids=["float32", "bfloat16", "bfloat16 copies"],
)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, settings: list[str]) -> None:
    with put_together(tmp_path / "whole", *settings) as run:
        run.train()
        whole = ended(run)
    broken = tmp_path / "broken"
    for stop in (2, 3, 4, None):  # before a step that begins with a move, and before one that does not

        def look(result: StepResult, stop: int | None = stop) -> None:
            if result.step == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        with put_together(broken, *settings) as run:
            assert run.train(look) == (None if stop is None else "SIGTERM")
            last = run
    assert same(ended(last), whole)
    assert metrics_of(broken, "cluster/") == metrics_of(tmp_path / "whole", "cluster/")
    assert metrics_of(broken, "cluster/")[-1]["policy/kl"] > 0
    named = {
        json.loads(path.read_text())["learner"]["reference"]["tensors"]
        for path in broken.glob("checkpoints/step-*/state.json")
    }
    assert {path.name for path in (broken / "checkpoints" / "frozen").iterdir()} == named
    kept = json.loads((broken / f"checkpoints/step-{STEPS:06d}/state.json").read_text())
    assert kept["outer"] == {"moved_for": 5}
    assert kept["learner"]["reference"]["version"] == 2
