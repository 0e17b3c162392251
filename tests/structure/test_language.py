"""The project's words: names, comments and pages have the papers' and PyTorch's words, and none of the earlier ones."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fakes.sources import tree_of
from fakes.tables import table
from oncurve import types
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
WORDS = table("language", "words")
"""A pattern over lower-case words that single spaces separate, and what is written instead."""

STREAMS = table("language", "streams")
"""The files in which a stream is CUDA's, an output's, a key of OpenAI's requests, or a method of httpx2."""
NAMES = table("language", "names")
"""The same for lines as they stand."""
PAGE_NAMES = {r"[Ss]ee `\w+\.\w+": "a sentence, or a link"}
"""The same for the lines of pages."""

OPENINGS = re.compile(
    "(?:What|Whether|How|Why|Which|Where|When|Who|The same|Those|These|This|That|It|Its|They|Their|Our|One|None|"
    r"Nothing|No|All|Both|Each|Every|Of|As|At|By|For|From|In|Inside|On|Under|With|Within|Without)\b"
)
"""First words of no docstring: questions, pronouns and prepositions."""
NO_THIRD_PERSON = re.compile(r"[A-Z][a-z]*(?:ss|us|ias)|(?![A-Z][a-z]*s\b).*", re.DOTALL)
"""First words that are no verb of the third person and no plural: `Pass`, `Return`, but not `Returns`."""
MOST_WORDS = 30
GRAMMAR = table("language", "grammar")
"""How many docstrings of the code may have each fault. The numbers only fall, until they are 0."""


def plain(line: str) -> str:
    """A line in lower case, in which words of identifiers are words of the line: `JudgedBy`, `lay_out`, `roll-out`."""
    return re.sub(r"[_\-\s]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line)).lower()


def found(text: str, words: dict[str, str] = WORDS, names: dict[str, str] = NAMES) -> Iterator[str]:
    """What stands in the text and should not: line, replacement, and the line itself."""
    whole = [(re.compile(rf"(?<![a-z])({pattern})(?![a-z])"), instead) for pattern, instead in words.items()]
    at_once = plain(text)  # most texts have none of them, and their lines need no look
    whole = [(pattern, instead) for pattern, instead in whole if pattern.search(at_once)]
    names = {pattern: instead for pattern, instead in names.items() if re.search(pattern, text, re.MULTILINE)}
    for number, line in enumerate(text.splitlines(), 1):
        words_of_line = plain(line) if whole else ""
        hits = [instead for pattern, instead in whole if pattern.search(words_of_line)]
        hits += [instead for pattern, instead in names.items() if re.search(pattern, line)]
        yield from (f"line {number}: write {instead}: {line.strip()}" for instead in hits)


def helps(command: Any, path: str = "oncurve") -> Iterator[tuple[str, str]]:
    """Every command's path with its `--help`."""
    context = typer.Context(command, info_name=path)
    yield path, command.get_help(context)
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


def faults(source: str) -> Iterator[tuple[str, int]]:
    """Yield each fault of `GRAMMAR` that a docstring of a module has, with its line."""
    opens, article, person, relative, long = GRAMMAR
    for node in ast.walk(tree_of(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        said = ast.get_docstring(node) or ""
        first = (said.split() or [""])[0].strip(",.:;")
        noun = not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        noun = noun or any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        sentences = re.split(r"(?<=[.:;])\s+|\n\n", said)
        has = {
            opens: OPENINGS.match(said) is not None,
            article: not noun and first in ("A", "An", "The"),
            person: not noun and not NO_THIRD_PERSON.fullmatch(first) and OPENINGS.match(said) is None,
            relative: re.search(r"\b(of|by)\s+which\b", said) is not None,
            long: any(len(sentence.split()) > MOST_WORDS for sentence in sentences),
        }
        yield from ((fault, getattr(node, "lineno", 1)) for fault, there in has.items() if there)


def in_file(path: Path) -> Iterator[str]:
    """What stands in a file and should not, with the file's name."""
    where = path.relative_to(ROOT).as_posix()
    words = {pattern: instead for pattern, instead in WORDS.items() if "stream" not in pattern or where not in STREAMS}
    names = NAMES | (PAGE_NAMES if path.suffix == ".md" else {})
    yield from (f"{where}, {line}" for line in found(path.read_text(encoding="utf-8"), words, names))


def test_files_have_none_of_the_earlier_words() -> None:
    assert [line for path in FILES for line in in_file(path)] == []


def test_docstrings_keep_to_the_grammar() -> None:
    paths = [path for room in ("src", "scripts", "bench") for path in sorted((ROOT / room).rglob("*.py"))]
    where: dict[str, list[str]] = {fault: [] for fault in GRAMMAR}
    for path in paths:
        for fault, line in faults(path.read_text(encoding="utf-8")):
            where[fault].append(f"{path.relative_to(ROOT)}:{line}")
    over = {fault: found for fault, found in where.items() if len(found) > GRAMMAR[fault]}
    lines = [f"{fault}, {len(found)} times of at most {GRAMMAR[fault]}" for fault, found in over.items()]
    assert not over, "\n".join([*lines, *(place for found in over.values() for place in found)])


def test_help_texts_have_none_of_the_earlier_words() -> None:
    pages = helps(typer.main.get_command(app))
    assert [f"{path} --help, {line}" for path, text in pages for line in found(text)] == []


def test_both_glossaries_say_the_same() -> None:
    _, _, rest = types.__doc__.partition("has the same one):\n\n")
    found: dict[str, str] = {}
    for line in rest.partition("\n\n")[0].splitlines():
        word, _, meaning = line.strip().partition("  ")
        if line.startswith(" " * 8):  # the line before goes on
            last = next(reversed(found))
            found[last] += " " + line.strip()
        else:
            found[word] = meaning.strip()
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Words")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE))
    rows.pop("word")
    assert found == rows
    assert len(found) > 15
