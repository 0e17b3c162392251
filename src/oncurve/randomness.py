"""Randomness without generators: every random number is a function of what it is for.

A sampled token's uniform depends on `(seed, draw, prompt id, sample index, position)` and nothing else, a shuffle on
`(seed, epoch)`. So there is no generator state to save, a resumed run draws what the uninterrupted one would have, and
neither batching nor the order in which completions end can change a number. torch has no counter-based generator on
the CPU; a small integer hash in torch ops is the same there and on CUDA.

The hash takes the coordinates in one after another, `h ← mix(h ⊕ v·γ)`, where γ is 2⁶⁴ over the golden ratio and `mix`
is the 64-bit finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014, with Stafford's constants, variant 13).

Covered: statistical quality for sampling and shuffling. Not covered: cryptography; the hash is easy to invert.
"""

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits as `value`: torch has no unsigned arithmetic, and its int64 wraps."""
    return (value + 2**63) % 2**64 - 2**63


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)

# The start of each family of numbers, so that no shuffle has the hash of a token.
_TOKENS = 1
_SHUFFLES = 2
_ROUNDINGS = 3
_WEIGHTS = 4
_EPISODES = 5


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Return the logical shift: torch's `>>` copies the sign bit in from the left, the mask takes it out again."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of the 64-bit integers in which every bit depends on every bit."""
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def _absorb(state: Tensor, value: Tensor | int) -> Tensor:
    """Return the state after one more coordinate, `mix(state ⊕ value·γ)`; shapes broadcast."""
    return _mix(state ^ (value * _GAMMA if isinstance(value, Tensor) else _signed(value * _GAMMA)))


def _start(family: int, *coordinates: int) -> Tensor:
    """Return the state () after the coordinates that are the same for every row."""
    state = _mix(torch.tensor(family))
    for coordinate in coordinates:
        state = _absorb(state, coordinate)
    return state


def row_keys(seed: int, draw: int, prompt_ids: Tensor, sample_index: Tensor) -> Tensor:
    """Return the keys `(n,)` int64 of completions, from which `uniform_at` computes the number of each position.

    `seed` and `draw` are any integers (taken modulo 2⁶⁴); `prompt_ids` and `sample_index` are `(n,)` int64.
    """
    return _absorb(_absorb(_start(_TOKENS, seed, draw), prompt_ids), sample_index)


def uniform_at(keys: Tensor, position: Tensor | int) -> Tensor:
    """Return the uniforms of completions `keys` at token `position`, float64, strictly inside (0, 1); shapes broadcast.

    The value is `(2k + 1) / 2⁵³` with `k` the upper 52 bits of the hash: all 53 bits of a float64 are used, the value
    is exact, symmetric about 1/2, and neither 0 nor 1 can come out (rounding `(k + ½) / 2⁵³` would reach 1).
    """
    upper = _shift_right(_absorb(keys, position), 12)
    return (upper * 2 + 1).to(torch.float64) * 2.0**-53


def uniform(seed: int, draw: int, prompt_ids: Tensor, sample_index: Tensor, position: Tensor | int) -> Tensor:
    """Return the uniform `(n,)` float64 in (0, 1) of a token: a pure function of its five coordinates, CPU and CUDA
    alike.

    prompt_ids, sample_index   (n,) int64
    position                   (n,) int64 or one int: the token's index t in its completion
    """
    return uniform_at(row_keys(seed, draw, prompt_ids, sample_index), position)


def episode_seed(seed: int, draw: int, prompt_id: int, sample_index: int, turn: int) -> int:
    """Return the seed, 0 to 2⁶³ - 1, of an environment's randomness in one turn of an episode."""
    return int(_start(_EPISODES, seed, draw, prompt_id, sample_index, turn)) % 2**63


def permutation(seed: int, epoch: int, n: int) -> Tensor:
    """Return the order `(n,)` int64 in which epoch `epoch` visits `n` rows: row indices sorted by their hash, ties by
    index.

    Raises ValueError where `n` is negative.
    """
    if n < 0:
        raise ValueError(f"permutation of {n} rows: n must be >= 0")
    return torch.argsort(_absorb(_start(_SHUFFLES, seed, epoch), torch.arange(n)), stable=True)


def weighted_order(seed: int, draw: int, weights: Tensor) -> Tensor:
    """Return an order `(n,)` int64 of rows: each is first, and so on, with a probability in proportion to its weight.

    weights   (n,) float64, above 0; where all are equal, the order is `permutation(seed, draw, n)`

    It is an exponential race: rows sorted by e_i / w_i, e_i of the exponential distribution.
    """
    hashed = _absorb(_start(_SHUFFLES, seed, draw), torch.arange(len(weights)))
    upper = (hashed >> 12).to(torch.float64) + 2.0**51 + 0.5  # ascending with the hash, inside 0 ... 2⁵²
    return torch.argsort(-torch.log1p(-upper * 2.0**-52) / weights, stable=True)


def rounding_table(n: int, device: torch.device) -> Tensor:
    """Return hashes `(n,)` int32 of 0 to n - 1, so that neighbours round differently."""
    hashed = _absorb(_start(_ROUNDINGS), torch.arange(n))
    return (hashed >> 32).to(torch.int32).to(device)


def rounding_key(step: int, index: int) -> int:
    """Return a 64-bit hash >= 0 of an update and of a slice of its parameters, so that each rounds differently."""
    return int(_start(_ROUNDINGS, step, index)) % 2**64


def weight_uniforms(seed: int, index: int, n: int) -> Tensor:
    """Return the uniforms `(n,)` float64 in (0, 1) from which the tensor number `index` of a new part of a model is
    made.
    """
    return uniform_at(_start(_WEIGHTS, seed, index), torch.arange(n))
