"""Groups to tensors, and the pieces of a batch."""

from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from oncurve.batching import collate, micro_batches, minibatches, select_groups, select_rows
from oncurve.ops import in_rows
from oncurve.trainer import Recorder, TrainerState
from oncurve.types import RAGGED, Completion, Ending, Group, Prompt, Score, TrainBatch, axes_of, sent


def completion(ids: tuple[int, ...], index: int = 0, ended: Ending = "eos") -> Completion:
    return Completion(ids, "", tuple(-0.1 * (t + 1) for t in range(len(ids))), ended, index, 0)


def group(prompt: tuple[int, ...], *completions: tuple[int, ...], scores: tuple[Score, ...] | None = None) -> Group:
    return Group(
        Prompt(0, "", prompt),
        tuple(completion(ids, index) for index, ids in enumerate(completions)),
        tuple(Score(float(index)) for index in range(len(completions))) if scores is None else scores,
    )


def test_the_worked_example_of_the_types() -> None:
    completions = (completion((6, 2)), completion((7, 7, 7), 1))
    batch = collate([Group(Prompt(7, "2+2=", (5, 9, 5, 3)), completions, (Score(1.0), Score(0.0)))])
    assert batch.completion_ids.tolist() == [[6, 2, 0], [7, 7, 7]]
    assert batch.completion_ids.dtype == torch.int64
    assert batch.lengths.tolist() == [2, 3]
    assert batch.loss_mask.tolist() == [[True, True, False], [True, True, True]]
    assert batch.group_ids.tolist() == [0, 0]
    assert [p.tolist() for p in batch.prompts] == [[5, 9, 5, 3]]
    assert batch.valid.tolist() == [True, True]
    assert batch.rewards.tolist() == [1.0, 0.0]
    assert batch.rewards.dtype == torch.float64
    assert batch.rollout_logprobs[1].tolist() == [-0.1, -0.2, -0.1 * 3]


def test_tokens_that_the_policy_did_not_write_are_not_trained() -> None:
    gaps = replace(completion((7, 8, 9)), trained=(True, False, True))
    none = replace(completion((7,)), trained=(False,))
    scores = (Score(1.0), Score(0.0), Score(0.0, valid=False), Score(0.5))
    batch = collate([Group(Prompt(0, "", (1,)), (gaps, none, gaps, completion((6, 2))), scores)])
    assert batch.loss_mask.int().tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert batch.token_count == 4
    assert batch.existing().sum(1).tolist() == [3, 1, 3, 2]
    assert batch.token_rewards.sum(1).tolist() == batch.rewards.tolist() == [1.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize("trained", [(), (True,), (True, False, True, True)])
def test_as_many_entries_of_trained_as_tokens_or_an_error(trained: tuple[bool, ...]) -> None:
    odd = replace(completion((7, 8, 9)), trained=trained)
    with pytest.raises(ValueError, match=rf"the group of prompt 0: 3 tokens but {len(trained)} entries in `trained`"):
        collate([Group(Prompt(0, "", (1,)), (odd,), (Score(1.0),))])


def test_truncated_completions_can_be_left_out_of_the_loss_but_stay_in_the_statistics() -> None:
    cut = Group(Prompt(0, "", (1,)), (completion((4, 4), 0, "length"), completion((4,), 1)), (Score(1.0), Score(0.0)))
    assert collate([cut]).loss_mask.sum(1).tolist() == [2, 1]
    batch = collate([cut], mask_truncated=True)
    assert batch.loss_mask.sum(1).tolist() == [0, 1]
    assert batch.valid.tolist() == [True, True]


def test_step_rewards_are_carried() -> None:
    scores = (Score(1.0, step_ends=(0, 1), step_rewards=(0.2, 0.8)), Score(0.0))
    batch = collate([group((1,), (4, 4), (4, 4), scores=scores)])
    assert batch.step_ends.tolist() == [[0, 1], [0, 0]]
    assert batch.step_rewards.tolist() == [[0.2, 0.8], [0.0, 0.0]]
    assert batch.step_counts.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(group((1,), (4,)), scores=()), "1 completions but 0 scores"),
        (replace(group((1,), (4,)), scores=(Score(1.0), Score(1.0))), "1 completions but 2 scores"),
        (replace(group((1,), (4,)), completions=(), scores=()), "no completions"),
        (group((1,), (4,), scores=(Score(float("nan")),)), "not finite"),
        (group((1,), (4,), scores=(Score(float("inf")),)), "not finite"),
        (replace(group((1,), (4,)), completions=(replace(completion((4,)), logprobs=()),)), "1 tokens but 0 log-probs"),
        (group((1,), (4,), scores=(Score(1.0, step_ends=(0,)),)), "1 step ends but 0 step rewards"),
        (group((1,), (4,), scores=(Score(1.0, step_ends=(1,), step_rewards=(1.0,)),)), "step ends"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(broken: Group, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collate([broken])
    with pytest.raises(ValueError, match="at least one group"):
        collate([])


def test_minibatches_differ_between_passes_and_steps_but_not_between_calls() -> None:
    many = collate([group((number,), (1,), (2,)) for number in range(12)])

    def plan(seed: int, step: int, pass_index: int) -> list[list[int]]:
        return [[int(p[0]) for p in piece.prompts] for piece in minibatches(many, 3, seed, step, pass_index)]

    assert plan(0, 0, 0) == plan(0, 0, 0)
    assert all(piece == sorted(piece) for piece in plan(0, 0, 0))
    assert len({str(plan(*at)) for at in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]}) == 4


def test_the_rewards_of_the_tokens_add_up_to_the_completions_exactly() -> None:
    rewards = (0.1, -0.7, 1e-300, 1e300, 3.0000000000000004)
    scores = (*(Score(reward) for reward in rewards), Score(5.0, valid=False))
    batch = collate([group((1,), *((1,) * (1 + 7 * index) for index in range(len(scores))), scores=scores)])
    assert torch.equal(batch.token_rewards.sum(1), batch.rewards)
    assert batch.rewards.tolist() == [*rewards, 0.0]
    assert int((batch.token_rewards != 0).sum()) == len(rewards)
    assert bool((batch.token_rewards.gather(1, batch.lengths[:, None] - 1).squeeze(1) == batch.rewards).all())


LENGTHS = ((2, 3), (1, 1, 5), (4, 2))


@dataclass(frozen=True)
class Richer(TrainBatch):
    """A batch with one more field of each axis, each of which numbers where it stands."""

    by_token: Tensor | None = field(default=None, metadata={"axes": "BT"})
    by_row: Tensor | None = field(default=None, metadata={"axes": "B"})
    by_step: Tensor | None = field(default=None, metadata={"axes": "BS"})
    by_component: Tensor | None = field(default=None, metadata={"axes": "BK"})
    by_group: tuple[Tensor, ...] | None = field(default=None, metadata={"axes": "G"})
    of_row: tuple[Tensor, ...] | None = field(default=None, metadata={"axes": "R"})
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
        of_row=tuple(torch.full((row % 3,), row) for row in range(plain.size)),
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
    assert [one.tolist() for one in batch.of_row] == [[row] * (row % 3) for row in rows.tolist()]
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


def test_an_incident_holds_every_field(tmp_path: Path):
    batch = richer()
    path = Recorder(tmp_path, TrainerState()).incident(1, 0, batch, "why")
    stored = load_file(path / "batch.safetensors")
    for name, axes in axes_of(batch).items():
        value = getattr(batch, name)
        if value is None:
            assert name not in stored
        elif axes in RAGGED:
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


def three_groups() -> TrainBatch:
    """Lengths [2, 3], [1, 1], [4, 2]; prompts of 4, 1 and 2 tokens; stats and hidden states that number tokens."""
    batch = collate(
        [group((5, 9, 5, 3), (6, 2), (7, 7, 7)), group((1,), (2,), (0,)), group((1, 2), (1, 1, 1, 1), (3, 0))]
    )
    numbers = torch.arange(batch.completion_ids.numel()).reshape(batch.completion_ids.shape)
    return batch.having(
        old_logprobs=-numbers.double(),
        token_weights=numbers.double(),
        ref_hidden=torch.arange(int(batch.lengths.sum())).double()[:, None].expand(-1, 2),
    )


@pytest.mark.parametrize("groups", [[], [3], [-1], [0, 0]])
def test_groups_that_are_not_there_cannot_be_selected(groups: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot select"):
        select_groups(three_groups(), groups)


def test_one_minibatch_is_the_batch_itself_and_there_are_never_more_than_groups() -> None:
    batch = three_groups()
    assert minibatches(batch, 1, 0, 0, 0)[0] is batch
    assert len(minibatches(batch, 10, 0, 0, 0)) == 3


@pytest.mark.parametrize(("count", "pass_index"), [(0, 0), (1, -1), (1, 1 << 20)])
def test_minibatch_numbers_out_of_range_are_refused(count: int, pass_index: int) -> None:
    with pytest.raises(ValueError, match="count must be >= 1"):
        minibatches(three_groups(), count, 0, 0, pass_index)


def test_a_group_that_fits_whole_in_a_new_piece_is_not_split() -> None:
    """Costs: group 0 is 4 + 2 + 3 = 9, group 1 is 1 + 1 + 1 = 3, group 2 is 2 + 4 + 2 = 8."""
    assert [piece.size for piece in micro_batches(three_groups(), 20)] == [6]
    assert [piece.size for piece in micro_batches(three_groups(), 12)] == [4, 2]
    assert [piece.size for piece in micro_batches(three_groups(), 11)] == [2, 4]
    assert [piece.size for piece in micro_batches(three_groups(), 9)] == [2, 2, 2]


def test_a_group_above_the_budget_is_split_and_its_prompt_repeated() -> None:
    pieces = list(micro_batches(three_groups(), 7))
    assert [piece.size for piece in pieces] == [1, 1, 2, 1, 1]
    assert [[len(p) for p in piece.prompts] for piece in pieces] == [[4], [4], [1], [2], [2]]
    assert [piece.group_ids.tolist() for piece in pieces] == [[0], [0], [0, 0], [0], [0]]


def test_rows_of_the_next_group_fill_room_for_many_times_their_prompt() -> None:
    """A group costs 1 + 4·10 = 41; 58 leave 17 to the second, of which one row fits, and 56 leave less than 16."""
    batch = collate([group((number,), *[(7,) * 10] * 4) for number in range(3)])
    assert [piece.size for piece in micro_batches(batch, 58)] == [5, 5, 2]
    assert [piece.size for piece in micro_batches(batch, 56)] == [4, 4, 4]
    assert [[int(p[0]) for p in piece.prompts] for piece in micro_batches(batch, 58)] == [[0, 1], [1, 2], [2]]


def test_where_larger_pieces_are_no_faster_they_end_early_unless_prompts_are_long() -> None:
    short, long = (collate([group((1,) * size, *[(7,) * 10] * 4) for _ in range(3)]) for size in (1, 4))
    assert [piece.size for piece in micro_batches(short, 1000, enough=21)] == [2, 2, 2, 2, 2, 2]
    assert [piece.size for piece in micro_batches(short, 15, enough=21)] == [1] * 12
    assert [piece.size for piece in micro_batches(long, 1000, enough=21)] == [4, 4, 4]


def test_a_row_above_the_budget_goes_alone() -> None:
    assert [piece.size for piece in micro_batches(three_groups(), 1)] == [1] * 6
    with pytest.raises(ValueError, match="tokens_per_micro_batch must be >= 1"):
        next(micro_batches(three_groups(), 0))


def test_an_end_token_that_equals_the_padding_is_trained() -> None:
    batch = collate([group((1,), (4, 0), (4, 4, 0))])
    assert batch.loss_mask.sum(1).tolist() == [2, 3]


def test_padding_to_a_given_length() -> None:
    assert collate([group((1,), (4, 4), (4,))], pad_length=5).completion_ids.shape == (2, 5)
    with pytest.raises(ValueError, match="pad_length 1"):
        collate([group((1,), (4, 4), (4,))], pad_length=1)


def test_tensors_that_are_sent_arrive_as_they_were() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "meta")
    tensors = [
        torch.tensor([[True], [False], [True]]),
        torch.arange(7, dtype=torch.int32),
        torch.zeros(0, 4),
        torch.arange(6, dtype=torch.float64).view(3, 2).t(),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.ones(2, device=device),  # there already
    ]
    arrived = sent(tensors, device)
    assert [(x.shape, x.dtype, x.device.type) for x in arrived] == [(x.shape, x.dtype, device.type) for x in tensors]
    assert len({x.untyped_storage()._cdata for x in arrived}) == 2  # one copy
    if device.type == "cuda":
        assert all(torch.equal(there.cpu(), here.cpu()) for there, here in zip(arrived, tensors, strict=True))
    assert all(there is here for there, here in zip(sent(tensors[:5], torch.device("cpu")), tensors, strict=False))


def test_numbers_of_all_tokens_return_to_their_rows() -> None:
    batch = collate([group((1,), (5,), (6, 7, 8)), group((2,), (9, 9))])
    column = torch.arange(1.0, 7.0, requires_grad=True)
    rows = in_rows(column, batch.slots(), (3, 3))
    assert rows.tolist() == [[1, 0, 0], [2, 3, 4], [5, 6, 0]]
    rows.backward(torch.arange(9.0).view(3, 3))
    assert column.grad is not None
    assert column.grad.tolist() == [0, 3, 4, 5, 6, 7]
