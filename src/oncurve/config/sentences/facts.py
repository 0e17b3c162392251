"""The facts of a loaded run, which its plan is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdapterFacts:
    """The adapter of a loaded model. Example: `AdapterFacts(16, 32.0, 168, 8_798_208, 17_596_416)`.

    layers        that it is on
    parameters    that are trained
    nbytes        of a frozen copy of it
    """

    rank: int
    alpha: float
    layers: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class RunFacts:
    """Facts of the loaded data and model; None: not loaded yet. Example: `RunFacts(rows=7473, device="cpu")`.

    rows, eval_rows, dropped   training prompts, held-out prompts, prompts left out as too long.
    distinct, eval_distinct    how many of the former two are different.
    truncated                  prompts cut to their last tokens, as too long.
    parameters                 of the model.
    reference_bytes            what the frozen reference takes.
    reference_given            whether it is a model of its own, not a copy of the policy.
    teacher_bytes              what a distillation's frozen teacher takes.
    kept                       whether the run has a directory.
    device, path_reason        where the model runs; which path it takes and why.
    precision                  what it computes in, and why.
    adapter                    what is trained instead of the model's weights.
    """

    rows: int | None = None
    eval_rows: int | None = None
    distinct: int | None = None
    eval_distinct: int | None = None
    dropped: int = 0
    truncated: int = 0
    parameters: int | None = None
    reference_bytes: int | None = None
    reference_given: bool = False
    teacher_bytes: int | None = None
    kept: bool = True
    device: str | None = None
    path_reason: str | None = None
    precision: str | None = None
    adapter: AdapterFacts | None = None
