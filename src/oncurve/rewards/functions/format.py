"""The `format` reward: whether a completion has the form that was asked for, whatever it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from oncurve.rewards.functions.answers import boxed
from oncurve.rewards.functions.shaping import Shaping
from oncurve.rewards.functions.verify import MATCHER, Pattern
from oncurve.rewards.settings import Runner, WorkerSettings

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
