"""The call of verl in a shell script: its arguments, with the script's variables filled in. Nothing is executed.

The script is followed as bash would: assignments, arrays, conditions, `case`, functions. Commands are taken to succeed.
A condition that cannot be known makes the variables unknown that are set under it; a loop does the same. An unknown
value is an error only where a setting needs it, with the line and the variable.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oncurve.compat.verl.shell_commands import Block, Case, Chain, Command, If, Simple, commands_of
from oncurve.compat.verl.shell_tests import truth_of
from oncurve.compat.verl.shell_values import UNKNOWN as UNKNOWN, Values
from oncurve.compat.verl.shell_words import Piece, Word, tokens_of
from oncurve.compat.verl.yaml_file import content
from oncurve.errors import ConfigError

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.DOTALL)
_PROGRAM = re.compile(r"(.*[./])?main_\w+(\.py)?")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_TESTS = ("[", "[[", "test")
DEEPEST = 50


@dataclass(frozen=True)
class Argument:
    """An argument of the call: its text, with marks where it is not known, then for what `reason`; and its place."""

    text: str
    place: str
    reason: str = ""


def call_in(path: Path) -> list[Argument]:
    """The arguments of the one call of verl's trainer in a script.

    Raises ConfigError: the script cannot be read, has no such call or several, or whether it is made is not known.
    """
    text = content(path)
    if UNKNOWN.search(text) or "\ue000" in text or "\x00" in text:
        raise ConfigError(f"{path}: holds characters that no script has")
    script = _Script(str(path), Values(str(path)))
    try:
        script.run(commands_of(tokens_of(text)))
    except ConfigError as error:
        raise ConfigError(f"{path} {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    if not script.calls:
        raise ConfigError(f"{path}: calls no trainer of verl, like: python3 -m verl.trainer.main_ppo key=value ...")
    if len(script.calls) > 1:
        lines = ", ".join(str(line) for line, _ in script.calls)
        raise ConfigError(f"{path}: calls verl several times, on lines {lines}; leave one of the calls in it")
    return script.calls[0][1]


@dataclass
class _Script:
    path: str
    values: Values
    calls: list[tuple[int, list[Argument]]] = field(default_factory=list)
    functions: dict[str, Block] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    depth: int = 0

    def run(self, commands: Sequence[Command], unless: str = "") -> bool | None:
        """Follow commands; the truth of the last one, None where it is not known.

        `unless`: why it is not known whether they are executed; what they set is then unknown.
        """
        truth: bool | None = True
        self.depth += 1
        if self.depth > DEEPEST:
            raise ConfigError("line 1: calls functions that call each other")
        for command in commands:
            truth = self.one(command, unless)
        self.depth -= 1
        return truth

    def one(self, command: Command, unless: str) -> bool | None:
        if isinstance(command, Simple):
            return self.simple(command, unless)
        if isinstance(command, Chain):
            return self.chain(command, unless)
        if isinstance(command, If):
            return self.condition(command, unless)
        if isinstance(command, Case):
            return self.case(command, unless)
        if command.kind == "function":
            self.functions[command.name] = command
            return True
        if command.kind == "loop":
            return self.run(command.body, unless or f"line {command.line}: it stands in a loop, which is not followed")
        return self.run(command.body, unless)

    def chain(self, chain: Chain, unless: str) -> bool | None:
        truth = self.one(chain.commands[0], unless)
        truth = (None if truth is None else not truth) if chain.negated else truth
        for link, command in zip(chain.links, chain.commands[1:], strict=True):
            if truth is None:
                self.one(command, unless or _undecided(chain.line))
            elif truth == (link == "&&"):
                truth = self.one(command, unless)
        return truth

    def condition(self, condition: If, unless: str) -> bool | None:
        for tested, body in condition.branches:
            truth = self.run(tested, unless)
            if truth:
                return self.run(body, unless)
            if truth is None:
                unless = unless or _undecided(condition.line)
                self.run(body, unless)
        return self.run(condition.otherwise, unless)

    def case(self, case: Case, unless: str) -> bool | None:
        subject = self.values.in_test(self.values.text(case.subject))
        if UNKNOWN.search(subject):
            unless = unless or f"line {case.line}: its case is not known, because {self.values.reason(subject)}"
            for _, body in case.arms:
                self.run(body, unless)
            return True
        for patterns, body in case.arms:
            texts = [self.values.in_test(self.values.text(pattern)) for pattern in patterns]
            if any(fnmatch.fnmatchcase(subject, text) for text in texts):
                return self.run(body, unless)
        return True

    def simple(self, command: Simple, unless: str) -> bool | None:
        words = list(command.words)
        if words and words[0].parts[:1] == (Piece("text", "(("),):
            return None
        if words and words[0].plain in _TESTS:
            return truth_of(words, self.values)
        if words and words[0].plain in _DECLARES:
            for word in words[1:]:
                if _assigned(word) is not None:
                    self.assign(word, unless)
            return True
        while words and _assigned(words[0]) is not None:
            self.assign(words.pop(0), unless)
        name = words[0].plain if words else None
        if name == "unset":
            for word in words[1:]:
                self.values.variables.pop(self.values.text(word), None)
        elif name in self.functions:
            return self.run(self.functions[name].body, unless)
        elif words:
            self.called(words, command.line, unless)
        return name != "false"

    def assign(self, word: Word, unless: str) -> None:
        """Set a variable, or a part of one: `NAME=value`, `NAME+=value`, `NAME=(a b)`."""
        found = _assigned(word)
        assert found is not None
        name, adds = found[1], bool(found[2])
        before = self.values.variables.get(name, [] if word.array is not None else "")
        if unless:
            mark = self.values.unknown(unless)
            self.values.variables[name] = [mark] if word.array is not None else mark
        elif word.array is not None:
            items = list[str]()
            for inner in word.array:
                items += self.values.fields(inner)
                self.lines |= dict.fromkeys(items, inner.line) | self.lines
            listed = before if isinstance(before, list) else [before]
            self.values.variables[name] = [*listed, *items] if adds else items
        else:
            value = self.values.text(word)[len(found[0]) :]
            self.values.variables[name] = f"{before}{value}" if adds and isinstance(before, str) else value

    def called(self, words: Sequence[Word], line: int, unless: str) -> None:
        """Note the arguments of a command that is verl's trainer."""
        found = list(self.arguments(words))
        texts = [each.text for each in found]
        starts = [
            place + 1
            for place, text in enumerate(texts)
            if _PROGRAM.fullmatch(text) and place and (texts[place - 1] == "-m" or text.endswith(".py"))
        ]
        if not starts:
            return
        if unless:
            raise ConfigError(f"line {line}: whether verl is called here is not known: {unless}")
        self.calls.append((line, found[starts[0] :]))

    def arguments(self, words: Sequence[Word]) -> Iterator[Argument]:
        for word in words:
            for text in self.values.fields(word):
                yield Argument(text, f"{self.path} line {self.lines.get(text, word.line)}", self.values.reason(text))


def _assigned(word: Word) -> re.Match[str] | None:
    """The name of a word that is an assignment; None: it is none."""
    unquoted = ""
    for part in word.parts:
        if part.quoted or part.kind != "text":
            break
        unquoted += part.text
    return _ASSIGNED.match(unquoted)


def _undecided(line: int) -> str:
    return f"line {line}: its condition is not known; write the value there, or give the setting after the script"
