"""What the rest of oncurve knows of a model: two protocols, `CausalModel` and the `Decoder` it makes.

Speaking of M prompts (one a group), b completions of them and N = Σ lengths completion tokens, a model gives

    completion_hidden   the hidden states (N, H) that *predict* each completion token: training and scoring
    decoder             the same hidden states one token at a time: rollout
    logits              hidden (n, H) -> logits (n, V), in float32 at least

Both ways see the same weights and the same mathematics, so a sampled token's log-probability is the learner's.
The hidden states stand between so that nobody ever needs `(B, T, V)` logits: see `streams.token_streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

__all__ = ["CausalModel", "Decoder", "Head", "check_decoder", "check_rows", "longest_of", "module_device"]

Head = Callable[[Tensor], Tensor]
"""Hidden states `(n, H)` -> logits `(n, V)`."""


class Decoder(Protocol):
    """Completions growing by one token a step. Rows are in order of groups, `copies[g]` rows of group g.

    first_hidden (M, H)   predicts token 0, one a *group*: `first_hidden[groups]` is one a row
    groups       (n,)     the group of each live row

    The order of calls: sample token 0 from `first_hidden`, then `step(ids)` gives what predicts token 1, and so on.
    Rows that `join` later begin with their token 0 then, beside the others' tokens; every row gets at most
    `max_new_tokens - 1` steps, and a row that has had them must be dropped by `keep` before the next one.
    """

    @property
    def first_hidden(self) -> Tensor:
        """`(M, H)`: what predicts the first token of each group's completions."""

    @property
    def groups(self) -> Tensor:
        """`(n,)` int64: the group of each live row."""

    def join(self, prompts: Sequence[Tensor], copies: Sequence[int]) -> Tensor:
        """Prefill further groups; their rows stand behind the live ones, their numbers in `groups` behind all so far.

        Returns their `(M', H)` hidden states that predict token 0.
        """

    def step(self, ids: Tensor) -> Tensor:
        """Append `ids (n,)`, one token a live row; return the `(n, H)` hidden states that predict the next."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only: `rows (k,)` int64 are indices into the live rows, ascending, without repeats.

        k may be 0 if `join` comes next.
        """


class CausalModel(Protocol):
    """A causal language model in the two forms that training and rollout need."""

    @property
    def module(self) -> nn.Module:
        """The network: its parameters are what the learner trains."""

    @property
    def fast(self) -> bool:
        """True where prompts are computed once per group and decoding has a cache."""

    @property
    def path_reason(self) -> str:
        """Which path this model takes and why, as a sentence for the start of a run."""

    @property
    def longest_row(self) -> int | None:
        """The most tokens a row may have, prompt and completion together, of which the last is never fed; None: any."""

    def completion_hidden(
        self, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
    ) -> Tensor:
        """Hidden states `(N, H)` that predict each completion token, rows one after another.

        Args:
            prompts: M tensors `(P_g,)` int64, none empty.
            group_ids: `(b,)` int64, index into `prompts`.
            completion_ids: `(b, T)` int64, padded on the right; what stands beyond `lengths` is never read.
            lengths: `(b,)` int64 in 0..T; row r contributes `lengths[r]` rows to the result.

        Differentiable with respect to the module's parameters, unless under `torch.no_grad`.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """`(n, H)` -> `(n, V)`, float32 at least (float64 stays float64)."""

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """`logits` in the type that the head computes in: for the sampler, which widens them a few rows at a time."""

    def head_matrix(self) -> Tensor | None:
        """The `(V, H)` matrix that makes logits of hidden states, where nothing else does; None where there is more."""

    def head(self) -> Head:
        """What makes logits from stored hidden states without a gradient: a frozen reference hands this out."""

    def decoder(self, prompts: Sequence[Tensor], copies: Sequence[int], max_new_tokens: int) -> Decoder:
        """A decoder after its prefill: `copies[g]` >= 1 completions of prompt g of at most `max_new_tokens` tokens."""


def module_device(module: nn.Module) -> torch.device:
    """Where the module's first parameter lives; the CPU if it has none."""
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def check_rows(prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor) -> None:
    """Refuse shapes that cannot be what `completion_hidden` takes.

    Raises:
        ValueError: an empty prompt, or shapes that do not belong together.
    """
    if any(prompt.ndim != 1 or prompt.numel() == 0 for prompt in prompts):
        raise ValueError("every prompt must be a (P,) tensor of at least one token id")
    rows = completion_ids.shape[0]
    if completion_ids.ndim != 2 or group_ids.shape != (rows,) or lengths.shape != (rows,):
        raise ValueError(
            f"completion_ids (b, T), group_ids (b,) and lengths (b,) do not belong together: "
            f"{tuple(completion_ids.shape)}, {tuple(group_ids.shape)}, {tuple(lengths.shape)}"
        )


def longest_of(prompts: Sequence[Tensor], group_ids: Tensor, lengths: Tensor) -> int:
    """Tokens of the longest of the rows that `completion_hidden` takes."""
    sizes = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64, device=group_ids.device)
    return int((sizes[group_ids] + lengths.to(group_ids.device)).max()) if len(group_ids) else 0


def check_decoder(prompts: Sequence[Tensor], copies: Sequence[int]) -> None:
    """Refuse a decoder without prompts, with an empty prompt, or with a group of no rows.

    Raises:
        ValueError: any of these.
    """
    if not prompts or len(prompts) != len(copies):
        raise ValueError(
            f"a decoder needs one number of copies per prompt: {len(prompts)} prompts, {len(copies)} copies"
        )
    if any(prompt.ndim != 1 or prompt.numel() == 0 for prompt in prompts):
        raise ValueError("every prompt must be a (P,) tensor of at least one token id")
    if min(copies) < 1:
        raise ValueError("every group needs at least one row; leave out groups without rows")
