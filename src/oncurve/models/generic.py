"""The generic path: any `nn.Module` with `forward(input_ids (B, L)) -> logits (B, L, V)`, or an object with `.logits`.

Prompts and completions are put together row by row, padded on the *right* and run whole: a causal model never looks
right, so padding needs no mask. `hidden` is the logits themselves and `logits()` only widens them. There is no cache:
the decoder runs everything again at each step. This path is slower than `network.TransformersModel` and has the same
results; a run reports at its start that it uses it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.models.adapters.adapter import Adapter
from oncurve.models.causal import TokenLoop, module_device
from oncurve.models.decode.host_loop import HostLoop
from oncurve.models.layers.lengths import check_rows, longest_row_of
from oncurve.ops import at_least_float32


def plain_logits(module: nn.Module, input_ids: Tensor) -> Tensor:
    """Return `module(input_ids)` as logits `(B, L, V)`. A cache or a state that the module can keep is switched off.

    Raises:
        ModelError: the module returns neither a `(B, L, V)` tensor nor an object with such a `.logits`.
    """
    result = module(input_ids, **_no_cache(module))
    logits = result if isinstance(result, Tensor) else getattr(result, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != input_ids.shape:
        given = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(result).__name__
        raise ModelError(
            f"{type(module).__name__}(input_ids) must return logits of shape (batch, length, vocabulary), or an object "
            f"with such a `.logits`; for input_ids of shape {tuple(input_ids.shape)} it returned {given}"
        )
    return logits


def _no_cache(module: nn.Module) -> dict[str, bool]:
    """Return a recurrent network in evaluation mode updates its state in place, which breaks the backward pass."""
    taken = inspect.signature(module.forward).parameters
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    transformers_model = hasattr(getattr(module, "config", None), "get_text_config")
    return {"use_cache": False} if "use_cache" in taken or (passed_on and transformers_model) else {}


class GenericModel:
    """A `CausalModel` over any module that maps token ids to logits."""

    fast = False

    def __init__(
        self,
        module: nn.Module,
        path_reason: str = "generic path: plain padded forward, no cache",
        adapter: Adapter | None = None,
    ) -> None:
        self.module = module.eval()
        self.adapter = adapter
        self.path_reason = path_reason

    @property
    def longest_row(self) -> int | None:
        """The most tokens of a row, by the module's configuration."""
        return longest_row_of(self.module)

    def completion_hidden(
        self, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return hidden states `(N, H)`, which are the logits: H is the size of the vocabulary."""
        check_rows(self.module, prompts, group_ids, completion_ids, lengths)
        device = module_device(self.module)
        group_ids, completion_ids, lengths = group_ids.to(device), completion_ids.to(device), lengths.to(device)
        # The last token of a completion predicts nothing, so it is not run.
        fed = zip(group_ids.tolist(), completion_ids, (lengths - 1).clamp(min=0).tolist(), strict=True)
        row_ids, widths = _pad([torch.cat([prompts[group].to(device), ids[:count]]) for group, ids, count in fed])
        starts = widths - (lengths - 1).clamp(min=0)
        logits = plain_logits(self.module.eval(), row_ids)
        steps = torch.arange(completion_ids.shape[1], device=device)
        rows, columns = (steps[None, :] < lengths[:, None]).nonzero(as_tuple=True)
        return logits[rows, starts[rows] - 1 + columns]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the hidden states are the logits: widened to float32 at least."""
        return at_least_float32(hidden)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Return the hidden states themselves."""
        return hidden

    def head_matrix(self) -> None:
        """Return None: what makes the logits is inside the module."""

    def token_loop(self, truncated: bool = False) -> TokenLoop:
        """Return the loop on the host, which runs whole rows at every step."""
        return HostLoop(self.decoder, module_device(self.module))

    def free_decoding(self) -> bool:
        """Return False: nothing is kept."""
        return False

    def decoder(self, rows: int, max_new_tokens: int) -> GenericDecoder:
        """Return a decoder for rows of at most `max_new_tokens` tokens."""
        return GenericDecoder(self.module.eval(), max_new_tokens)


class GenericDecoder:
    """A `Decoder` without a cache: every step runs the whole rows again. Never records a gradient."""

    def __init__(self, module: nn.Module, max_new_tokens: int) -> None:
        self._module, self._limit = module, max_new_tokens
        self._lengths = torch.empty(0, dtype=torch.int64, device=module_device(module))
        self._ids = self._lengths.view(0, 0)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the hidden states are the logits."""
        return hidden

    @torch.no_grad()
    def join(self, prompts: Sequence[Tensor], copies: int) -> Tensor:
        """Add groups: their rows follow those that are there."""
        device = self._ids.device
        prompt_ids, lengths = _pad([prompt.to(device) for prompt in prompts])
        logits = plain_logits(self._module, prompt_ids)
        width = max(self._ids.shape[1], prompt_ids.shape[1] + self._limit)
        rows = [self._ids, prompt_ids.repeat_interleave(copies, 0)]
        self._ids = torch.cat([nn.functional.pad(ids, (0, width - ids.shape[1])) for ids in rows])
        self._lengths = torch.cat([self._lengths, lengths.repeat_interleave(copies)])
        return logits[torch.arange(len(prompts), device=device), lengths - 1]

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """Return one token per row: the logits of the next."""
        rows = torch.arange(self._ids.shape[0], device=self._ids.device)
        self._ids[rows, self._lengths] = ids.to(self._ids.device)
        logits = plain_logits(self._module, self._ids[:, : int(self._lengths.max()) + 1])
        hidden = logits[rows, self._lengths]
        self._lengths = self._lengths + 1
        return hidden

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        rows = rows.to(self._ids.device)
        self._ids, self._lengths = self._ids[rows], self._lengths[rows]


def _pad(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return prompts as `(M, P)`, and their lengths `(M,)`.

    They are padded on the right with their own first token: the embedding of a padding token may be all zeros, where
    some networks have values and no gradient (0 times infinity is NaN, though nothing depends on the padding).
    """
    lengths = torch.tensor([prompt.shape[0] for prompt in prompts], device=prompts[0].device)
    padded = nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
    exists = torch.arange(padded.shape[1], device=lengths.device) < lengths[:, None]
    return torch.where(exists, padded, padded[:, :1]), lengths
