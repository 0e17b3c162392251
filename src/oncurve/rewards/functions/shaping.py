"""Rewards that shape others by form, length or repetitions of a completion, and are never the verifier."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from oncurve.base.errors import ConfigError
from oncurve.rewards.functions.answers import boxed
from oncurve.rewards.functions.callables import MATCHER
from oncurve.rewards.functions.verify import Pattern
from oncurve.rewards.settings import Local, Runner, WorkerSettings


class Shaping(Local):
    """A reward that only shapes others, by the form or the length of a completion."""

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False
    shapes: ClassVar[bool] = True


class Overlong(Shaping):
    """0 up to `max_length - buffer` tokens, then falling in a straight line to -1 at `max_length`, and -1 beyond.

        (max_length - buffer - |o|) / buffer    within the buffer

    |o| counts all tokens of a completion, its ending token included. It says nothing about what is right, so it is
    never the verifier. Source: DAPO, arXiv:2503.14476, eq. 13. Example: of at most 100 tokens with a buffer of 20, one
    of 80 has 0, of 85 -0.25, of 90 -0.5, of 100 -1.
    """

    buffer: int = Field(gt=0)
    """The number of tokens before `max_length` within which the punishment grows."""

    max_length: int | None = Field(default=None, gt=0, le=10**7)
    """The length in tokens from which on it is -1; none: `rollout.max_new_tokens`."""

    def for_lengths(self, longest: int) -> Overlong:
        """Return this reward, with `longest` in the place of a `max_length` that was left out.

        Raises ConfigError: the buffer is longer than `max_length`, or no completion can reach the punishment.
        """
        most = self.max_length or longest
        if self.buffer > most:
            raise ConfigError(f"buffer: {self.buffer} tokens are more than the {most} of max_length; lower it")
        if most - self.buffer >= longest:
            raise ConfigError(
                f"max_length: nothing is punished: completions have at most {longest} tokens (rollout.max_new_tokens), "
                f"and it begins above {most - self.buffer}; lower max_length, or raise buffer"
            )
        return self.model_copy(update={"max_length": most})

    def start(self, base: Path | None) -> Runner:
        """Run in this process. Raises ConfigError without a `max_length`."""
        if self.max_length is None:
            raise ConfigError("max_length is missing, the length in tokens from which on a completion has -1")
        return super().start(base)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tokens."""
        return ("completion_ids",)

    def value(self, item: Mapping[str, Any]) -> float:
        """Return the value of an item's tokens."""
        return self(len(item["completion_ids"]))

    def __call__(self, length: int) -> float:
        """Return the punishment of a completion of `length` tokens, in -1..0."""
        assert self.max_length is not None
        return max(-1.0, min(0.0, (self.max_length - self.buffer - length) / self.buffer))


class Repetition(Shaping):
    """0 where no n-gram of a completion's tokens occurs twice, falling to `max_penalty` where all are the same.

        max_penalty · (1 - number of different n-grams / number of n-grams)

    n-grams are runs of `ngram_size` token ids, its ending token included; a completion with fewer tokens has 0. It says
    nothing about what is right, so it is never the verifier. Source: Yeo et al., arXiv:2502.03373, appendix C.2, as
    TRL's `get_repetition_penalty_reward`. Example: of five equal tokens all four 2-grams are one, -(1 - 1/4) = -0.75.
    """

    ngram_size: int = Field(default=3, ge=1, le=10_000)
    """The number of tokens n of an n-gram."""

    max_penalty: float = Field(default=-1.0, lt=0)
    """The value that a completion of nothing but one repeated n-gram approaches."""

    def __call__(self, completion_ids: Sequence[int]) -> float:
        """Return the punishment of a completion of these tokens, in `max_penalty`..0."""
        total = len(completion_ids) - self.ngram_size + 1
        if total < 1:
            return 0.0
        different = len(set(zip(*(completion_ids[start:] for start in range(self.ngram_size)), strict=False)))
        return self.max_penalty * (1 - different / total) if different < total else 0.0


Preset = Literal["think", "think_answer", "answer", "boxed", "hashes"]
_TAG = re.compile(r"</?(?:think|answer)>")


def think(text: str) -> bool:
    """Return whether the text begins with `<think>`, which is closed and not opened again. The text after it is free.

    The pattern of TRL's `think_format_reward`: `(?s)^<think>(?!.*<think>)(.*?)</think>.*$`.
    """
    _, opened, rest = text.partition("<think>") if text.startswith("<think>") else ("", "", "")
    return bool(opened) and "<think>" not in rest and "</think>" in rest


def think_answer(text: str) -> bool:
    """Return whether the text is `<think>...</think> <answer>...</answer>`, each tag once, and white space around the
    two.

    The form that DeepSeek-R1 was trained with (arXiv:2501.12948, table 1).
    """
    found = [match[0] for match in _TAG.finditer(text)]
    return found == ["<think>", "</think>", "<answer>", "</answer>"] and not "".join(_TAG.split(text)[::2]).strip()


def answer(text: str) -> bool:
    """Return whether the text has one `<answer>...</answer>`, with something in it. The text around it is free."""
    _, opened, rest = text.partition("<answer>")
    inner, closed, after = rest.partition("</answer>")
    return bool(opened and closed and inner.strip()) and not any(
        tag in part for part in (inner, after) for tag in ("<answer>", "</answer>")
    )


def boxed_answer(text: str) -> bool:
    r"""Return whether the text has a `\boxed{...}` that is closed, with something in it."""
    return bool((boxed(text) or "").strip())


def hashes(text: str) -> bool:
    """Return whether the last line that is not empty is `#### ...`, as in GSM8K, and no other line begins so."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    marked = [line for line in lines if line.startswith("####")]
    return bool(marked) and marked == lines[-1:] and bool(marked[0].strip("# "))


PRESETS: dict[str, Callable[[str], bool]] = {
    "think": think,
    "think_answer": think_answer,
    "answer": answer,
    "boxed": boxed_answer,
    "hashes": hashes,
}


class Format(Shaping, WorkerSettings):
    """1 if the completion has the form of `preset`, or if `pattern` is found in it; else 0.

    A form says nothing about what is right, so it is never the verifier. It is learned soon; then all completions of a
    group have it, and it no longer changes an advantage. A small weight keeps it from being worth more than an answer.
    A preset runs in this process, in time linear in the text; a pattern of yours in a worker, under its deadline.
    """

    preset: Preset = "think"
    """"think": begins with `<think>`, closed once (TRL's `think_format_reward`). "think_answer":
    `<think>...</think><answer>...</answer>` and nothing else. "answer": one `<answer>...</answer>`. "boxed": a closed
    `\\boxed{...}`. "hashes": ends in a line `#### ...`."""

    pattern: Pattern | None = None
    """A pattern of Python's `re` in place of a preset, found somewhere in the completion; flags inside it, such as
    `(?s)`."""

    prompt_opens: bool = False
    """Whether the prompt ends with `<think>`, as some chat templates have it: the completion need not open it."""

    @model_validator(mode="after")
    def _one_form(self) -> Format:
        if self.pattern is not None and self.preset != "think":
            raise ValueError(f'preset = "{self.preset}" and a pattern are two forms; give one of them')
        if self.prompt_opens and (self.pattern is not None or not self.preset.startswith("think")):
            form = "a pattern" if self.pattern is not None else f'preset = "{self.preset}"'
            raise ValueError(f"prompt_opens: {form} opens no <think>; leave it out")
        return self

    @property
    def below_zero(self) -> bool:
        """No: the values are 0 and 1."""
        return False

    def start(self, base: Path | None) -> Runner:
        """Run in this process; a pattern in workers."""
        if self.pattern is not None:
            return self.workers(MATCHER, {"pattern": self.pattern, "mode": "search"})
        return super().start(base)

    def __call__(self, completion: str) -> float:
        """Return 1.0 or 0.0."""
        return float(PRESETS[self.preset]("<think>" + completion if self.prompt_opens else completion))
