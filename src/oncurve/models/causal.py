"""The interface of a model to the rest of oncurve: the protocols `CausalModel` and `TokenLoop`.

Speaking of M prompts (one per group), b completions of them and N = Σ lengths completion tokens, a model gives

    completion_hidden   the hidden states (N, H) that *predict* each completion token: training and scoring
    logits              hidden (n, H) -> logits (n, V), in float32 at least
    token_loop          completions, token by token: rollout

Both ways use the same weights and the same mathematics, so a sampled token's log-probability is the learner's. The
hidden states are passed on, and not logits, so that `(B, T, V)` logits are never made: `head.token_stats`.

TokenLoop   whole completions: what rollout needs of a model
Decoder     one token per row and step: what the token loop on the host needs of a model's cache
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from oncurve.models.adapters.adapter import Adapter
from oncurve.types import Ending

Head = Callable[[Tensor], Tensor]
"""Hidden states `(n, H)` -> logits `(n, V)`."""


class CausalModel(Protocol):
    """A causal language model in the two forms that training and rollout need."""

    @property
    def module(self) -> nn.Module:
        """The network: its parameters are what the learner trains."""

    @property
    def adapter(self) -> Adapter | None:
        """The adapter in the module, which is all that is trained; None: it has none."""

    @property
    def fast(self) -> bool:
        """True where prompts are computed once per group and decoding has a cache."""

    @property
    def path_reason(self) -> str:
        """Return which path this model takes and why, as a sentence for the start of a run."""

    @property
    def longest_row(self) -> int | None:
        """The most tokens a row may have, prompt and completion together, of which the last is never fed; None: any."""

    def completion_hidden(
        self, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return hidden states `(N, H)` that predict each completion token, rows one after another.

        Args:
            prompts: M tensors `(P_g,)` int64, none empty.
            group_ids: `(b,)` int64, index into `prompts`.
            completion_ids: `(b, T)` int64, padded on the right; what is beyond `lengths` is never read.
            lengths: `(b,)` int64 in 0..T; row r contributes `lengths[r]` rows to the result.

        Differentiable with respect to the module's parameters, unless under `torch.no_grad`.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return `(n, H)` -> `(n, V)`, float32 at least (float64 stays float64)."""

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Return `logits` in the type that the head computes in: for the sampler, which widens them a few rows at a
        time.
        """

    def head_matrix(self) -> Tensor | None:
        """Return the `(V, H)` matrix that makes logits of hidden states, where nothing else does; None where there is
        more.
        """

    def token_loop(self, truncated: bool = False) -> TokenLoop:
        """Return a loop that decodes with the model's weights as they are at each call.

        truncated   the sampler gives kept sets, which the rows have
        """

    def free_decoding(self) -> bool:
        """Free the memory that decoding keeps from rollout to rollout; return whether there was any."""


def module_device(module: nn.Module) -> torch.device:
    """Return where the module's first parameter lives; the CPU if it has none."""
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


Draw = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""`(logits (n, V), uniforms (n,)) -> (ids (n,), log-probabilities (n,))`, without reading a number on the host.

Of truncated sampling `(..., sizes (n,), ids (m,))` of the kept sets follow, as in `Completion`.

Steps that are captured for one draw are used again for another that equals it.
"""


@dataclass(frozen=True)
class EndedRows:
    """A completion as the token loop leaves it; `text` is set where a stop string cut it."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: Ending
    text: str | None
    kept_sizes: tuple[int, ...] | None = None
    kept_ids: bytes = b""


OnEnded = Callable[[int, list[EndedRows]], None]
"""`(index of the prompt, its completions)`, called as soon as the last of these has ended."""


class StopStrings(Protocol):
    """Finds stop strings in the rows of one request."""

    def candidates(self, ids: Tensor) -> Tensor:
        """Return `(n,)` bool: the tokens `ids (n,)` that may complete a stop string; of the others none does.

        They are on the CPU, and n > 0.
        """

    def finished(self, row: int, written: Callable[[int], list[int]]) -> str | None:
        """Return the text before the stop string that a row's newest token completed; None: it completed none.

        row      the row's number
        written  start -> its tokens from `start` to the newest, which is one of the `candidates`
        """


@dataclass(frozen=True)
class DecodeRequest:
    """G completions for each of M prompts. Row `g · G + c` is completion c of prompt g.

    prompts          M tensors (P_g,) int64
    keys             (M, G) int64, the key of each row's uniforms: `randomness.row_keys`
    limits           (M, G) int64 in 1..T, the most tokens of each row
    max_new_tokens   T
    eos_ids          any of them ends a row; none: only the limits do
    draw             the sampler
    stop             finds stop strings; None: there are none
    max_concurrent   at most so many rows are decoded at a time; None: all
    """

    prompts: Sequence[Tensor]
    keys: Tensor
    limits: Tensor
    max_new_tokens: int
    eos_ids: Sequence[int]
    draw: Draw
    stop: StopStrings | None = None
    max_concurrent: int | None = None

    @property
    def copies(self) -> int:
        """G, the rows of a group."""
        return self.keys.shape[1]


class TokenLoop(Protocol):
    """Decodes whole completions. A row's tokens depend on its own uniforms, not on the rows that run with it."""

    def __call__(self, request: DecodeRequest, on_group: OnEnded | None = None) -> list[EndedRows]:
        """Return the rows of the request in their order; a row's ids include the token that ended it.

        Raises ModelError: a log-probability is not finite.
        """


class Decoder(Protocol):
    """Completions that grow by one token per step. It begins without any; rows are in order of groups.

    The order of calls: sample token 0 from what `join` gives, then `step(ids)` gives what predicts token 1, and so on.
    Rows that join later begin with their token 0 then, next to the others' tokens. Every row gets at most
    `max_new_tokens - 1` steps, and a row that has had them must be dropped by `keep` before the next one.
    """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return `(n, H)` -> `(n, V)` in the type that the head computes in, with the weights that the decoder began
        with.
        """

    def join(self, prompts: Sequence[Tensor], copies: int) -> Tensor:
        """Prefill further groups of `copies` rows each, which follow those that are there.

        Returns the hidden states `(M, H)` that predict token 0, once per *group*.
        """

    def step(self, ids: Tensor) -> Tensor:
        """Append `ids (n,)`, one token per row; return the `(n, H)` hidden states that predict the next."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only: `rows (k,)` int64 are indices into the rows, ascending, without repeats.

        k may be 0 if `join` comes next.
        """
