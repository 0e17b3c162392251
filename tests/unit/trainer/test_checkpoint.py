"""What a checkpoint holds: the learner's files, what is stored once, and the outer loop's own."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.learning import finished, make_learner
from fakes.tiny_policy import random_groups
from oncurve import durable
from oncurve.base.errors import CheckpointError
from oncurve.learner import LocalLearner, ReferenceSettings
from oncurve.reward_models import LabelledSteps, PreferencePair
from oncurve.reward_models.iterative import FILE, Replay
from oncurve.trainer import Checkpoints, OuterLoop, ReferenceSchedule, StepResult, TrainerState

GROUPS = random_groups()


class Memory:
    """An outer loop that keeps a tensor and a number."""

    def __init__(self, value: float = 0.0) -> None:
        self.kept = torch.full((3,), value)

    def before_step(self, state: TrainerState) -> None: ...

    def after_step(self, result: StepResult) -> StepResult:
        return result

    def save(self, folder: Path) -> dict[str, Any]:
        (folder / "outer").mkdir()
        durable.save_tensors(folder / "outer" / "kept.safetensors", {"kept": self.kept})
        return {"draws": 3}

    def load(self, folder: Path, meta: dict[str, Any]) -> None:
        assert meta["draws"] == 3
        self.kept = durable.read_tensors(folder / "outer" / "kept.safetensors")["kept"]


def still(learner: LocalLearner) -> ReferenceSchedule:
    return ReferenceSchedule(ReferenceSettings(every=0, mixup_alpha=1.0), learner)


def save(checkpoints: Checkpoints, learner: LocalLearner, step: int) -> str:
    """Writes a checkpoint; the name of the reference in it."""
    path = checkpoints.save(learner, still(learner), TrainerState(step=step), {})
    return str(record_of(path)["learner"].get("reference", {}).get("tensors"))


def record_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "state.json").read_text())


def frozen(folder: Path) -> set[str]:
    return {path.name for path in (folder / "frozen").iterdir()}


def test_a_reference_is_stored_again_when_it_has_moved_and_goes_with_the_last_that_names_it(tmp_path: Path) -> None:
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


def test_what_the_outer_loop_saves_comes_back_and_the_manifest_covers_it(tmp_path: Path) -> None:
    learner = make_learner()
    path = Checkpoints(tmp_path, keep=1).save(learner, Memory(2.0), TrainerState(step=1), {})
    assert record_of(path)["outer"] == {"draws": 3}
    assert durable.verify(path) == []
    other = Memory()
    Checkpoints(tmp_path, keep=1).restore(learner, other)
    assert torch.equal(other.kept, torch.full((3,), 2.0))
    (path / "outer" / "kept.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"no checkpoint verifies.*outer/kept"):
        Checkpoints(tmp_path, keep=1).restore(learner, other)


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
    assert (state.step, learner.reference.version) == (1, 0)
    assert len(notes) == 1
    assert notes[0].startswith("step-000002 is damaged and was passed over")
    assert "has been changed" in notes[0]
    (tmp_path / "frozen" / first).unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint verifies.*is missing"):
        Checkpoints(tmp_path, keep=2).restore(learner, still(learner))


def moves(outer: ReferenceSchedule, steps: int, begun: int = 1) -> list[int]:
    """The steps (from 1) that began with a move; each is begun `begun` times."""
    found = []
    for done in range(steps):
        for _ in range(begun):
            outer.before_step(TrainerState(step=done))
        if outer.after_step(result(done + 1)).metrics.get("reference/moved"):
            found.append(done + 1)
    return found


def result(step: int) -> StepResult:
    return StepResult(step, {}, (), ())


@pytest.mark.parametrize(
    ("every", "steps"), [(0, []), (1, [2, 3, 4, 5, 6, 7]), (2, [3, 5, 7]), (3, [4, 7]), (6, [7]), (7, [])]
)
@pytest.mark.parametrize("begun", [1, 3])
def test_it_moves_after_every_so_many_steps_and_once_for_a_step_that_is_begun_again(
    every: int, steps: list[int], begun: int
) -> None:
    learner = make_learner()
    outer: OuterLoop = ReferenceSchedule(ReferenceSettings(every=every, mixup_alpha=0.5), learner)
    assert moves(outer, 7, begun) == steps
    assert learner.reference.version == len(steps)


def pairs(name: str, count: int) -> list[PreferencePair]:
    return [PreferencePair(f"{name}{n}", "ü", "no", n / 4) for n in range(count)]


def filled() -> Replay:
    replay = Replay(pairs("history", 5))
    replay.add(1, pairs("one", 10), held_out=False)
    replay.add(1, pairs("held", 3), held_out=True)
    replay.add(2, pairs("two", 10), held_out=False)
    return replay


def test_examples_are_kept_by_iteration() -> None:
    replay = filled()
    assert replay.of(1) == pairs("one", 10)
    assert replay.of(1, held_out=True) == pairs("held", 3)
    assert replay.of(2) == pairs("two", 10)
    assert replay.of(3) == []
    assert replay.earlier(1) == pairs("history", 5)
    assert replay.earlier(2) == pairs("history", 5) + pairs("one", 10)
    assert replay.earlier(3) == pairs("history", 5) + pairs("one", 10) + pairs("two", 10)


@pytest.mark.parametrize(
    ("share", "counts"), [(0.0, (0, 0, 0)), (0.1, (0, 2, 2)), (0.3, (2, 4, 8)), (1.0, (5, 15, 25))]
)
def test_a_share_of_all_earlier_examples_is_replayed(share: float, counts: tuple[int, ...]) -> None:
    replay = filled()
    for iteration, count in zip((1, 2, 3), counts, strict=True):  # rounded halves go to the even number
        drawn = replay.replayed(iteration, share, seed=7)
        assert len(drawn) == count
        asked = [example.prompt for example in drawn]
        earlier = [example.prompt for example in replay.earlier(iteration)]
        assert asked == [prompt for prompt in earlier if prompt in asked], "in the order in which they were made, once"
        assert not set(asked) & {example.prompt for example in replay.of(iteration)}
        assert not any(prompt.startswith("held") for prompt in asked)


def on_disk(folder: Path, offset: int | None = None) -> Replay:
    replay = Replay()
    replay.folder = folder
    if offset is not None:
        replay.open(offset)
    return replay


def test_the_log_comes_back_whole_and_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    steps = [LabelledSteps(({"role": "user", "content": "2+2?"},), "4\n4", (2, 3), (0.25, None))]
    first = on_disk(tmp_path)
    assert first.stored_bytes() == 0
    first.add(1, pairs("one", 3), held_out=False)
    first.add(1, steps, held_out=True)
    kept = first.stored_bytes()
    assert kept == (tmp_path / FILE).stat().st_size > 0
    first.add(2, pairs("lost", 2), held_out=False)
    first.close()
    again = on_disk(tmp_path, kept)
    assert again.of(1) == pairs("one", 3)
    assert again.of(1, held_out=True) == steps
    assert again.of(2) == []
    assert (tmp_path / FILE).stat().st_size == again.stored_bytes() == kept
    again.add(2, pairs("two", 1), held_out=False)
    again.close()
    assert on_disk(tmp_path, kept + len((tmp_path / FILE).read_bytes()[kept:])).of(2) == pairs("two", 1)


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


def test_a_checkpoint_without_a_reference_gets_one_when_there_is_one(tmp_path: Path) -> None:
    bare, learner = make_learner(kl_coef=0.0), make_learner()
    assert save(Checkpoints(tmp_path, keep=1), bare, 1) == "None"
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.restore(learner, still(learner))
    name = save(checkpoints, learner, 2)
    assert frozen(tmp_path) == {name}


def test_an_outer_loop_that_saves_nothing_leaves_nothing_and_one_that_expects_something_is_told(tmp_path: Path) -> None:
    learner = make_learner()
    path = Checkpoints(tmp_path, keep=1).save(learner, still(learner), TrainerState(step=1), {})
    assert sorted(file.name for file in path.iterdir()) == ["learner.safetensors", "manifest.json", "state.json"]
    assert record_of(path)["outer"] == {}
    with pytest.raises(CheckpointError, match=r"lacks 'draws': a run with other settings wrote it"):
        Checkpoints(tmp_path, keep=1).restore(learner, Memory())


def test_what_fails_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    learner = make_learner()
    save(Checkpoints(tmp_path, keep=1), learner, 1)

    def fails(folder: Path) -> dict[str, Any]:
        durable.save_tensors(folder / "learner.safetensors", {"one": torch.ones(3)})
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(durable.StorageError, match=r"step-000002 cannot be written.*free some space and resume"):
        Checkpoints(tmp_path, keep=1).write(2, fails)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frozen", "step-000001"]


def test_what_is_replayed_is_a_function_of_seed_and_iteration() -> None:
    assert filled().replayed(3, 0.4, seed=1) == filled().replayed(3, 0.4, seed=1)
    assert filled().replayed(3, 0.4, seed=1) != filled().replayed(3, 0.4, seed=2)
    long = Replay(pairs("history", 200))
    assert long.replayed(1, 0.1, seed=1) != long.replayed(2, 0.1, seed=1)
    assert Replay().replayed(1, 0.5, seed=1) == []
