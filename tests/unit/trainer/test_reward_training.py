"""Passes over judged examples: each once a pass, in an order that a number gives back; stopped anywhere, it goes on."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oncurve import durable
from oncurve.base.errors import CheckpointError, TrainingError
from oncurve.learner import UpdateResult
from oncurve.metrics import Metrics
from oncurve.reward_models import PreferencePair
from oncurve.reward_models.learner import OutcomeModel
from oncurve.reward_models.training import RewardTraining, batch_of, fit, updates_of

EXAMPLES = [PreferencePair(str(number), "a", "b") for number in range(7)]


@dataclass
class Learner:
    """Keeps what it was given, and sums it up so that the order counts; `bad`: updates that are not finite."""

    settings: OutcomeModel
    bad: set[int] = field(default_factory=set)
    batches: list[list[int]] = field(default_factory=list)
    sum: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    count: int = 0

    def update(self, examples: Sequence[Any]) -> UpdateResult:
        numbers = [int(example.prompt) for example in examples]
        self.batches.append(numbers)
        self.count += 1
        if self.count - 1 in self.bad:
            return UpdateResult(Metrics(), skipped=True, reason=f"loss nan in {numbers}")
        for number in numbers:
            self.sum = self.sum * 1.5 + number
        metrics = Metrics()
        metrics.add("reward_model/loss", float(self.sum))
        return UpdateResult(metrics)

    @property
    def changes(self) -> int:
        return self.count

    def save(self, folder: Path) -> dict[str, Any]:
        durable.save_tensors(folder / "learner.safetensors", {"sum": self.sum})
        return {"count": self.count}

    def load(self, folder: Path, meta: Mapping[str, Any]) -> None:
        self.sum, self.count = durable.read_tensors(folder / "learner.safetensors")["sum"], meta["count"]


def learner(epochs: int = 3, batch_size: int = 3, bad: Sequence[int] = ()) -> Learner:
    return Learner(OutcomeModel(epochs=epochs, batch_size=batch_size), set(bad))


@pytest.mark.parametrize(("examples", "size"), [(7, 3), (6, 3), (1, 5), (5, 1), (4, 9)])
def test_each_example_is_met_once_a_pass(examples: int, size: int) -> None:
    per_pass = updates_of(examples, size, 1)
    orders = []
    for epoch in range(3):
        batches = [batch_of(epoch * per_pass + place, examples, size, seed=4) for place in range(per_pass)]
        assert [len(batch) for batch in batches[:-1]] == [size] * (per_pass - 1)
        orders.append([index for batch in batches for index in batch])
        assert sorted(orders[-1]) == list(range(examples))
    assert updates_of(examples, size, 3) == 3 * per_pass
    if examples >= 5:
        assert orders[0] != orders[1] != orders[2]
        assert batch_of(0, examples, size, seed=4) != batch_of(0, examples, size, seed=5) or size == 1


@pytest.mark.parametrize("bad", [(1, 2, 3), (3, 4, 5)])
def test_three_skipped_updates_in_a_row_end_it(bad: tuple[int, ...], tmp_path: Path) -> None:
    for train in (
        lambda made: fit(made, EXAMPLES, seed=4),
        lambda made: RewardTraining(made, EXAMPLES, 4, tmp_path).train(lambda *_: None),
    ):
        with pytest.raises(TrainingError, match=r"3 updates .* in a row .*loss nan in .*reward_model\.learning_rate"):
            train(learner(bad=bad))
    fit(learner(bad=[0, 1, 3, 4, 6, 7]), EXAMPLES, seed=4)


def trained(folder: Path, made: Learner, stop_after: int | None = None, **settings: Any) -> RewardTraining:
    training = RewardTraining(made, EXAMPLES, 4, folder=folder, keep_every=2, environment={"torch": "9"}, **settings)
    if any(folder.iterdir()):
        training.restore()

    def tell(done: int, line: dict[str, float]) -> None:
        if done == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    assert training.train(tell) == (None if stop_after is None else "SIGTERM")
    return training


def checkpoints(folder: Path) -> list[int]:
    return [number for number, _ in durable.numbered(folder / "checkpoints")]


def test_a_damaged_checkpoint_is_passed_over_and_what_followed_is_done_again(tmp_path: Path) -> None:
    one = learner()
    trained(tmp_path, one)
    log = (tmp_path / "metrics.jsonl").read_bytes()
    path = tmp_path / "checkpoints" / "step-000009" / "learner.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    two = learner()
    training = RewardTraining(two, EXAMPLES, 4, folder=tmp_path)
    (note,) = training.restore()
    assert note.startswith("step-000009 is damaged and was passed over")
    assert training.done == 8
    training.train(lambda *_: None)
    assert torch.equal(one.sum, two.sum)
    assert (tmp_path / "metrics.jsonl").read_bytes() == log
    assert durable.verify(path.parent) == []


def test_fit_makes_all_passes_and_says_what_came_of_them() -> None:
    made = learner(epochs=2, bad=[1])
    metrics = fit(made, EXAMPLES, seed=4).result()
    assert made.batches == [batch_of(update, 7, 3, 4) for update in range(6)]
    assert metrics["reward_model/updates"] == 5.0


def test_what_was_skipped_before_a_stop_counts_after_it(tmp_path: Path) -> None:
    trained(tmp_path, learner(bad=[2, 3, 4]), stop_after=4)
    with pytest.raises(TrainingError, match="3 updates"):
        trained(tmp_path, learner(bad=[4]))


def test_where_no_checkpoint_verifies_it_is_an_error(tmp_path: Path) -> None:
    trained(tmp_path, learner(), keep=1)
    (tmp_path / "checkpoints" / "step-000009" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no checkpoint verifies\. step-000009 is damaged"):
        RewardTraining(learner(), EXAMPLES, 4, folder=tmp_path).restore()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"format": 2, "done": 3}, "checkpoint format 2, and this oncurve reads format 3"),
        ({"format": 3}, "is not of a"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(tmp_path: Path, record: dict[str, Any], said: str) -> None:
    files = {"state.json": durable.to_json(record)}
    durable.write_directory(tmp_path / "checkpoints" / "step-000003", files)
    with pytest.raises(CheckpointError, match=said):
        RewardTraining(learner(), EXAMPLES, 4, folder=tmp_path).restore()
