"""Groups to `(B, T)` tensors, and that batch in pieces: minibatches of whole groups, micro-batches by token budget.

Nothing here reads a token's value: masks come from lengths and from what the sampler and the scorer recorded
(an end token that equals the padding id is an ordinary token). Pieces have every field of the batch, their
padding is cut to their longest row, and `token_weights` keep the global denominators, so pieces add up to the whole.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oncurve.randomness import permutation
from oncurve.types import Completion, Group, Score, TrainBatch, axes_of

_PASSES_LIMIT = 1 << 20

FILLED = 16
"""A prompt is computed again in a piece that has room for so many times its tokens: at 0.5B a GPU waits for a piece's
calls, 0.15 to 0.23 s, whatever it holds (docs/gpu.md)."""

ENOUGH = 2048
"""Tokens of a piece on a CPU, unless its prompts are longer than a sixteenth: with 4,500 an update of 6.5M takes a
tenth longer, one of 38M as long, and the process 1.5 and 1.9 times the memory (docs/performance.md)."""

Batch = TypeVar("Batch", bound=TrainBatch)


def collate(groups: Sequence[Group], pad_length: int | None = None, mask_truncated: bool = False) -> TrainBatch:
    """Return scored groups as one batch; rows of a group are adjacent, in order; group i of the sequence has id i.

    T is the longest completion (`pad_length`, where it is given). `loss_mask` is on for every token that the policy
    wrote (`Completion.trained`), except in completions without a valid score and, with `mask_truncated`, in those that
    are `truncated`: these stay in the group's statistics, but are not trained. Recorded log-probs and rewards are
    kept in float64, exactly as recorded; a batch with a completion that was given has no recorded log-probs. Step
    rewards are carried where any score has them; `token_rewards` are made of both. Single rewards are carried where
    their weights are known, kept sets where any completion has them: the others' are the whole vocabulary.

    Raises ValueError: no groups, a group without completions, scores, log-probs, `trained` or kept sets that do not
    match the completions one to one, a non-finite valid reward, a completion longer than `pad_length`.
    """
    if not groups:
        raise ValueError("collate needs at least one group")
    for group in groups:
        _check(group)
    rows = [pair for group in groups for pair in zip(group.completions, group.scores, strict=True)]
    completions = [completion for completion, _ in rows]
    lengths = torch.tensor([len(completion.ids) for completion in completions])
    width = int(lengths.max()) if pad_length is None else pad_length
    if int(lengths.max()) > width:
        raise ValueError(f"pad_length {pad_length} is shorter than a completion of {int(lengths.max())} tokens")
    valid = torch.tensor([score.valid for _, score in rows])
    truncated = torch.tensor([completion.truncated for completion in completions])
    trained = valid & ~truncated if mask_truncated else valid
    given = any(completion.ended == "given" for completion in completions)
    steps: dict[str, Any] = {}
    if any(score.step_ends for _, score in rows):
        steps = {
            "step_ends": _pad([score.step_ends for _, score in rows], torch.int64),
            "step_rewards": _pad([score.step_rewards for _, score in rows], torch.float64),
            "step_counts": torch.tensor([len(score.step_ends) for _, score in rows]),
        }
    batch = TrainBatch(
        completion_ids=_pad([completion.ids for completion in completions], torch.int64, width),
        lengths=lengths,
        loss_mask=_pad([c.trained or (True,) * len(c.ids) for c in completions], torch.bool, width) & trained[:, None],
        valid=valid,
        group_ids=torch.tensor([index for index, group in enumerate(groups) for _ in group.completions]),
        prompts=tuple(torch.tensor(group.prompt.ids, dtype=torch.int64) for group in groups),
        teacher_prompts=_teacher_prompts(groups),
        rewards=torch.tensor([score.reward if score.valid else 0.0 for _, score in rows], dtype=torch.float64),
        truncated=truncated,
        policy_versions=torch.tensor([completion.policy_version for completion in completions]),
        rollout_logprobs=None if given else _pad([each.logprobs for each in completions], torch.float64, width),
        **steps,
        **_components([score for _, score in rows]),
        **_kept_sets(completions, width),
    )
    return replace(batch, token_rewards=token_rewards(batch))


def _components(scores: Sequence[Score]) -> dict[str, Any]:
    """Return the single rewards and their weights, `(B, K)` float64 each; none where parts have no weights.

    The reward of a score without parts is its only one, of weight 1.
    """
    parts = [tuple(score.parts.values()) or (score.reward,) for score in scores]
    weights = [score.weights if score.parts else (1.0,) for score in scores]
    if len({*map(len, parts), *map(len, weights)}) > 1:
        return {}
    values = [[math.nan if value is None else value for value in row] for row in parts]
    return {
        "component_rewards": torch.tensor(values, dtype=torch.float64),
        "component_weights": torch.tensor(weights, dtype=torch.float64),
    }


def _kept_sets(completions: Sequence[Completion], width: int) -> dict[str, Any]:
    """Return `kept_sizes` and `kept_ids`, where any completion has them."""
    if all(each.kept_sizes is None for each in completions):
        return {}
    sizes = [(-1,) * len(each.ids) if each.kept_sizes is None else each.kept_sizes for each in completions]
    none = torch.empty(0, dtype=torch.int32)
    ids = [torch.frombuffer(bytearray(c.kept_ids), dtype=torch.int32) if c.kept_ids else none for c in completions]
    return {"kept_sizes": _pad(sizes, torch.int32, width), "kept_ids": tuple(ids)}


def _teacher_prompts(groups: Sequence[Group]) -> tuple[Tensor, ...] | None:
    """Return the prompts as a teacher reads them; None where it reads all of them as the policy does."""
    if all(group.prompt.teacher_ids is None for group in groups):
        return None
    read = [group.prompt.ids if group.prompt.teacher_ids is None else group.prompt.teacher_ids for group in groups]
    return tuple(torch.tensor(ids, dtype=torch.int64) for ids in read)


def token_rewards(batch: TrainBatch) -> Float[Tensor, "B T"]:
    """r_t `(B, T)` float64 of the batch's `rewards` and steps: an outcome at the last token, steps at their ends.

    Σ_t r_t is the completion's reward, exactly; where its steps were scored it is the sum of theirs. 0 where not valid.
    """
    rewards = torch.zeros(batch.completion_ids.shape, dtype=torch.float64, device=batch.lengths.device)
    whole = batch.valid
    if batch.step_ends is not None and batch.step_rewards is not None and batch.step_counts is not None:
        numbers = torch.arange(batch.step_ends.shape[1], device=rewards.device)
        steps = numbers[None, :] < batch.step_counts[:, None]
        row_of, column_of = (steps & batch.valid[:, None]).nonzero(as_tuple=True)
        place = (row_of, batch.step_ends[row_of, column_of])
        rewards.index_put_(place, batch.step_rewards[row_of, column_of].to(torch.float64), accumulate=True)
        whole = whole & (batch.step_counts == 0)
    rows = torch.arange(batch.size, device=rewards.device)[whole]
    rewards[rows, batch.lengths[whole] - 1] = batch.rewards[whole].to(torch.float64)
    return rewards


def _check(group: Group) -> None:
    """Raises ValueError where a group's parts do not fit together."""
    name = f"the group of prompt {group.prompt.id}"
    if not group.completions:
        raise ValueError(f"{name} has no completions")
    if len(group.scores) != len(group.completions):
        raise ValueError(f"{name} has {len(group.completions)} completions but {len(group.scores)} scores")
    for completion, score in zip(group.completions, group.scores, strict=True):
        if len(completion.logprobs) != len(completion.ids) and completion.ended != "given":
            raise ValueError(f"{name}: {len(completion.ids)} tokens but {len(completion.logprobs)} log-probs")
        if completion.trained is not None and len(completion.trained) != len(completion.ids):
            raise ValueError(f"{name}: {len(completion.ids)} tokens but {len(completion.trained)} entries in `trained`")
        sizes = completion.kept_sizes
        if sizes is not None and (
            len(sizes) != len(completion.ids)
            or 4 * sum(size if size >= 0 else -1 - size for size in sizes) != len(completion.kept_ids)
        ):
            raise ValueError(f"{name}: {len(completion.ids)} tokens, and other kept sets")
        if score.valid and not math.isfinite(score.reward):
            raise ValueError(f"{name}: reward {score.reward} is not finite, so its score cannot be valid")
        if len(score.step_ends) != len(score.step_rewards):
            raise ValueError(f"{name}: {len(score.step_ends)} step ends but {len(score.step_rewards)} step rewards")
        if score.weights and len(score.weights) != len(score.parts):
            raise ValueError(f"{name}: {len(score.parts)} single rewards but {len(score.weights)} weights")
        if any(not 0 <= end < len(completion.ids) for end in score.step_ends):
            raise ValueError(f"{name}: step ends {score.step_ends} in a completion of {len(completion.ids)} tokens")


def _pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, width: int | None = None) -> Tensor:
    """Return rows of different lengths as one tensor `(B, width)`, 0 on the right."""
    lengths = torch.tensor([len(row) for row in rows])
    positions = torch.arange(int(lengths.max()) if width is None else width)
    padded = torch.zeros(len(rows), len(positions), dtype=dtype)
    padded[positions < lengths[:, None]] = torch.tensor(list(chain.from_iterable(rows)), dtype=dtype)
    return padded


def select_groups(batch: Batch, groups: Sequence[int]) -> Batch:
    """Return the batch of the given groups, in the given order, renumbered from 0; padding cut to the longest row.

    Raises ValueError: no groups, one that is not in the batch, or the same one twice.
    """
    if not groups or len(set(groups)) != len(groups) or not all(0 <= g < len(batch.prompts) for g in groups):
        raise ValueError(f"cannot select groups {list(groups)} of a batch of {len(batch.prompts)}: each once, 0-based")
    renumbered = _numbering(batch, groups)[batch.group_ids]
    order = torch.argsort(renumbered, stable=True)
    return _take(batch, order[renumbered[order] >= 0], groups)


def select_rows(batch: Batch, rows: Int[Tensor, "k"]) -> Batch:
    """Return the batch of the given rows `(k,)` int64, in the given order; padding cut to the longest of them.

    Groups are renumbered from 0 in the order in which they appear; one without a row left is not in the result. Rows
    of a group must stay adjacent. Raises ValueError: no rows.
    """
    if not rows.numel():
        raise ValueError("cannot select no rows: a batch has at least one")
    return _take(batch, rows, list(dict.fromkeys(batch.group_ids[rows].tolist())))


def _numbering(batch: TrainBatch, groups: Sequence[int]) -> Tensor:
    """Return old group id to its place in `groups`, -1 where it is not among them: `(len(batch.prompts),)`."""
    number = torch.full((len(batch.prompts),), -1, dtype=torch.int64, device=batch.group_ids.device)
    number[torch.tensor(list(groups), device=number.device)] = torch.arange(len(groups), device=number.device)
    return number


def _take(batch: Batch, rows: Tensor, groups: Sequence[int]) -> Batch:
    """Return the batch of `rows` (k,), whose groups are `groups`, each row's group renumbered by its place in
    `groups`.
    """
    width = int(batch.lengths[rows].max())
    taken: dict[str, Any] = {}
    for name, axes in axes_of(batch).items():
        value = getattr(batch, name)
        if value is None:
            continue
        if axes == "G":
            taken[name] = tuple(value[group] for group in groups)
        elif axes == "R":
            taken[name] = tuple(value[row] for row in rows.tolist())
        elif axes == "NH":
            taken[name] = value[_flat_rows(batch.lengths, rows)]
        else:
            taken[name] = value[rows][:, :width] if axes == "BT" else value[rows]
    taken["group_ids"] = _numbering(batch, groups)[taken["group_ids"]]
    return replace(batch, **taken)


def _flat_rows(lengths: Tensor, rows: Tensor) -> Tensor:
    """Return the positions of the tokens of `rows` in the concatenation of all rows' tokens: `(Σ lengths[rows],)`."""
    starts = lengths.cumsum(0) - lengths
    counts = lengths[rows]
    shifts = starts[rows] - (counts.cumsum(0) - counts)  # from a token's place in the result to that among all tokens
    return torch.arange(int(counts.sum()), device=rows.device) + shifts.repeat_interleave(counts)


def minibatches(batch: Batch, count: int, seed: int, step: int, pass_index: int) -> list[Batch]:
    """Return the batch in `count` minibatches of whole groups, one optimizer update each; as many as groups if they are
    fewer.

    The division is a function of `(seed, step, pass_index)`, so a resumed run needs no state for it. Sizes differ by
    one group at most, and the groups of a minibatch keep the batch's order.

    Raises ValueError: `count` < 1, or a `pass_index` outside 0..2²⁰-1.
    """
    if count < 1 or not 0 <= pass_index < _PASSES_LIMIT:
        raise ValueError(f"count must be >= 1 and pass_index in 0..{_PASSES_LIMIT - 1}, got {count} and {pass_index}")
    groups = len(batch.prompts)
    pieces = min(count, groups)
    if pieces == 1:
        return [batch]
    order = permutation(seed, step * _PASSES_LIMIT + pass_index, groups).tolist()
    bounds = [piece * groups // pieces for piece in range(pieces + 1)]
    return [select_groups(batch, sorted(order[low:high])) for low, high in pairwise(bounds)]


def micro_batches(batch: Batch, tokens_per_micro_batch: int, enough: int | None = None) -> Iterator[Batch]:
    """Return the batch in pieces that fit one forward pass; every row in exactly one, in the batch's order.

    A piece costs `Σ_groups (P_g + Σ_rows |o_i|)`: a prompt is computed once for its rows in the piece. A group that
    fits in a piece of its own is split, and its prompt repeated, only to fill room for `FILLED` times that prompt; a
    larger one always. A single row above the budget is a piece of its own. Rows without a trained token are in the
    pieces too.

    enough   tokens of a piece, if they are at least `FILLED` prompts; None: `ENOUGH` on a CPU, elsewhere all that fit

    Raises ValueError where `tokens_per_micro_batch` < 1.
    """
    if tokens_per_micro_batch < 1:
        raise ValueError(f"tokens_per_micro_batch must be >= 1, got {tokens_per_micro_batch}")
    enough = enough or (ENOUGH if batch.lengths.device.type == "cpu" else tokens_per_micro_batch)
    group_of, prompts = batch.group_ids.tolist(), [len(prompt) for prompt in batch.prompts]
    for rows in _plan(batch.lengths.tolist(), group_of, prompts, tokens_per_micro_batch, enough):
        yield select_rows(batch, torch.tensor(rows, device=batch.lengths.device))


def shards(batch: Batch, count: int) -> list[Batch | None]:
    """Return the rows in `count` runs of about the same cost, in the batch's order; None for a run without rows.

    A row costs its tokens and its share of the prompt, P_g / (rows of g) + |o_i|. A row belongs to the run in which its
    middle lies, where the whole cost is divided evenly: a run is off by half of its first and its last row at most.
    This is a function of the batch alone. Groups may be split; their prompt is then computed in both runs.

    Raises ValueError where `count` < 1.
    """
    if count < 1:
        raise ValueError(f"count must be >= 1, got {count}")
    sizes = torch.bincount(batch.group_ids, minlength=len(batch.prompts))
    shares = torch.tensor([len(prompt) for prompt in batch.prompts], dtype=torch.float64) / sizes.clamp(min=1).cpu()
    costs = batch.lengths.cpu().double() + shares[batch.group_ids.cpu()]
    ends = costs.cumsum(0)
    runs = ((ends - costs / 2) * count / ends[-1]).long().clamp(max=count - 1)
    rows = [(runs == run).nonzero().squeeze(1) for run in range(count)]
    return [select_rows(batch, found.to(batch.lengths.device)) if found.numel() else None for found in rows]


def _plan(
    lengths: list[int], group_of: list[int], prompt_lengths: list[int], budget: int, enough: int
) -> Iterator[list[int]]:
    """Return row numbers of each piece: greedy, in order; a group that fits whole only into a new piece starts one,
    unless that left much room in this one.
    """
    whole = list(prompt_lengths)
    for length, group in zip(lengths, group_of, strict=True):
        whole[group] += length
    piece: list[int] = []
    cost, last_group = 0, -1
    for row, (length, group) in enumerate(zip(lengths, group_of, strict=True)):
        begins = group != last_group
        added = length + (prompt_lengths[group] if begins or not piece else 0)
        limit = min(budget, max(enough, FILLED * prompt_lengths[group]))
        kept = begins and whole[group] <= limit and limit - cost < FILLED * prompt_lengths[group]
        needed = whole[group] if kept else added
        if piece and cost + needed > limit:
            yield piece
            piece, cost, added = [], 0, length + prompt_lengths[group]
        piece.append(row)
        cost += added
        last_group = group
    yield piece
