"""Passes over a batch in micro-batches: as many tokens as the settings say, halved for the rest of the run when memory
runs out; and token statistics of a whole batch, without a gradient.

Before they are halved, decoding gives back what it keeps from rollout to rollout, now and before every later pass.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.nn.functional import pad

from oncurve.base.errors import TrainingError
from oncurve.batching import micro_batches
from oncurve.models import CausalModel, token_stats
from oncurve.types import TokenStats, TrainBatch

Result = TypeVar("Result")


class Budget:
    """The most tokens of a forward and backward pass. `tokens`: now; `halved`: the number of times it was halved.

    `free_decoding` is that of the model that samples.
    """

    def __init__(self, tokens: int, free_decoding: Callable[[], bool] = lambda: False) -> None:
        self.tokens = tokens
        self.halved = 0
        self._free_decoding, self._needs_it = free_decoding, False

    def lower_to(self, tokens: int) -> None:
        """At most `tokens` from now on: what did not fit before a run was resumed does not fit now."""
        self.tokens = min(self.tokens, tokens)

    def fit(self, work: Callable[[int], Result], batch: TrainBatch) -> Result:
        """Return `work(tokens)`, repeated from its start whenever the device runs out of memory.

        The first time decoding gives back its own, then there are half as many tokens each time.

        This is for accelerators: a process that uses up the host's memory is killed without an exception.

        Raises TrainingError when even a single row of `batch` at a time is too much.
        """
        if self._needs_it:
            self._free()
        while True:
            try:
                return work(self.tokens)
            except torch.OutOfMemoryError as error:
                problem = str(error).partition("\n")[0]
            if self._free():  # outside the handler: the traceback holds the tensors that must be freed
                self._needs_it = True
            else:
                self._halve(batch, problem)

    def _free(self) -> bool:
        freed = self._free_decoding()
        if freed:
            torch.cuda.empty_cache()
        return freed

    def _halve(self, batch: TrainBatch, problem: str) -> None:
        rows = [
            length + len(batch.prompts[group])
            for length, group in zip(batch.lengths.tolist(), batch.group_ids.tolist(), strict=True)
        ]
        whole = int(batch.lengths.sum()) + sum(len(prompt) for prompt in batch.prompts)
        if min(self.tokens, whole) <= max(rows):
            raise TrainingError(
                f"out of memory with one completion at a time ({max(rows)} tokens with its prompt): {problem}. "
                "Set learner.gradient_checkpointing = true, learner.moments = 'bfloat16', learner.masters = 'split' or "
                "a smaller rollout.max_new_tokens, and resume"
            )
        self.tokens = max(1, min(self.tokens, whole) // 2)
        self.halved += 1
        torch.cuda.empty_cache()  # nothing where no GPU is used


OBSERVED = frozenset({"entropy"})
"""Statistics that every update logs, computed without a gradient unless the loss needs one."""


@torch.no_grad()
def scored_stats(
    model: CausalModel,
    batch: TrainBatch,
    temperature: float,
    tokens_per_micro_batch: int,
    want: frozenset[str] = frozenset(),
) -> TokenStats:
    """Return log-probs `(B, T)` of the batch's completions under `model`, and the entropy if it is in `want`."""
    pieces = [
        token_stats(model, micro, temperature=temperature, observe=want & OBSERVED)
        for micro in micro_batches(batch, tokens_per_micro_batch)
    ]
    return of_the_whole(batch, pieces, want)


def of_the_whole(batch: TrainBatch, pieces: Sequence[TokenStats], want: frozenset[str]) -> TokenStats:
    """Return the statistics of the batch's micro-batches as its own, padded to its width."""
    width, device = batch.completion_ids.shape[1], batch.completion_ids.device
    columns = ["logprobs", *(want & OBSERVED)]
    wide = [[pad(getattr(piece, name), (0, width - piece.logprobs.shape[1])) for piece in pieces] for name in columns]
    return TokenStats(**{name: torch.cat(found).to(device) for name, found in zip(columns, wide, strict=True)})
