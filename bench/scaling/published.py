"""Published step times of asynchronous training, and the setups that simulate them. All constants are here, with their
sources; `bench.scaling.fit` finds those that are fitted, each to calibration rows alone.

VERL_ASYNC: verl's documentation, docs/advance/fully_async.md (May 2026); VERL_ONE_STEP: docs/advance/one_step_off.md
(July 2025); AREAL: the hours of arXiv:2505.24298 with its 250 steps and its GPUs, taken over without seeing
the table, and the benchmark command in issue 119 of its repository (three GPUs of four decode, staleness at most 4,
four minibatches).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import cache

from oncurve.forecast import MACHINES, Machine
from oncurve.forecast.rates import SIGMA, decode_seconds
from oncurve.forecast.shapes import MODELS
from oncurve.forecast.simulation import Lengths, Outcome, Setup, simulate

__all__ = ["ROWS", "TABLES", "Row", "step_of"]

TABLES = {
    "one_step_off": "verl, one step off: Qwen2.5-Math-7B, DAPO, H20, 4 GPUs decode and 12 train, or 16 do both",
    "sizes": "verl, fully async: Qwen2.5-Math-7B, DAPO, H20, 28K tokens, 32 to 128 GPUs",
    "staleness": "verl, fully async: staleness_threshold, 64 GPUs decode and 64 train",
    "minibatches": "verl, fully async: require_batches, 64 GPUs decode and 64 train, staleness 0.5",
    "mixture": "verl, fully async: Qwen3-30B-A3B, GRPO, H20, 8K tokens",
    "tools": "verl, fully async: Qwen2.5-7B-Instruct with tools, several turns, H20",
    "areal": "AReaL: R1-distilled Qwen on H800, 27,648 tokens, seconds per step of 250",
}

# Published columns of calibration rows, in seconds.
UPDATE_SECONDS = 7.168
"""Per optimizer update, however many groups it has: from `minibatches`, rows 1 and 4, which differ in nothing but 16 or
4 updates per step: (181.08 - 95.06) / 12."""

UPDATES = {
    "staleness 0": (98.77, 4),
    "staleness 0.5": (113.16, 4),
    "minibatches 1": (181.08, 16),
    "minibatches 4": (95.06, 4),
}
"""update_actor and the updates per step of all calibration rows with a 7B model on 64 + 64 GPUs."""

WORK = statistics.fmean(64 * (seconds - updates * UPDATE_SECONDS) for seconds, updates in UPDATES.values())
"""GPU-seconds of a step's training without UPDATE_SECONDS: the mean of these rows, for all rows of that system."""

HANDOVER_SECONDS = 25.98
"""Per step, what is neither training nor waiting for a batch: the step less update_actor in rows 1 and 4 of
`minibatches`, the mean of 22.39 and 29.58."""

ONE_STEP_HANDOVER = 0.3
"""Published: under 300 ms (one_step_off.md, "Parameter Synchronization")."""

GENERATION_SHARE = 0.9
"""Of AReaL's synchronous step: with long chains of thought more than 90 % is generation (OpenRLHF,
arXiv:2405.11143)."""

AREAL_TOKENS = 9000.0
"""Mean length of AReaL's completions. Assumed; the ratios of half and twice of it are in docs/scaling.md."""

# Fitted, see `bench.scaling.fit`.
STALENESS_TOKENS = 1573.0
ONE_STEP_FSDP_TOKENS = 1314.4
"""To generate_sequences of the synchronous row with FSDP2, 247 s."""
ONE_STEP_MEGATRON_TOKENS = 1075.7
"""To the same with Megatron, 162 s."""
MIXTURE_SLOWNESS = 4.39
"""Decode seconds over those of a 7B model by its data sheet, to gen of the synchronous row, 348.05 s."""
TOOLS_SLOWNESS = 2.3
"""The same, with turns and tools, to gen of the synchronous row, 228.03 s."""
AREAL_SLOWNESS = {"1.5B": 4.28, "7B": 2.66}
"""Decode seconds over those of the data sheet, to GENERATION_SHARE of the synchronous row."""

H20, H800 = MACHINES["h20"], MACHINES["h800"]
SEVEN, SMALL = MODELS["qwen2.5-7b"], MODELS["qwen2.5-1.5b"]


@dataclass(frozen=True)
class Row:
    """A published row. `step`: its seconds; `calibrates`: which constants it gives, empty where it is held out."""

    table: str
    name: str
    step: float
    setup: Setup
    calibrates: str = ""
    ratio_to: str = ""


def decoded(tokens: float, limit: int, machine: Machine = H20, small: bool = False, slow: float = 1.0) -> Setup:
    """A step of 512 prompts, 16 completions each, on one engine, without training."""
    shape = SMALL if small else SEVEN
    token, row = decode_seconds(shape.parameters, shape.cache_bytes(), tokens / 2, machine)
    return Setup(512, 16, Lengths(tokens, SIGMA, limit), 1, slow * token, slow * row, 0.0)


def turns(setup: Setup, gpus: int, seconds: float) -> Setup:
    """All GPUs decode, then all train for `seconds`."""
    return replace(setup, engines=gpus, train_seconds=seconds)


def streamed(setup: Setup, engines: int, seconds: float, staleness: float, chunks: int = 4) -> Setup:
    """verl's fully asynchronous trainer: batches by arrival, `seconds` of training and UPDATE_SECONDS per batch."""
    train = replace(setup, train_seconds=seconds, chunks=chunks, chunk_seconds=UPDATE_SECONDS)
    return replace(train, engines=engines, handover_seconds=HANDOVER_SECONDS, lag=staleness, windowed=True)


def scaled(update: float, updates: int, by: float) -> float:
    """Seconds of an update phase on 1/`by` of the GPUs: UPDATE_SECONDS stay as they are."""
    return (update - updates * UPDATE_SECONDS) * by + updates * UPDATE_SECONDS


def _one_step_off() -> list[Row]:
    fsdp, megatron = decoded(ONE_STEP_FSDP_TOKENS, 20480), decoded(ONE_STEP_MEGATRON_TOKENS, 8192)

    def apart(setup: Setup, update: float, old: float, other: float) -> Setup:
        train = scaled(update, 16, 16 / 12) + old * 16 / 12 + other
        return replace(setup, engines=4, train_seconds=train, lag=1.0, handover_seconds=ONE_STEP_HANDOVER)

    table = "one_step_off"
    return [
        Row(table, "by turns, FSDP2", 749, turns(fsdp, 16, 749 - 247), "lengths, training, the rest"),
        Row(table, "one step off, FSDP2", 520, apart(fsdp, 286, 88, 749 - 321 - 88 - 286)),
        Row(table, "by turns, Megatron", 699, turns(megatron, 16, 699 - 162), "lengths, training, the rest"),
        Row(table, "one step off, Megatron", 566, apart(megatron, 344, 119, 699 - 207 - 119 - 344)),
    ]


def _fully_async() -> list[Row]:
    seven = decoded(STALENESS_TOKENS, 28672)
    rows = []
    for gpus, step, other in ((32, 790.10, "old log-probs, the rest"), (64, 365.28, ""), (128, 356.30, "")):
        train = WORK / gpus + 16 * UPDATE_SECONDS + 107.71 * 32 / gpus + (790.10 - 357.41 - 107.71 - 269.80)
        rows.append(Row("sizes", f"by turns, {gpus}", step, turns(seven, gpus, train), other))
    for gpus, step in ((16, 294.77), (32, 189.26)):
        rows.append(Row("sizes", f"{gpus} + {gpus}", step, streamed(seven, gpus, WORK / gpus, 0.5)))
    given = {0: "training, lengths", 0.5: "lengths"}
    for staleness, step in ((0, 231.34), (0.1, 171.30), (0.3, 146.11), (0.5, 150.63)):
        setup = streamed(seven, 64, WORK / 64, staleness)
        rows.append(Row("staleness", str(staleness), step, setup, given.get(staleness, "")))
    for batches, step in ((1, 203.47), (2, 158.72), (4, 124.64)):
        setup = streamed(seven, 64, WORK / 64, 0.5, 16 // batches)
        says = "" if batches == 2 else "training, updates, handover"
        rows.append(Row("minibatches", str(batches), step, setup, says))
    return rows


def _others() -> list[Row]:
    mixture = decoded(STALENESS_TOKENS, 8192, slow=MIXTURE_SLOWNESS)
    tools = replace(decoded(STALENESS_TOKENS, 28672, slow=TOOLS_SLOWNESS), prompts=64)
    training = (86.27 - 4 * UPDATE_SECONDS + 20.86) * 4  # 20.86: the reference's log-probs
    return [
        Row("mixture", "by turns, 128", 497.89, turns(mixture, 128, 497.89 - 348.05), "lengths, training"),
        Row("mixture", "96 + 32", 282.75, streamed(mixture, 96, training, 0.5)),
        Row("tools", "by turns, 32", 375.47, turns(tools, 32, 375.47 - 228.03), "lengths, training"),
        Row("tools", "16 + 16", 221.36, streamed(tools, 16, (111.84 - 4 * UPDATE_SECONDS) * 2, 1.0)),
    ]


def areal(name: str, tokens: float = AREAL_TOKENS, slow: float | None = None) -> tuple[Setup, Setup]:
    """AReaL's synchronous and asynchronous setups for a model. A step is a 250th of the published hours."""
    gpus, hours = {"1.5B": (128, 41.0), "7B": (192, 57.7)}[name]
    step = hours * 3600 / 250
    setup = decoded(tokens, 27648, H800, name == "1.5B", AREAL_SLOWNESS[name] if slow is None else slow)
    train = (1 - GENERATION_SHARE) * step
    apart = replace(setup, engines=gpus * 3 // 4, train_seconds=4 * train, chunks=4, lag=4.0, windowed=True)
    return turns(setup, gpus, train), apart


def _areal() -> list[Row]:
    rows = []
    for name, hours, without in (("1.5B", 41.0, 14.8), ("7B", 57.7, 25.4)):
        by_turns, apart = areal(name)
        rows.append(Row("areal", f"{name}, by turns", hours * 14.4, by_turns, "decode seconds"))
        rows.append(Row("areal", f"{name}, apart", without * 14.4, apart, ratio_to=f"{name}, by turns"))
    return rows


ROWS: tuple[Row, ...] = (*_one_step_off(), *_fully_async(), *_others(), *_areal())


@cache
def step_of(setup: Setup) -> Outcome:
    """The simulated step of a setup: 3 steps after the warm-up."""
    return simulate(setup, 3)
