"""The project's words: names, comments and pages have the papers' and PyTorch's words, and none of the earlier ones."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from oncurve.cli import app

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".toml", ".yaml", ".md", ".j2", ".css"}
FILES = sorted(
    [
        *(
            path
            for path in (ROOT / "src").rglob("*")
            if path.suffix in SUFFIXES and "models/tiny" not in path.as_posix()
        ),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "scripts").glob("*.py"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
    ]
)
WORDS = {
    r"(?<!model )(?<!rewards[./])judg(e|es|ed|ing|ement|ements|ment|ments)": "verifier, score, evaluate or label",
    r"roll outs?": "continuation in labelling; else rollout",
    r"mend(s|ed|ing)?": "fix or suggestion",
    r"anew": "again",
    r"beside": "next to, with, or in addition to",
    r"(?<!lag )(?<!lags )behind": "after",
    r"graded(?! on a curve)": "scored, or relative to its group",
    r"(no|some|any|every)body|anyone|someone|everyone": "a noun: code is not a person",
    r"(?<!boy )who|whom": "a noun: code is not a person",
    r"besides": "also, else, or in addition to",
    r"(by|in|at) whose hands?|for people|what there is to (say|do)": "a noun: code is not a person",
    r"the first so many": "the first ones, with their number",
    r"with (the|its) numbers in(?! )": "with its numbers filled in",
    r"tenants?": "owner",
    r"seats?|seated": "insert, or slot",
    r"(live|dead) (rows?|groups?)": "rows with or without gradient; constant groups",
    r"still without advantage": "zero_gradient_at_zero_advantage",
    r"holds the policy back|pulls nowhere": "KL regularization; no effect on-policy",
    r"kl rewards": "add_kl_to_rewards",
    r"least valid": "min_valid_completions",
    r"mixup(?! alpha)": "mixup_alpha",
    r"streams?": "token statistics, per-token tensors, or PromptSource: a stream is CUDA's, or an output's",
}
"""A pattern over lower-case words that single spaces separate, and what is written instead."""

STREAMS = {
    "src/oncurve/base/output.py",
    "src/oncurve/models/decode/cuda_graphs.py",
    "src/oncurve/rewards/judge/model_judge.py",
    "src/oncurve/base/web.py",
}
"""The files in which a stream is CUDA's, an output's, a key of OpenAI's requests, or a method of httpx2."""
NAMES = {
    r"\b_put_together\b": "_build_run",
    r"\bvalues_beyond\b": "bootstrap_values",
    r"\b(_?lay_out|_laid\w*|laid_out)\b": "_layout, _as_streams or another plain name",
    r"\bclass _?(Graded|Behind|Sequence|Outer|Given|Facts|Sources|Asked|Part|Grid|Look|Packs)\b": "what the class is",
    r"^\W*The section \[": "what the section is for",
}
"""The same for lines as they stand."""
PAGE_NAMES = {r"[Ss]ee `\w+\.\w+": "a sentence, or a link"}
"""The same for the lines of pages."""


def plain(line: str) -> str:
    """A line in lower case, in which words of identifiers are words of the line: `JudgedBy`, `lay_out`, `roll-out`."""
    return re.sub(r"[_\-\s]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line)).lower()


def found(text: str, words: dict[str, str] = WORDS, names: dict[str, str] = NAMES) -> Iterator[str]:
    """What stands in the text and should not: line, replacement, and the line itself."""
    whole = [(re.compile(rf"(?<![a-z])({pattern})(?![a-z])"), instead) for pattern, instead in words.items()]
    for number, line in enumerate(text.splitlines(), 1):
        words_of_line = plain(line)
        hits = [instead for pattern, instead in whole if pattern.search(words_of_line)]
        hits += [instead for pattern, instead in names.items() if re.search(pattern, line)]
        yield from (f"line {number}: write {instead}: {line.strip()}" for instead in hits)


def helps(command: Any, path: str = "oncurve") -> Iterator[tuple[str, str]]:
    """Every command's path with its `--help`."""
    context = typer.Context(command, info_name=path)
    yield path, command.get_help(context)
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


def in_file(path: Path) -> Iterator[str]:
    """What stands in a file and should not, with the file's name."""
    where = path.relative_to(ROOT).as_posix()
    words = {pattern: instead for pattern, instead in WORDS.items() if "stream" not in pattern or where not in STREAMS}
    names = NAMES | (PAGE_NAMES if path.suffix == ".md" else {})
    yield from (f"{where}, {line}" for line in found(path.read_text(encoding="utf-8"), words, names))


def test_files_have_none_of_the_earlier_words() -> None:
    assert [line for path in FILES for line in in_file(path)] == []


def test_help_texts_have_none_of_the_earlier_words() -> None:
    pages = helps(typer.main.get_command(app))
    assert [f"{path} --help, {line}" for path, text in pages for line in found(text)] == []


def test_an_earlier_word_is_found_in_names_and_in_prose() -> None:
    lines = (
        "class JudgedBy:",
        "the judge's word",
        "def _lay_out():",
        "its roll-outs",
        "somebody who reads",
        "Live rows",
        "an equation with the numbers in.",
        "what it reads besides: values",
    )
    assert all(list(found(line)) for line in lines)
    assert not list(found("whose whole body recommends: graded on a curve; the engine's weights lag behind; _layout()"))
