"""The replay buffer: nothing is forgotten, what a checkpoint had not seen is cut off, and replays are repeatable."""

from pathlib import Path

import pytest

from oncurve.errors import CheckpointError
from oncurve.trainer.replay import FILE, Replay
from oncurve.types import LabelledSteps, PreferencePair


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


def test_a_log_that_has_lost_lines_is_an_error(tmp_path: Path) -> None:
    first = on_disk(tmp_path)
    first.add(1, pairs("one", 1), held_out=False)
    offset = first.stored_bytes()
    first.close()
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(CheckpointError, match=FILE):
        on_disk(tmp_path, offset)
