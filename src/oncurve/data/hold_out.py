"""A share of the rows that is not trained on."""

from __future__ import annotations

from oncurve.data.settings import Rows
from oncurve.randomness import permutation

HOLD_OUT_SEED = 0  # not run.seed: runs that differ in their seed are evaluated on the same rows


def hold_out(rows: Rows, fraction: float) -> tuple[Rows, Rows]:
    """Return `rows` in two parts, the second of `fraction` of them (at least one if it is not 0), each in its old
    order.
    """
    count = min(len(rows), max(1, round(fraction * len(rows)))) if fraction > 0 else 0
    held = set(permutation(HOLD_OUT_SEED, 0, len(rows))[:count].tolist())
    return (
        rows if not held else rows.select([i for i in range(len(rows)) if i not in held]),
        rows.select(sorted(held)),
    )
