"""Rollout engines turn prompts into groups of completions. `InProcessEngine` samples with the learner's own module.

    engine.follow(LocalWeights(model, version=3))
    groups = engine.generate(prompts, draw=3)     # one Group per prompt, in order; no scores yet
    groups = engine.generate(prompts, draw=4, on_group=lambda index, group: ...)    # and each as soon as it is complete

Sampler and learner share the module, so `follow` copies nothing, and a recorded log-probability is the learner's.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress
from typing import Protocol, get_args

import torch

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, DataError
from oncurve.models import CausalModel, DecodeRequest, EndedRows, Weights, module_device
from oncurve.randomness import row_keys
from oncurve.rollout.sampler import sampler_of
from oncurve.rollout.sampling import Sampling
from oncurve.rollout.stopping import Detokenizer, StopSearch, StopTable, Tokenizer
from oncurve.types import Completion, Ending, Group, Prompt

OnGroup = Callable[[int, Group], None]
"""`(index of the prompt, its finished group)`, called in this process while other groups still grow."""

Limits = Callable[[int, int], int]
"""`(prompt id, sample index)` -> the most tokens that this completion may have."""


class RolloutEngine(Protocol):
    """Prompts in, groups out, sampled with the weights that were followed last."""

    @property
    def exact(self) -> bool:
        """Return whether recorded log-probs are those of the weights that `policy_version` names, up to rounding.

        An engine with kernels or a precision of its own is not exact, nor is one that may still sample with older
        weights than those it was given last. The learner then computes the log-probs of the old policy.
        """
        ...

    def follow(self, weights: Weights) -> None:
        """Sample from these weights from now on."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling | None = None,
        on_group: OnGroup | None = None,
        first_samples: Sequence[int] | None = None,
    ) -> list[Group]:
        """Return one group per prompt, in the prompts' order, without scores.

        draw            the number of this rollout in the run: with the seed, the prompt's id, the sample's index and
                        the token's position it decides every token
        sampling        replaces the engine's own settings, for example in an evaluation
        on_group        called once per group, as soon as the last of its completions has ended; what it raises ends
                        the rollout
        first_samples   the sample index that each prompt's group begins at, so that a prompt that occurs twice gets
                        other samples wherever it is decoded; None: `count_samples` of this call
        """

    def measured(self) -> Mapping[str, float]:
        """Return what was measured since the last call, by the names of declared metrics."""
        ...

    def worked(self) -> float | None:
        """Return seconds for which other processes have sampled so far, the mean over them; None: there are none."""
        ...

    def close(self) -> None:
        """Give back what the engine holds: processes, memory, connections. Called at the end of a run; may be repeated.

        An engine that is followed again afterwards begins again.
        """


class EngineBase(Closing):
    """The methods that an engine need not have: here they do nothing."""

    def measured(self) -> Mapping[str, float]:
        """Return no metrics."""
        return {}

    def worked(self) -> float | None:
        """Return None: no other process samples."""
        return None

    def close(self) -> None:
        """Give nothing back."""


def count_samples(prompts: Sequence[Prompt], group_size: int) -> list[int]:
    """Return the sample index that each prompt's group begins at: 0, or the end of the same prompt's previous group."""
    seen: Counter[int] = Counter()
    firsts = []
    for prompt in prompts:
        firsts.append(seen[prompt.id] * group_size)
        seen[prompt.id] += 1
    return firsts


def sample(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    draw: int,
    group_size: int,
    sampling: Sampling | None = None,
    on_group: OnGroup | None = None,
) -> list[Group]:
    """Return the engine's groups, one per prompt, of `group_size` completions each; a prompt that occurs twice gets
    others. An episode may have several completions.

    Raises ConfigError: the engine returned something else.
    """
    groups: object = engine.generate(prompts, draw, sampling, on_group, count_samples(prompts, group_size))
    if not isinstance(groups, list) or [_outline(group) for group in groups] != [(p.id, group_size) for p in prompts]:
        raise ConfigError(
            f"engine.kind: {type(engine).__name__}.generate must return a list of one Group per prompt, in the "
            f"prompts' order, here {len(prompts)}, each of {group_size} completions"
        )
    for completion in chain.from_iterable(group.completions for group in groups):
        if wrong := _wrong_with(completion):
            raise ConfigError(f"engine.kind: {type(engine).__name__}.generate returned a completion {wrong}")
    return groups


def _wrong_with(completion: Completion) -> str | None:
    """Return what is wrong with a completion that was sampled, or None."""
    if not completion.ids and completion.fault is None:
        return "without tokens"
    if len(completion.logprobs) != len(completion.ids):
        return f"of {len(completion.ids)} tokens with {len(completion.logprobs)} log-probs"
    written = completion.logprobs if completion.trained is None else compress(completion.logprobs, completion.trained)
    if not all(map(math.isfinite, written)):
        return "with a log-prob that is not finite"
    if completion.ended not in get_args(Ending):
        return f"whose `ended` is {completion.ended!r}; it is one of {', '.join(get_args(Ending))}"
    return None


def _outline(group: object) -> tuple[int, int] | None:
    return (group.prompt.id, len(group.firsts())) if isinstance(group, Group) else None


class InProcessEngine(EngineBase):
    """Samples with the policy's module in this process, at most `sampling.rows_at_once` rows at a time: others
    wait until enough rows are free.

    sampling    the settings of a training rollout
    tokenizer   for texts and stop strings; without one every text is ""
    eos_ids     token ids that end a completion; `sampling.eos_ids` are added
    seed        the run's seed
    limits      for benchmarks: the length at which each completion ends by "length", if nothing ends it sooner; it
                cannot be more than `sampling.max_new_tokens`

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
        self._model: CausalModel | None = None
        self._version = 0
        self._tables: dict[tuple[str, ...], StopTable] = {}
        self._stop_table(sampling)

    def follow(self, weights: Weights) -> None:
        """Sample from these weights from now on: the module is shared, nothing is copied.

        Raises ConfigError: the weights are not in this process.
        """
        model = weights.local()
        if model is None:
            raise ConfigError(
                "the engine samples in this process and the weights are elsewhere: set another engine.kind"
            )
        self._model, self._version = model, weights.version

    def close(self) -> None:
        """Let go of the model."""
        self._model = None

    def generate(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling | None = None,
        on_group: OnGroup | None = None,
        first_samples: Sequence[int] | None = None,
    ) -> list[Group]:
        """Return one group per prompt, in the prompts' order, without scores.

        Raises DataError: a prompt without tokens, or too long for the model together with `max_new_tokens`.
        Raises ModelError: the model's logits are not finite.
        """
        sampling = sampling or self.sampling
        if self._model is None:
            raise RuntimeError("generate() before follow(): the engine has no weights yet")
        check_lengths(prompts, sampling, self._model)
        firsts = count_samples(prompts, sampling.group_size) if first_samples is None else first_samples
        groups: dict[int, Group] = {}
        model, version, size = self._model, self._version, sampling.group_size
        if not prompts:
            return []

        def finish(index: int, ended: Sequence[EndedRows]) -> None:
            prompt = prompts[index]
            groups[index] = Group(prompt, self._completions(prompt, ended, firsts[index], version), draw=draw)
            if on_group is not None:
                on_group(index, groups[index])

        most = torch.tensor([sampling.of(prompt).max_new_tokens for prompt in prompts]).repeat_interleave(size)
        prompt_ids = torch.tensor([prompt.id for prompt in prompts]).repeat_interleave(size)
        sample_index = (torch.tensor(firsts)[:, None] + torch.arange(size)).flatten()
        if self._limits is not None:
            wanted = torch.tensor(list(map(self._limits, prompt_ids.tolist(), sample_index.tolist())))
            most = torch.minimum(most, wanted).clamp(min=1)
        table = self._stop_table(sampling)
        request = DecodeRequest(
            [torch.tensor(prompt.ids) for prompt in prompts],
            row_keys(self._seed, draw, prompt_ids, sample_index).view(-1, size),
            most.view(-1, size),
            sampling.max_new_tokens,
            self._eos_ids + sampling.eos_ids,
            sampler_of(sampling),
            StopSearch(table, [prompt.ids for prompt in prompts for _ in range(size)]) if table else None,
            sampling.rows_at_once(module_device(model.module).type),
        )
        model.token_loop(bool(sampling.truncation))(request, finish)
        return [groups[index] for index in range(len(prompts))]

    def _completions(
        self, prompt: Prompt, ended: Sequence[EndedRows], first: int, version: int
    ) -> tuple[Completion, ...]:
        text = (lambda ids: "") if self._tokenizer is None else Detokenizer(self._tokenizer).after(prompt.ids)
        return tuple(
            Completion(
                row.ids,
                # The token that ended it by EOS is not text, be it special or not.
                row.text if row.text is not None else text(row.ids[:-1] if row.ended == "eos" else row.ids),
                row.logprobs,
                row.ended,
                first + index,
                version,
                kept_sizes=row.kept_sizes,
                kept_ids=row.kept_ids,
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


@torch.no_grad()
def check_token_ids(key: str, ids: Sequence[int], model: CausalModel) -> None:
    """Raises ConfigError where the setting `key` has an id that the model has no logit for: it can never be sampled."""
    if not ids:
        return
    one = torch.ones(1, dtype=torch.int64, device=module_device(model.module))
    size = model.logits(model.completion_hidden([one - 1], one - 1, one[None] - 1, one)).shape[-1]
    if outside := [number for number in ids if not 0 <= number < size]:
        raise ConfigError(f"{key}: {outside[0]} is not a token of the model, whose ids are 0 to {size - 1}")


def check_lengths(prompts: Sequence[Prompt], sampling: Sampling, model: CausalModel) -> None:
    """Raises DataError: a prompt without tokens, or too long for the model together with `max_new_tokens`."""
    longest = model.longest_row
    for prompt in prompts:
        length, most = len(prompt.ids), sampling.of(prompt).max_new_tokens
        if not length:
            raise DataError(
                f"prompt {prompt.id} ({prompt.text[:40]!r}) has no tokens; a completion needs at least one to follow: "
                "begin the prompt with the BOS token, or leave the row out"
            )
        if longest is not None and length + most > longest:
            left = longest - length
            fix = f"set rollout.max_new_tokens to {left} or less, or shorten the prompt" if left > 0 else "shorten it"
            raise DataError(
                f"prompt {prompt.id} ({prompt.text[:40]!r}) has {length} tokens; with rollout.max_new_tokens = "
                f"{most} that makes {length + most}, and the model takes "
                f"rows of at most {longest}: {fix}"
            )
