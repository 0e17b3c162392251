"""The least that the work needs: multiplications, bytes, and the seconds of an ideal machine of this speed.

Each prompt counts once per group; duplicates, padding and recomputation do not count. With N_b the parameters
of the body's matrix products, N_h = V·h, a = 4·L·heads·head_dim, R the measured speed of matrix products (FLOP/s) and
BW of memory (bytes/s):

    prefill        Σ_g 2·N_b·P_g + a·P_g²/2 + 2·N_h
    decode step    max(bytes / BW, FLOPs / R);  bytes = w·(N_b + N_h) + kv·(tokens in the cache, prefixes once),
                   FLOPs = 2·(N_b + N_h)·rows + a·(tokens attended to)
    training       Σ_g 6·N_b·(P_g + Σ C) + 6·N_h·Σ C + 3.5·a·(P_g²/2 + Σ (P_g·C + C²/2)), over groups with a gradient
    reference      the forward third of the same (2, 2 and 1 for 6, 6 and 3.5)
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.cases import Case, is_constant
from bench.models import SIZES, Size, prompt_ids

__all__ = ["Ideal", "Work", "ideal_seconds", "tokens_of", "work_of"]


@dataclass(frozen=True)
class Work:
    """One step's work: prompt lengths by group, completion lengths by group, and which groups can have a gradient."""

    prompts: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    trained: tuple[bool, ...]
    kl: bool

    @property
    def completion_tokens(self) -> int:
        """All tokens sampled."""
        return sum(map(sum, self.completions))

    @property
    def longest(self) -> int:
        """Tokens of the longest completion."""
        return max(map(max, self.completions))


@dataclass(frozen=True)
class Ideal:
    """Least seconds of each phase; `step` is their sum."""

    prefill: float
    decode: float
    reference: float
    train: float

    @property
    def step(self) -> float:
        """The sum of all phases."""
        return self.prefill + self.decode + self.reference + self.train


def work_of(case: Case, step: int) -> Work:
    """Step `step` (from 0) of the case. A constant group has no gradient, unless there is a KL term."""
    numbers = range(step * case.prompts, (step + 1) * case.prompts)
    return Work(
        tuple(len(prompt_ids(case, number)) for number in numbers),
        tuple(tuple(group) for group in case.lengths_of_step(step)),
        tuple(case.kl_coef > 0 or not is_constant(case, number) for number in numbers),
        case.kl_coef > 0,
    )


def attention_per_pair(size: Size) -> int:
    """a: FLOPs of one query with one key, over all layers and heads, scores and values."""
    return 4 * size.layers * size.heads * size.head_dim


def prefill_flops(size: Size, work: Work) -> float:
    """Return prompts once each, the head on their last token."""
    body = sum(2 * size.body_parameters * p + attention_per_pair(size) * p * p / 2 for p in work.prompts)
    return body + 2 * size.head_parameters * len(work.prompts)


def forward_flops(size: Size, prompt: int, completions: tuple[int, ...]) -> tuple[float, float]:
    """Matrix products and attention of one group's forward pass, the prompt once, the head on completion tokens."""
    tokens = sum(completions)
    matrix = 2 * size.body_parameters * (prompt + tokens) + 2 * size.head_parameters * tokens
    attended = prompt * prompt / 2 + sum(prompt * c + c * c / 2 for c in completions)
    return matrix, attention_per_pair(size) * attended


def train_flops(size: Size, work: Work) -> float:
    """Forward and backward of the groups that can have a gradient."""
    total = 0.0
    for prompt, completions, trained in zip(work.prompts, work.completions, work.trained, strict=True):
        if trained:
            matrix, attention = forward_flops(size, prompt, completions)
            total += 3 * matrix + 3.5 * attention
    return total


def reference_flops(size: Size, work: Work) -> float:
    """Return the reference's forward pass over every group; 0 without a KL term."""
    if not work.kl:
        return 0.0
    return sum(sum(forward_flops(size, p, c)) for p, c in zip(work.prompts, work.completions, strict=True))


def decode_seconds(size: Size, work: Work, flops: float, bandwidth: float, weight_bytes: int) -> float:
    """Return every step after the prefill's token, each bound by arithmetic or by memory."""
    kv_bytes = 2 * size.layers * size.kv_heads * size.head_dim * weight_bytes
    parameters = size.body_parameters + size.head_parameters
    seconds = 0.0
    for step in range(1, work.longest):
        unfinished = [sum(c > step for c in group) for group in work.completions]
        rows = sum(unfinished)
        prefixes = sum(p for p, n in zip(work.prompts, unfinished, strict=True) if n)
        attended = sum(n * (p + step) for p, n in zip(work.prompts, unfinished, strict=True))
        moved = weight_bytes * parameters + kv_bytes * (prefixes + rows * step)
        computed = 2 * parameters * rows + attention_per_pair(size) * attended
        seconds += max(moved / bandwidth, computed / flops)
    return seconds


def ideal_seconds(size: Size, work: Work, flops: float, bandwidth: float, weight_bytes: int) -> Ideal:
    """Return the least seconds of a step at `flops` FLOP/s and `bandwidth` bytes/s, weights of `weight_bytes` each."""
    return Ideal(
        prefill_flops(size, work) / flops,
        decode_seconds(size, work, flops, bandwidth, weight_bytes),
        reference_flops(size, work) / flops,
        train_flops(size, work) / flops,
    )


def tokens_of(case: Case, step: int, executed: dict[str, int]) -> dict[str, int]:
    """Return token positions processed in a step: useful, duplicated (prompts repeated within a group), padding and the
    rest.

    Useful: prompts once in each pass that reads them; each completion token except the last, which predicts nothing,
    once in decode, reference and training. Training a group without a gradient is not useful. Of a pass's further
    positions, as many as the prompts of all completions but one of each group are duplicated; the rest is padding.
    """
    work = work_of(case, step)
    prompts = sum(work.prompts)
    groups = zip(work.prompts, work.completions, work.trained, strict=True)
    useful = {
        "rollout": prompts + work.completion_tokens - case.rows,
        "reference": prompts + work.completion_tokens - case.rows if work.kl else 0,
        "train": sum(prompt + sum(completions) - case.group_size for prompt, completions, trained in groups if trained),
    }
    again = prompts * (case.group_size - 1)
    beyond = {name: executed.get(name, 0) - needed for name, needed in useful.items()}
    if "prefill" in executed:
        beyond["rollout"] = executed["prefill"] - prompts
    else:
        beyond["rollout"] += executed.get("decode", 0)
    duplicated = sum(min(again, max(0, more)) for more in beyond.values())
    total, needed = sum(executed.values()), sum(useful.values())
    return {"executed": total, "useful": needed, "duplicated": duplicated, "padding": total - needed - duplicated}


def size_of(case: Case) -> Size:
    """Return the model's shape, with the case's vocabulary."""
    size = SIZES[case.model]
    if case.vocabulary is None:
        return size
    return Size(size.hidden, size.layers, size.heads, size.kv_heads, size.intermediate, case.vocabulary)
