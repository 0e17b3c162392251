"""A field of a batch cannot be lost on the way: every operation follows from the axes that the fields state."""

from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from oncurve.batching import collate, concat, micro_batches, minibatches, select_groups, select_rows
from oncurve.trainer import Recorder, TrainerState
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch, axes_of

LENGTHS = ((2, 3), (1, 1, 5), (4, 2))


@dataclass(frozen=True)
class Richer(TrainBatch):
    """A batch with one more field of each axis, each of which numbers where it stands."""

    by_token: Tensor | None = field(default=None, metadata={"axes": "BT"})
    by_row: Tensor | None = field(default=None, metadata={"axes": "B"})
    by_step: Tensor | None = field(default=None, metadata={"axes": "BS"})
    by_component: Tensor | None = field(default=None, metadata={"axes": "BK"})
    by_group: tuple[Tensor, ...] | None = field(default=None, metadata={"axes": "G"})
    flat: Tensor | None = field(default=None, metadata={"axes": "NH"})
    deep: Tensor | None = field(default=None, metadata={"axes": "BT"})  # (B, T, K), such as a teacher's best logits
    absent: Tensor | None = field(default=None, metadata={"axes": "BT"})


def richer() -> Richer:
    """Row r says r, its token t 100 r + t, its step s 100 r + s, and the groups say their number as often as it is."""
    groups = [
        Group(
            Prompt(number, "", tuple(range(number + 1))),
            tuple(
                Completion((7,) * length, "", (-0.5,) * length, "eos", index, 10 * number + index)
                for index, length in enumerate(lengths)
            ),
            tuple(Score(float(index), step_ends=(0,), step_rewards=(0.5,)) for index in range(len(lengths))),
        )
        for number, lengths in enumerate(LENGTHS)
    ]
    plain = collate(groups)
    rows = torch.arange(plain.size)
    by_token = (100 * rows[:, None] + torch.arange(plain.completion_ids.shape[1])) * plain.existing()
    return Richer(
        **{entry.name: getattr(plain, entry.name) for entry in fields(plain)},
        by_token=by_token,
        deep=torch.stack([by_token, -by_token, 2 * by_token], 2),
        by_row=rows,
        by_step=100 * rows[:, None] + torch.arange(2),
        by_component=100 * rows[:, None] + torch.arange(3),
        by_group=tuple(torch.full((number,), number) for number in range(len(groups))),
        flat=torch.tensor([[100 * row + t] for row, n in enumerate(chain(*LENGTHS)) for t in range(n)]),
    )


def check(batch: TrainBatch) -> None:
    """Each row, group and token of `batch` has of every field what it had in the whole batch."""
    assert type(batch) is Richer
    whole = richer()
    rows = batch.by_row
    assert torch.equal(batch.by_token, whole.by_token[rows][:, : batch.completion_ids.shape[1]])
    assert torch.equal(batch.deep, torch.stack([batch.by_token, -batch.by_token, 2 * batch.by_token], 2))
    assert torch.equal(batch.by_step, whole.by_step[rows])
    assert torch.equal(batch.by_component, whole.by_component[rows])
    assert torch.equal(batch.component_rewards, whole.component_rewards[rows])
    tokens = [100 * row + t for row, n in zip(rows.tolist(), batch.lengths.tolist(), strict=True) for t in range(n)]
    assert batch.flat.flatten().tolist() == tokens
    assert batch.absent is None
    assert torch.equal(batch.lengths, whole.lengths[rows])
    assert torch.equal(batch.policy_versions, whole.policy_versions[rows])
    assert torch.equal(batch.token_rewards, whole.token_rewards[rows][:, : batch.completion_ids.shape[1]])
    for row, group in zip(rows.tolist(), batch.group_ids.tolist(), strict=True):
        number = int(whole.group_ids[row])
        assert batch.by_group[group].tolist() == [number] * number
        assert len(batch.prompts[group]) == number + 1


def test_every_piece_of_a_batch_has_every_field():
    batch = richer()
    check(batch)
    check(select_rows(batch, torch.tensor([4, 2, 6])))
    check(select_groups(batch, [2, 0]))
    for pieces in (minibatches(batch, 3, 0, 0, 0), list(micro_batches(batch, 5)), list(micro_batches(batch, 1))):
        for piece in pieces:
            check(piece)
        assert sorted(row for piece in pieces for row in piece.by_row.tolist()) == list(range(batch.size))
    check(concat([select_groups(batch, [1]), select_groups(batch, [2, 0])]))


def test_joining_the_pieces_gives_the_whole():
    batch = richer()
    joined = concat(list(micro_batches(batch, 6)))
    for name, axes in axes_of(batch).items():
        one, other = getattr(batch, name), getattr(joined, name)
        if axes == "G" or name == "group_ids":
            continue  # a group that was cut is two groups now
        assert (one is None and other is None) or torch.equal(one, other), name


def test_an_incident_holds_every_field(tmp_path: Path):
    batch = richer()
    path = Recorder(tmp_path, TrainerState()).incident(1, 0, batch, "why")
    stored = load_file(path / "batch.safetensors")
    for name, axes in axes_of(batch).items():
        value = getattr(batch, name)
        if value is None:
            assert name not in stored
        elif axes == "G":
            parts = torch.split(stored[name], stored[f"{name}.lengths"].tolist())
            assert all(torch.equal(part, other) for part, other in zip(parts, value, strict=True))
        else:
            assert torch.equal(stored[name], value), name


def test_a_field_without_axes_is_refused_by_name():
    @dataclass(frozen=True)
    class Careless(TrainBatch):
        extra: Tensor | None = None

    batch = collate([Group(Prompt(0, "", (1,)), (Completion((1,), "", (0.0,), "eos", 0, 0),), (Score(1.0),))])
    careless = Careless(**{entry.name: getattr(batch, entry.name) for entry in fields(batch)})
    with pytest.raises(TypeError, match=r"the field extra of Careless must state its axes"):
        select_rows(careless, torch.tensor([0]))
