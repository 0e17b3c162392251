"""Rollout engines turn prompts into groups of completions. `InProcessEngine` samples from the learner's own module.

    engine.follow(Policy(model, version=3))
    groups = engine.generate(prompts, draw=3)     # one Group a prompt, in order; no scores yet
    groups = engine.generate(prompts, draw=4, on_group=lambda index, group: ...)    # and each as soon as it is whole

Sampler and learner share the module, so `follow` copies nothing, and a recorded log-probability is the learner's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from oncurve.errors import ConfigError, DataError
from oncurve.models.causal import CausalModel, module_device
from oncurve.randomness import row_keys
from oncurve.rollout.decoding import Ended, decode_rows
from oncurve.rollout.sampling import Sampling
from oncurve.rollout.stopping import Detokenizer, StopSearch, StopTable, Tokenizer
from oncurve.types import Completion, Group, Prompt

__all__ = ["InProcessEngine", "Limits", "OnGroup", "Policy", "RolloutEngine", "check_token_ids", "is_exact"]

OnGroup = Callable[[int, Group], None]
"""`(index of the prompt, its finished group)`, called in this process while other groups still grow."""

Limits = Callable[[int, int], int]
"""`(prompt id, sample index)` -> the most tokens that this completion may have."""


@dataclass(frozen=True)
class Policy:
    """A model to sample from; `version` counts the updates it has seen and is written on every completion."""

    model: CausalModel
    version: int


class RolloutEngine(Protocol):
    """Prompts in, groups out, by the policy that was followed last."""

    @property
    def exact(self) -> bool:
        """Whether recorded log-probs are those of the weights that `policy_version` names, up to rounding.

        An engine with kernels, a precision or a copy of the weights of its own is not exact, nor one that may not have
        taken over the weights that it was given last. Left out: False.
        """

    def follow(self, policy: Policy) -> None:
        """Sample from this policy from now on."""

    def generate(
        self, prompts: Sequence[Prompt], draw: int, sampling: Sampling | None = None, on_group: OnGroup | None = None
    ) -> list[Group]:
        """One group a prompt, in the prompts' order, without scores.

        `draw` is the number of this rollout in the run: with the seed, the prompt's id, the sample's index and the
        token's position it decides every token. `sampling` stands in for the engine's own, say for an evaluation.
        `on_group` is called once for every group, in the order in which they are finished, as soon as the last of its
        completions has ended. What it raises ends the rollout.
        """


def is_exact(engine: RolloutEngine) -> bool:
    """What the engine states in `exact`; False where it states nothing."""
    return bool(getattr(engine, "exact", False))


class InProcessEngine:
    """Samples with the policy's module in this process, at most `sampling.rows` rows side by side: groups wait
    until enough of these are free.

    sampling    the settings of a training rollout
    tokenizer   for texts and stop strings; without one every text is ""
    eos_ids     token ids that end a completion; `sampling.eos_ids` are added
    seed        the run's seed
    limits      for benchmarks: the length at which each completion ends by "length", if nothing ends it sooner; it
                cannot be more than `sampling.max_new_tokens`

    A prompt that stands in one call twice gets other samples the second time: its sample indices go on counting.

    Raises ConfigError: stop strings without a tokenizer, or one that is a special token.
    """

    exact = True
    """The learner's own module samples."""

    def __init__(
        self,
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self.sampling = sampling
        self._tokenizer = tokenizer
        self._eos_ids = tuple(eos_ids)
        self._seed = seed
        self._limits = limits
        self._policy: Policy | None = None
        self._tables: dict[tuple[str, ...], StopTable] = {}
        self._stop_table(sampling)

    def follow(self, policy: Policy) -> None:
        """Sample from this policy from now on: the module is shared, nothing is copied."""
        self._policy = policy

    def generate(
        self, prompts: Sequence[Prompt], draw: int, sampling: Sampling | None = None, on_group: OnGroup | None = None
    ) -> list[Group]:
        """See `RolloutEngine.generate`.

        Raises DataError: a prompt without tokens, or too long for the model with `max_new_tokens` behind it.
        Raises ModelError: the model's logits are not finite.
        """
        sampling = sampling or self.sampling
        if self._policy is None:
            raise RuntimeError("generate() before follow(): the engine has no policy yet")
        _check_lengths(prompts, sampling, self._policy.model)
        firsts = _first_samples(prompts, sampling.group_size)
        groups: dict[int, Group] = {}
        version = self._policy.version

        def finish(index: int, ended: Sequence[Ended]) -> None:
            prompt = prompts[index]
            groups[index] = Group(prompt, self._completions(prompt, ended, firsts[index], version), draw=draw)
            if on_group is not None:
                on_group(index, groups[index])

        if prompts:
            self._decode(self._policy.model, prompts, firsts, draw, sampling, finish)
        return [groups[index] for index in range(len(prompts))]

    def _decode(
        self,
        model: CausalModel,
        prompts: Sequence[Prompt],
        firsts: Sequence[int],
        draw: int,
        sampling: Sampling,
        finish: Callable[[int, list[Ended]], None],
    ) -> None:
        size = sampling.group_size
        prompt_ids = torch.tensor([prompt.id for prompt in prompts]).repeat_interleave(size)
        sample_index = (torch.tensor(firsts)[:, None] + torch.arange(size)).flatten()
        table = self._stop_table(sampling)
        decode_rows(
            model,
            [torch.tensor(prompt.ids) for prompt in prompts],
            row_keys(self._seed, draw, prompt_ids, sample_index),
            self._eos_ids + sampling.eos_ids,
            sampling.max_new_tokens,
            sampling.temperature,
            StopSearch(table, [prompt.ids for prompt in prompts for _ in range(size)]) if table else None,
            self._row_limits(prompt_ids, sample_index, sampling.max_new_tokens),
            finish,
            sampling.rows,
        )

    def _row_limits(self, prompt_ids: Tensor, sample_index: Tensor, most: int) -> Tensor | None:
        if self._limits is None:
            return None
        wanted = map(self._limits, prompt_ids.tolist(), sample_index.tolist())
        return torch.tensor([max(1, min(most, limit)) for limit in wanted])

    def _completions(self, prompt: Prompt, ended: Sequence[Ended], first: int, version: int) -> tuple[Completion, ...]:
        text = Detokenizer(self._tokenizer).after(prompt.ids) if self._tokenizer is not None else _no_text
        return tuple(
            Completion(
                row.ids,
                # The token that ended it by EOS is not text, be it special or not.
                row.text if row.text is not None else text(row.ids[:-1] if row.ended == "eos" else row.ids),
                row.logprobs,
                row.ended,
                first + index,
                version,
            )
            for index, row in enumerate(ended)
        )

    def _stop_table(self, sampling: Sampling) -> StopTable | None:
        if not sampling.stop:
            return None
        if self._tokenizer is None:
            raise ConfigError("rollout.stop: stop strings need a tokenizer; without one, stop by rollout.eos_ids")
        if sampling.stop not in self._tables:
            self._tables[sampling.stop] = StopTable(self._tokenizer, sampling.stop)
        return self._tables[sampling.stop]


def _no_text(ids: Sequence[int]) -> str:
    return ""


def _first_samples(prompts: Sequence[Prompt], group_size: int) -> list[int]:
    """The sample index that each prompt's group begins at: 0, or on from where the same prompt's last group ended."""
    seen: Counter[int] = Counter()
    firsts = []
    for prompt in prompts:
        firsts.append(seen[prompt.id] * group_size)
        seen[prompt.id] += 1
    return firsts


@torch.no_grad()
def check_token_ids(key: str, ids: Sequence[int], model: CausalModel) -> None:
    """Raises ConfigError where the setting `key` has an id that the model has no logit for: it can never be sampled."""
    if not ids:
        return
    one = torch.ones(1, dtype=torch.int64, device=module_device(model.module))
    size = model.logits(model.completion_hidden([one - 1], one - 1, one[None] - 1, one)).shape[-1]
    if outside := [number for number in ids if not 0 <= number < size]:
        raise ConfigError(f"{key}: {outside[0]} is not a token of the model, whose ids are 0 to {size - 1}")


def _check_lengths(prompts: Sequence[Prompt], sampling: Sampling, model: CausalModel) -> None:
    longest = model.longest_row
    for prompt in prompts:
        length = len(prompt.ids)
        if not length:
            raise DataError(
                f"prompt {prompt.id} ({prompt.text[:40]!r}) has no tokens; a completion needs at least one to follow: "
                "begin the prompt with the BOS token, or leave the row out"
            )
        if longest is not None and length + sampling.max_new_tokens > longest:
            room = longest - length
            mend = f"set rollout.max_new_tokens to {room} or less, or shorten the prompt" if room > 0 else "shorten it"
            raise DataError(
                f"prompt {prompt.id} ({prompt.text[:40]!r}) has {length} tokens; with rollout.max_new_tokens = "
                f"{sampling.max_new_tokens} that makes {length + sampling.max_new_tokens}, and the model takes "
                f"rows of at most {longest}: {mend}"
            )
