"""Published step times of asynchronous training, and the setups that simulate them. All constants are here, with their
sources; `bench.scaling.fit` finds those that are fitted, each to calibration rows alone.

VERL_ASYNC: verl's documentation, docs/advance/fully_async.md. Its newer versions have `update_actor` of two rows of
`sizes` exchanged, 269.80 and 313.81; the columns here are those of an early recipe/fully_async_policy/README_zh.md,
with which the columns of each row add up to its step less 4 (asynchronous) or 11 seconds (by turns).
VERL_ONE_STEP: docs/advance/one_step_off.md (July 2025).
Group sizes and mini-batches: the scripts next to both, recipe/one_step_off_policy/dapo_7b_math_*.sh (16 completions per
prompt by turns, 12 one step off, because the 12 GPUs that train have to divide them evenly),
recipe/fully_async_policy/shell/*.sh.
AREAL: hours, nodes and steps of table 1 of arXiv:2505.24298, three GPUs of four for decoding (section 7.1), batches of
512 prompts with 16 completions in four minibatches (table 3). The hours of 1.5B and 7B are in the project's own
blog/AReaL_v0_3.md too; the others were read in notes on the paper, not in the paper.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import cache

from bench.scaling.simulation import SIGMA, Lengths, Outcome, Setup, decode_seconds, simulate
from oncurve.forecast import MACHINES, MODELS, Machine, ModelShape

__all__ = ["ROWS", "TABLES", "Row", "step_of"]

TABLES = {
    "one_step_off": "verl, one step off: Qwen2.5-Math-7B, DAPO, H20, 4 GPUs decode and 12 train, or 16 do both",
    "sizes": "verl, fully async: Qwen2.5-Math-7B, DAPO, H20, 28K tokens, 32 to 128 GPUs",
    "staleness": "verl, fully async: staleness_threshold, 64 GPUs decode and 64 train",
    "minibatches": "verl, fully async: require_batches, 64 GPUs decode and 64 train, staleness 0.5",
    "mixture": "verl, fully async: Qwen3-30B-A3B, GRPO, H20, 8K tokens",
    "tools": "verl, fully async: Qwen2.5-7B-Instruct with tools, several turns, H20",
    "areal": "AReaL, mathematics: R1-distilled Qwen on H800, 27,648 tokens, seconds per step of 250",
    "areal_code": "AReaL, code: the same with 14B (80 steps) and 32B (60 steps)",
}

# Published columns of calibration rows, in seconds.
BATCH_SECONDS = 7.168
"""Per batch that the trainer takes, however many groups it has: from `minibatches`, rows 1 and 4, which differ in
nothing but 16 or 4 batches per step: (181.08 - 95.06) / 12. Each makes 16 optimizer updates: `update_actor` splits what
it gets by `ppo_mini_batch_size`."""

UPDATES = {
    "staleness 0": (98.77, 4),
    "staleness 0.5": (113.16, 4),
    "minibatches 1": (181.08, 16),
    "minibatches 4": (95.06, 4),
}
"""update_actor and the batches per step of all calibration rows with a 7B model on 64 + 64 GPUs."""

TRAIN_SECONDS = statistics.fmean(seconds - batches * BATCH_SECONDS for seconds, batches in UPDATES.values())
"""Of a step on 64 GPUs without BATCH_SECONDS: the mean of these rows, for all rows of that system."""

TURNS_UPDATE = {32: 313.81, 128: 113.81}
"""update_actor of the rows by turns of `sizes`, by GPUs."""

SCALING = math.log(TURNS_UPDATE[32] / TURNS_UPDATE[128]) / math.log(128 / 32)
"""Training takes (rows per GPU)^SCALING: from TURNS_UPDATE. Below 1 because each optimizer update waits for its slowest
rank and moves all gradients, however few rows it has."""

HANDOVER_SECONDS = 25.98
"""Per step, what is not update_actor in rows 1 and 4 of `minibatches`, the mean of 22.39 and 29.58. verl counts it as
`gen`: the trainer fetches groups one by one, unpickles them and puts them together. Engines are taken to stop too."""

ONE_STEP_HANDOVER = 0.3
"""Published: under 300 ms (one_step_off.md, "Parameter Synchronization")."""

GENERATION_SHARE = 0.9
"""Of AReaL's synchronous step: with long chains of thought more than 90 % is generation (OpenRLHF,
arXiv:2405.11143)."""

AREAL_TOKENS = 9000.0
"""Mean length of AReaL's completions. Assumed; the ratios of half and twice of it are in docs/scaling.md. Less than 5 %
reach the limit (blog/AReaL_v0_2.md), which with SIGMA is a mean below 10,700; and 356,600 tokens per second at η = 4
(figure 5c, read in notes on the paper) in steps of 213 s are 9,300 per completion."""

# Fitted, see `bench.scaling.fit`.
STALENESS_TOKENS = 1573.0
ONE_STEP_FSDP_TOKENS = 1314.4
"""To generate_sequences of the synchronous row with FSDP2, 247 s."""
ONE_STEP_MEGATRON_TOKENS = 1075.7
"""To the same with Megatron, 162 s."""
MIXTURE, MIXTURE_ACTIVE, MIXTURE_CACHE = 30.5e9, 3.3e9, 2 * 2 * 48 * 4 * 128
"""Of Qwen3-30B-A3B: parameters, those that a token uses, and bytes of keys and values per token. From its
configuration: 48 layers, hidden size 2,048, 128 experts of 768, 8 of them per token, 32 and 4 heads of 128."""
MIXTURE_SLOWNESS = 1.87
"""Decode seconds over those by the card's rates, to gen of the synchronous row, 348.05 s. verl's script turns CUDA
graphs off (`enforce_eager=True`).
"""
TOOLS_LIMIT = 16384
"""`max_response_length` of recipe/fully_async_policy/shell/dapo_7b_async_retool.sh."""
TOOLS_SLOWNESS = 2.3
"""The same with turns and tools, over a 7B model's, to gen of the synchronous row, 228.03 s."""
AREAL_SLOWNESS = {"1.5B": 4.28, "7B": 2.66, "14B": 3.82, "32B": 2.89}
"""Decode seconds over those by the card's rates, to GENERATION_SHARE of the synchronous row."""

H20, H800 = MACHINES["h20"], MACHINES["h800"]
SEVEN = MODELS["qwen2.5-7b"]


@dataclass(frozen=True)
class Row:
    """A published row. `step`: its seconds; `calibrates`: which constants it gives, empty where it is held out."""

    table: str
    name: str
    step: float
    setup: Setup
    calibrates: str = ""
    ratio_to: str = ""


@dataclass(frozen=True)
class Published:
    """A model of AReaL's table: `gpus`, `steps`, and hours by turns and apart."""

    table: str
    model: str
    gpus: int
    steps: int
    by_turns: float
    apart: float


AREAL = {
    "1.5B": Published("areal", "qwen2.5-1.5b", 128, 250, 41.0, 14.8),
    "7B": Published("areal", "qwen2.5-7b", 192, 250, 57.7, 25.4),
    "14B": Published("areal_code", "qwen2.5-14b", 256, 80, 48.8, 21.9),
    "32B": Published("areal_code", "qwen2.5-32b", 384, 60, 51.1, 31.1),
}


def decoded(
    tokens: float, limit: int, machine: Machine = H20, shape: ModelShape = SEVEN, slow: float = 1.0, group: int = 16
) -> Setup:
    """Return a step of 512 prompts on one engine, without training."""
    token, row = decode_seconds(shape.parameters, shape.cache_bytes(), tokens / 2, machine)
    return Setup(512, group, Lengths(tokens, SIGMA, limit), 1, slow * token, slow * row, 0.0)


def mixture(slow: float = MIXTURE_SLOWNESS) -> Setup:
    """Return a step of the mixture of experts: a token reads all experts, and a row multiplies its own."""
    token, _ = decode_seconds(MIXTURE, MIXTURE_CACHE, STALENESS_TOKENS / 2, H20)
    _, row = decode_seconds(MIXTURE_ACTIVE, MIXTURE_CACHE, STALENESS_TOKENS / 2, H20)
    return replace(decoded(STALENESS_TOKENS, 8192), token_seconds=slow * token, row_seconds=slow * row)


def tools(slow: float = TOOLS_SLOWNESS) -> Setup:
    """Return a step of 64 prompts with tools."""
    return replace(decoded(STALENESS_TOKENS, TOOLS_LIMIT, slow=slow), prompts=64)


def turns(setup: Setup, gpus: int, seconds: float) -> Setup:
    """Return a setup in which all GPUs decode, then all train for `seconds`."""
    return replace(setup, engines=gpus, train_seconds=seconds)


def streamed(setup: Setup, engines: int, seconds: float, staleness: float, chunks: int = 4) -> Setup:
    """Return verl's fully asynchronous trainer: `seconds` of training and BATCH_SECONDS per batch, by arrival."""
    train = replace(setup, train_seconds=seconds, chunks=chunks, chunk_seconds=BATCH_SECONDS)
    return replace(train, engines=engines, handover_seconds=HANDOVER_SECONDS, lag=staleness, windowed=True)


def moved(seconds: float, gpus: int, to: int, rows: float = 1.0) -> float:
    """Return the seconds of training on `to` GPUs where `gpus` take `seconds`, with `rows` times as many rows."""
    return seconds * (rows * gpus / to) ** SCALING


def _one_step_off() -> list[Row]:
    fsdp, megatron = decoded(ONE_STEP_FSDP_TOKENS, 20480), decoded(ONE_STEP_MEGATRON_TOKENS, 8192)

    def apart(setup: Setup, training: float, other: float) -> Setup:
        train = moved(training, 16, 12, rows=12 / 16) + other
        setup = replace(setup, group_size=12, engines=4, train_seconds=train)
        return replace(setup, lag=1.0, whole=True, handover_seconds=ONE_STEP_HANDOVER)

    table = "one_step_off"
    return [
        Row(table, "by turns, FSDP2", 749, turns(fsdp, 16, 749 - 247), "lengths, training, the rest"),
        Row(table, "one step off, FSDP2", 520, apart(fsdp, 286 + 88, 749 - 321 - 88 - 286)),
        Row(table, "by turns, Megatron", 699, turns(megatron, 16, 699 - 162), "lengths, training, the rest"),
        Row(table, "one step off, Megatron", 566, apart(megatron, 344 + 119, 699 - 207 - 119 - 344)),
    ]


def _fully_async() -> list[Row]:
    seven = decoded(STALENESS_TOKENS, 28672)
    rows = []
    given = {32: "scaling of training, old log-probs, the rest", 128: "scaling of training"}
    for gpus, step in ((32, 790.10), (64, 365.28), (128, 356.30)):
        train = moved(TURNS_UPDATE[32] + 107.71, 32, gpus) + 790.10 - 357.41 - 107.71 - TURNS_UPDATE[32]
        rows.append(Row("sizes", f"by turns, {gpus}", step, turns(seven, gpus, train), given.get(gpus, "")))
    for gpus, step in ((16, 294.77), (32, 189.26)):
        setup = streamed(seven, gpus, moved(TRAIN_SECONDS, 64, gpus), 0.5)
        rows.append(Row("sizes", f"{gpus} + {gpus}", step, setup))
    given = {0: "training, lengths", 0.5: "lengths"}
    for staleness, step in ((0, 231.34), (0.1, 171.30), (0.3, 146.11), (0.5, 150.63)):
        setup = streamed(seven, 64, TRAIN_SECONDS, staleness)
        rows.append(Row("staleness", str(staleness), step, setup, given.get(staleness, "")))
    for batches, step in ((1, 203.47), (2, 158.72), (4, 124.64)):
        setup = streamed(seven, 64, TRAIN_SECONDS, 0.5, 16 // batches)
        says = "" if batches == 2 else "training, batches, handover"
        rows.append(Row("minibatches", str(batches), step, setup, says))
    return rows


def _others() -> list[Row]:
    training = moved(86.27 - BATCH_SECONDS + 20.86, 128, 32)  # 20.86: the reference's log-probs
    return [
        Row("mixture", "by turns, 128", 497.89, turns(mixture(), 128, 497.89 - 348.05), "lengths, training"),
        Row("mixture", "96 + 32", 282.75, streamed(mixture(), 96, training, 0.5)),
        Row("tools", "by turns, 32", 375.47, turns(tools(), 32, 375.47 - 228.03), "lengths, training"),
        Row("tools", "16 + 16", 221.36, streamed(tools(), 16, moved(111.84 - BATCH_SECONDS, 32, 16), 1.0)),
    ]


def areal(name: str, tokens: float = AREAL_TOKENS, slow: float | None = None) -> tuple[Setup, Setup]:
    """Return AReaL's synchronous and asynchronous setups for a model."""
    found = AREAL[name]
    slow = AREAL_SLOWNESS[name] if slow is None else slow
    setup = decoded(tokens, 27648, H800, MODELS[found.model], slow)
    train = (1 - GENERATION_SHARE) * found.by_turns * 3600 / found.steps
    apart = replace(setup, engines=found.gpus * 3 // 4, train_seconds=4 * train, chunks=4, lag=4.0, windowed=True)
    return turns(setup, found.gpus, train), apart


def _areal() -> list[Row]:
    rows = []
    for name, found in AREAL.items():
        by_turns, apart = areal(name)
        first, seconds = f"{name}, by turns", 3600 / found.steps
        rows.append(Row(found.table, first, found.by_turns * seconds, by_turns, "decode seconds"))
        rows.append(Row(found.table, f"{name}, apart", found.apart * seconds, apart, ratio_to=first))
    return rows


ROWS: tuple[Row, ...] = (*_one_step_off(), *_fully_async(), *_others(), *_areal())


@cache
def step_of(setup: Setup) -> Outcome:
    """Return the simulated step of a setup: 3 steps after the warm-up."""
    return simulate(setup, 3)
