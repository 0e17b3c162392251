"""What a user has: a tiny model, a data file, a reward and a recipe in a folder; and the command, in this process."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fakes.architectures import VOCABULARY, architecture
from oncurve import cli
from oncurve.models import save

ROWS = [{"prompt": f"w{index} w{index + 1}", "answer": f"w{index}"} for index in range(3, 9)]
REWARD = """
def length(completion, answer):
    return float(len(completion) % 7)
"""
RECIPES = Path(__file__).parents[1] / "recipes"
RECIPE = (RECIPES / "project.toml").read_text(encoding="utf-8")


def words_tokenizer(size: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """`w3 w4 ...`, a word a token."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{index}": index for index in range(3, size)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def lay_out(folder: Path) -> Path:
    """Model, data, reward and recipe, in `folder`."""
    save(architecture("llama"), words_tokenizer(), folder / "model")
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "reward.py").write_text(REWARD)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@dataclass(frozen=True)
class Said:
    """What a command left: its exit code, and what it printed."""

    code: int
    out: str
    err: str

    def fine(self) -> "Said":
        """This, where the command ended with 0."""
        assert self.code == 0, self
        return self


Command = Callable[..., Said]
"""The command with its words, as the fixture `command` has it."""


def oncurve(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Said:
    """`oncurve ARGUMENTS` in this process: a process of its own would take seconds to start."""
    monkeypatch.setattr(sys, "argv", ["oncurve", *arguments])
    capfd.readouterr()
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return Said(code, *capfd.readouterr())


def refused(said: Said, *words: str) -> None:
    """Asserts one message with these words, exit code 2, no traceback, and neither `out` nor `runs` left behind.

    Before it there may be a line on what the recipe brings.
    """
    assert said.code == 2, said
    first, *rest = said.err.splitlines()
    assert first.startswith("oncurve: ") or (" brings " in first and rest[0].startswith("oncurve: ")), said.err
    assert "Traceback" not in said.err + said.out
    for word in words:
        assert word in said.err, said.err
    assert not Path("out").exists()
    assert not Path("runs").exists()
