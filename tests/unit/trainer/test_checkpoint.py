"""What a checkpoint holds beside the learner: the reference as it was then, and the outer loop's own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.learning import finished, make_learner
from fakes.tiny_policy import random_groups
from oncurve import durable
from oncurve.errors import CheckpointError
from oncurve.learner import LocalLearner
from oncurve.trainer import Checkpoints, ReferenceSchedule, StepResult, TrainerState

GROUPS = random_groups()


class Memory:
    """An outer loop that keeps a tensor and a number."""

    def __init__(self, value: float = 0.0) -> None:
        self.kept = torch.full((3,), value)
        self.loaded: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def begin(self, state: TrainerState) -> None: ...

    def end(self, result: StepResult) -> StepResult:
        return result

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"kept": self.kept}, {"draws": 3}

    def load_state(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        self.loaded = tensors, meta


def still(learner: LocalLearner) -> ReferenceSchedule:
    return ReferenceSchedule(0, 1.0, learner)


def save(checkpoints: Checkpoints, learner: LocalLearner, step: int) -> str:
    """Writes a checkpoint; the name of the reference in it."""
    path = checkpoints.save(learner, still(learner), TrainerState(step=step), {})
    return str(json.loads((path / "state.json").read_text())["reference"])


def frozen(folder: Path) -> set[str]:
    return {path.name for path in (folder / "frozen").iterdir()}


def test_a_reference_is_stored_anew_when_it_has_moved_and_goes_with_the_last_that_names_it(tmp_path: Path) -> None:
    learner, checkpoints = make_learner(learning_rate=0.1), Checkpoints(tmp_path, keep=2)
    first = [save(checkpoints, learner, step) for step in (1, 2)]
    written = (tmp_path / "frozen" / first[0]).stat().st_mtime_ns
    learner.update(finished(learner, GROUPS))
    learner.move_reference(0.5)
    moved = [save(checkpoints, learner, 3)]
    assert first[0] == first[1] != moved[0]
    assert frozen(tmp_path) == {first[0], moved[0]}
    assert (tmp_path / "frozen" / first[0]).stat().st_mtime_ns == written
    moved.append(save(checkpoints, learner, 4))
    assert moved[0] == moved[1]
    assert frozen(tmp_path) == {moved[0]}


def test_a_reference_that_does_not_move_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, checkpoints = make_learner(), Checkpoints(tmp_path, keep=1)
    name = save(checkpoints, learner, 1)
    resumed = Checkpoints(tmp_path, keep=1)
    resumed.restore(learner, still(learner))
    monkeypatch.setattr(durable, "store", None)
    assert save(checkpoints, learner, 2) == save(resumed, learner, 3) == name
    assert frozen(tmp_path) == {name}


def test_what_a_kept_checkpoint_names_stays_even_if_it_is_damaged(tmp_path: Path) -> None:
    learner, checkpoints = make_learner(learning_rate=0.1), Checkpoints(tmp_path, keep=1)
    save(checkpoints, learner, 1)
    learner.update(finished(learner, GROUPS))
    learner.move_reference(1.0)
    second = save(checkpoints, learner, 9)
    (tmp_path / "step-000009" / "learner.safetensors").write_bytes(b"torn")
    learner.update(finished(learner, GROUPS))
    learner.move_reference(1.0)
    third = save(checkpoints, learner, 8)  # as a run does that went back to an older one
    assert frozen(tmp_path) == {second, third}
    (tmp_path / "step-000009" / "state.json").unlink()
    assert save(checkpoints, learner, 8) == third
    assert frozen(tmp_path) == {third}


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
def test_a_restored_reference_is_the_one_of_that_step(tmp_path: Path, compute_dtype: torch.dtype | None) -> None:
    settings = {"dtype": torch.float32, "compute_dtype": compute_dtype, "learning_rate": 0.1}
    learner, checkpoints = make_learner(**settings), Checkpoints(tmp_path, keep=2)
    at = {}
    for step in (1, 2):
        learner.update(finished(learner, GROUPS))
        learner.move_reference(0.25)
        save(checkpoints, learner, step)
        at[step] = {name: tensor.clone() for name, tensor in learner.reference_state().items()}
    for step in (2, 1):
        resumed = make_learner(**settings)
        Checkpoints(tmp_path, keep=2).restore(resumed, still(resumed))
        assert resumed.reference_version == step
        state = resumed.reference_state()
        assert all(torch.equal(state[name], tensor) for name, tensor in at[step].items())
        (tmp_path / f"step-{step:06d}" / "learner.safetensors").write_bytes(b"torn")


def test_a_checkpoint_without_a_reference_gets_one_when_there_is_one(tmp_path: Path) -> None:
    bare, learner = make_learner(kl_coef=0.0), make_learner()
    assert save(Checkpoints(tmp_path, keep=1), bare, 1) == "None"
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.restore(learner, still(learner))
    name = save(checkpoints, learner, 2)
    assert frozen(tmp_path) == {name}


def test_what_the_outer_loop_keeps_comes_back(tmp_path: Path) -> None:
    learner = make_learner()
    path = Checkpoints(tmp_path, keep=1).save(learner, Memory(2.0), TrainerState(step=1), {})
    assert json.loads((path / "state.json").read_text())["outer"] == {"draws": 3}
    assert durable.verify(path) == []
    other = Memory()
    Checkpoints(tmp_path, keep=1).restore(learner, other)
    tensors, meta = other.loaded
    assert torch.equal(tensors["kept"], torch.full((3,), 2.0))
    assert meta == {"draws": 3}


def test_an_outer_loop_that_keeps_nothing_leaves_nothing_and_one_that_expects_something_is_told(tmp_path: Path) -> None:
    learner = make_learner()
    path = Checkpoints(tmp_path, keep=1).save(learner, still(learner), TrainerState(step=1), {})
    assert sorted(file.name for file in path.iterdir()) == ["learner.safetensors", "manifest.json", "state.json"]
    assert "outer" not in json.loads((path / "state.json").read_text())
    other = Memory()
    Checkpoints(tmp_path, keep=1).restore(learner, other)
    assert other.loaded == ({}, {})


def test_a_damaged_reference_costs_the_checkpoints_that_name_it_and_no_others(tmp_path: Path) -> None:
    learner, checkpoints = make_learner(learning_rate=0.1), Checkpoints(tmp_path, keep=2)
    first = save(checkpoints, learner, 1)
    learner.update(finished(learner, GROUPS))
    learner.move_reference(1.0)
    second = save(checkpoints, learner, 2)
    content = bytearray((tmp_path / "frozen" / second).read_bytes())
    content[-1] ^= 1
    (tmp_path / "frozen" / second).write_bytes(content)
    state, _, notes = Checkpoints(tmp_path, keep=2).restore(learner, still(learner))
    assert (state.step, learner.reference_version) == (1, 0)
    assert len(notes) == 1
    assert notes[0].startswith("step-000002 is damaged and was passed over")
    assert "has been changed" in notes[0]
    (tmp_path / "frozen" / first).unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint verifies.*is missing"):
        Checkpoints(tmp_path, keep=2).restore(learner, still(learner))
