"""`oncurve.compat.rlox` against the installed rlox: names, arguments, defaults and numbers. Fails where one differs.

    python -m bench.compare.rlox_functions

Covered: every name of rlox's `__all__` is here or refused by name; the parameters of each function and of `GRPO`; the
functions' values on random rewards, log-probs and steps, relative 1e-12 in float64 (1e-5 in float32).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import numpy

__all__ = ["differences", "main"]

SIZE, GROUP = 4096, 8


def main() -> int:
    """Print what differs, or how much was compared; 1 where something differs."""
    compared, found = 0, []
    for what, problem in differences():
        compared += 1
        if problem:
            found.append(f"{what}: {problem}")
    print("\n".join(found) or f"{compared} comparisons with rlox {_version()}: none differs")
    return 1 if found else 0


def _version() -> str:
    import rlox

    return str(rlox.__version__)


def differences() -> Iterator[tuple[str, str]]:
    """Return what was compared, and how it differs; "": it does not."""
    import rlox
    from rlox.algorithms.grpo import GRPO

    import oncurve.compat.rlox as ours
    from oncurve.compat.rlox import REASONS

    missing = set(rlox.__all__) - {"__version__"} - set(ours.__all__) - set(REASONS)
    yield "names", f"neither here nor refused: {', '.join(sorted(missing))}" if missing else ""
    theirs = {name: p.default for name, p in inspect.signature(GRPO).parameters.items()}
    here = {name: p.default for name, p in inspect.signature(ours.GRPO).parameters.items() if name in theirs}
    same = list(theirs) == list(here) and all(d in (here[n], inspect.Parameter.empty) for n, d in theirs.items())
    yield "GRPO's arguments", "" if same else f"{theirs} there, {here} here"
    for name, arguments in _calls():
        tolerance = 1e-5 if name.endswith("f32") else 1e-12
        yield name, _difference(getattr(rlox, name)(*arguments), getattr(ours, name)(*arguments), tolerance)


def _calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    draw = numpy.random.default_rng(0)
    rewards = draw.normal(size=SIZE).round(1)
    policy = -draw.exponential(size=SIZE)
    reference = policy + draw.normal(size=SIZE)
    dones = (draw.random(SIZE) < 0.1).astype(float)
    for groups in (rewards, numpy.ones(SIZE), numpy.array([1.0] * 7 + [1 + 1e-9]), numpy.zeros(0)):
        yield "compute_batch_group_advantages", (groups, GROUP)
    for count in (1, 2, 5, 64):
        yield "compute_group_advantages", (rewards[:count],)
    for ending in ("", "_schulman"):
        yield f"compute_token_kl{ending}", (policy, reference)
        yield f"compute_batch_token_kl{ending}", (policy, reference, 64)
        single = (policy.astype("f4"), reference.astype("f4"))
        yield f"compute_token_kl{ending}_f32", single
        yield f"compute_batch_token_kl{ending}_f32", (*single, 64)
    yield "compute_gae", (rewards, policy, dones, 0.3, 0.99, 0.95)
    batch = (rewards, policy, dones, draw.normal(size=SIZE // 64))
    yield "compute_gae_batched", (*batch, 64, 0.99, 0.95)
    yield "compute_gae_batched_f32", (*(each.astype("f4") for each in batch), 64, 0.99, 0.95)


def _difference(theirs: Any, ours: Any, tolerance: float) -> str:
    if isinstance(theirs, tuple):
        return "; ".join(filter(None, (_difference(a, b, tolerance) for a, b in zip(theirs, ours, strict=True))))
    if numpy.shape(theirs) != numpy.shape(ours) or getattr(theirs, "dtype", float) != getattr(ours, "dtype", float):
        return f"{numpy.shape(theirs)} there, {numpy.shape(ours)} here"
    scale = max(1.0, float(numpy.abs(theirs).max(initial=0.0)))
    far = float(numpy.abs(numpy.subtract(theirs, ours)).max(initial=0.0)) / scale
    return "" if far <= tolerance else f"relative difference {far:.1e}, at most {tolerance:g}"


if __name__ == "__main__":
    sys.exit(main())
