"""How far may a sampler be from the learner? Training on the built-in task by a sampler with noise on its logits.

    python -m bench.science.off_policy [--seeds 5] [--jobs 2] [--out bench/results/off_policy.json]
    python -m bench.science.page

Each run trains the shipped tiny model; only the noise's size s, what corrects for it and the seed differ. The result is
the held-out greedy accuracy at the end, of the policy itself: evaluations are not disturbed. Runs that are in the
results file are not repeated. Without noise the engine is exact and all ways to correct are the same run, bit for bit
(`tests/unit/bench/test_science.py`), so that it is made once per seed.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.science import study

__all__ = ["STUDY", "one"]


def _gap(runs: list[dict[str, Any]]) -> str:
    return f"{statistics.fmean(run['curves']['policy/mismatch'][0] for run in runs):.2g}"


STUDY = study.Study(
    name="off_policy",
    sizes=(0.0, 0.5, 1.0, 1.5, 2.0, 3.0),
    symbol="s",
    axis="s, standard deviation of the noise on the sampler's logits",
    methods={
        "none": {},
        "truncated": {"correction": {"kind": "truncated"}},
        "masked": {"correction": {"kind": "masked"}},
        "dppo": {"objective": {"kind": "dppo"}},
    },
    of_size=lambda size: {"engine": {"kind": "bench.science.disturbed:Disturbed", "size": size}},
    kept=("reward/mean", "policy/mismatch", "correction/effective_sample_size", "correction/bounded", "eval/accuracy"),
    columns={"mean \\|log π - log μ\\|, first step": _gap},
)


def one(method: str, size: float, seed: int) -> dict[str, Any]:
    """`Study.one` of this study."""
    return STUDY.one(method, size, seed)


if __name__ == "__main__":
    study.main(STUDY, one, __doc__)
