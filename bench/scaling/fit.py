"""The fitted constants of `bench.scaling.published`, from calibration rows alone: `python -m bench.scaling.fit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bench.scaling import published
from bench.scaling.published import areal, decoded, mixture, streamed, tools
from bench.scaling.simulation import Lengths, Setup, simulate


def bisected(step: Callable[[float], float], target: float, low: float, high: float, rounds: int = 10) -> float:
    """Return the value between `low` and `high` at which the growing function `step` is `target`."""
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if step(middle) < target else (low, middle)
    return (low + high) / 2


def step(setup: Setup) -> float:
    """Return the seconds of a simulated step."""
    return simulate(setup, 3).step_seconds


def stale(tokens: float, sigma: float, staleness: float) -> float:
    """Return a step of the table `staleness` with these lengths, and the training that its row has."""
    seconds, batches = published.UPDATES[f"staleness {staleness}"]
    setup = streamed(decoded(tokens, 28672), 64, seconds - batches * published.BATCH_SECONDS, staleness)
    return step(replace(setup, lengths=Lengths(tokens, sigma, 28672)))


def main() -> None:
    """Print the constants."""
    for sigma in (0.7, 0.75, 0.8, 0.85, 0.9):
        tokens = bisected(partial(stale, sigma=sigma, staleness=0), 231.34, 200, 6000)
        print(
            f"sigma {sigma}: {tokens:.0f} tokens, staleness 0.5: {stale(tokens, sigma, 0.5):.1f} of 150.63", flush=True
        )
    for name, limit, seconds in (("FSDP", 20480, 247.0), ("MEGATRON", 8192, 162.0)):

        def decode(tokens: float, limit: int = limit) -> float:
            return step(replace(decoded(tokens, limit), engines=16))

        print(f"ONE_STEP_{name}_TOKENS = {bisected(decode, seconds, 50, limit):.0f}", flush=True)
    for name, made, gpus, seconds in (("MIXTURE", mixture, 128, 348.05), ("TOOLS", tools, 32, 228.03)):

        def slower(slow: float, made: Callable[[float], Setup] = made, gpus: int = gpus) -> float:
            return step(replace(made(slow), engines=gpus))

        print(f"{name}_SLOWNESS = {bisected(slower, seconds, 0.2, 20):.2f}", flush=True)
    for name in published.AREAL:
        target = areal(name)[0].train_seconds / (1 - published.GENERATION_SHARE)
        for tokens in (4500.0, 9000.0, 18000.0):

            def whole(slow: float, name: str = name, tokens: float = tokens) -> float:
                return step(areal(name, tokens, slow)[0])

            slow = bisected(whole, target, 0.5, 20)
            apart = step(areal(name, tokens, slow)[1])
            print(f"AREAL_SLOWNESS {name} {tokens:.0f}: {slow:.2f}, ratio {target / apart:.2f}", flush=True)


if __name__ == "__main__":
    main()
