"""The values of a shell script's words, as far as they can be known without executing anything.

What is not known (a command's output, a variable that is set nowhere) becomes a mark in the text, `UNKNOWN`, with its
reason; it does no harm where it is not needed. Known without executing: `date +FORMAT`, `pwd`, `basename`, `dirname`,
`echo`, and whether Python could import a module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from oncurve.base.errors import ConfigError
from oncurve.compat.shell.arithmetic import calculated
from oncurve.compat.shell.outputs import changed, output_of
from oncurve.compat.shell.tokens import Document, Piece, RawWord, document_parts, parts_of

UNKNOWN = re.compile("\ue000([0-9]+)\ue001")
"""The mark of what is not known, with the number of its reason."""

LONGEST = 30_000
"""Characters of a value, and items of an array: longer ones are made by a script that grows them on purpose."""

WORK = 5_000_000
"""Characters that are expanded in all before a script is refused."""

_PARAMETER = re.compile(
    r"(?P<length>#?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?"
    r"(?P<op>:?[-=?+]|##?|%%?|//?|,,?|\^\^?|:)?(?P<argument>.*)",
    re.DOTALL,
)
_CHANGES = ("?", "!", "$", "-", "RANDOM", "SECONDS", "LINENO", "PPID", "EPOCHSECONDS")
_SETS = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Word:
    """A word of a call. `why` says what is not known of it; its text then has that as it is written."""

    text: str
    line: int
    why: str = ""

    @property
    def place(self) -> str:
        """Where it stands: an argument of the script stands on no line of it."""
        return f"line {self.line}" if self.line else "the script's arguments"

    def known(self) -> str:
        """The text. Raises ConfigError: it depends on something that is not known."""
        if self.why:
            raise ConfigError(f"{self.place}: {self.text}: {self.why}")
        return self.text


class Item(NamedTuple):
    """A text, with marks where it is not known, and its line; 0 is that of the word it comes into."""

    text: str
    line: int


class Reason(NamedTuple):
    """Why a value is not known, on which line, and how it is written. `unset`: the shell has an empty text there."""

    why: str
    line: int
    written: str
    unset: bool


Value = str | tuple[Item, ...]
"""What a variable holds: a text, or the items of an array."""


@dataclass
class Values:
    """The variables of a script as it is read, over those of the environment; `arguments` is its `$@`."""

    script: str
    environment: Mapping[str, str]
    arguments: tuple[Item, ...] = ()
    variables: dict[str, Value | None] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    work: int = 0

    def spend(self, amount: int) -> None:
        """Count the work. Raises ConfigError: a script that needs this much is no launcher of a training run."""
        self.work += amount
        if self.work > WORK:
            raise ConfigError("the script is too long to be followed; give the words of its call themselves")

    def unknown(self, why: str, line: int, written: str, unset: bool = False) -> str:
        """The mark of a value that is not known."""
        self.reasons.append(Reason(why, line, written, unset))
        return f"\ue000{len(self.reasons) - 1}\ue001"

    def word(self, item: Item) -> Word:
        """An item as the caller gets it."""
        found = UNKNOWN.search(item.text)
        if found is None:
            return Word(item.text, item.line)
        reason = self.reasons[int(found[1])]
        before = f"line {reason.line}: " if reason.line not in (0, item.line) else ""
        text = UNKNOWN.sub(lambda mark: self.reasons[int(mark[1])].written, item.text)
        return Word(text, item.line, before + reason.why)

    def in_test(self, text: str) -> str:
        """A text with variables that are set nowhere as empty, which they are in a test."""
        return UNKNOWN.sub(lambda mark: "" if self.reasons[int(mark[1])].unset else mark[0], text)

    def fields(self, word: RawWord) -> list[Item]:
        """The words that a word becomes: unquoted values are split at blanks, `"${X[@]}"` is one word an item."""
        done, text, its_line, there = list[Item](), "", 0, False
        for number, part in enumerate(word.parts):
            if part.kind == "text":
                text, there = text + self.at_home(part, number), there or part.quoted
                continue
            values = self.part(part, word.line)
            if part.quoted and (part.text == "*" or part.text.endswith("[*]")):
                values = [Item(" ".join(each.text for each in values), 0)]
            if part.quoted and not values:
                there = False  # "${empty[@]}" is no word, and "" is one
            pieces = [Item(piece, line) for value, line in values for piece in self.pieces(value, part)]
            for index, (piece, line) in enumerate(pieces):
                if index and (text or there):
                    done.append(Item(text, its_line or word.line))
                if index:
                    text, its_line, there = "", 0, part.quoted
                text, its_line = text + piece, its_line or line
            if len(done) > LONGEST or len(text) > LONGEST:
                raise ConfigError(f"line {word.line}: its words are longer than {LONGEST:,}; give them themselves")
        return [*done, Item(text, its_line or word.line)] if text or there else done

    def pieces(self, text: str, part: Piece) -> list[str]:
        """A value, split at blanks if it is unquoted; an empty piece at an end is where a word ends."""
        self.spend(1 + len(text))
        if part.quoted or UNKNOWN.search(text):
            return [text]
        if text and "IFS" in self.variables:
            return [self.unknown("IFS is set, by which it is split; put it in quotes", 0, part.written)]
        return re.split(r"[ \t\n]+", text)

    def at_home(self, part: Piece, number: int) -> str:
        """The text of a part, with `~/` at the start of a word as the home folder."""
        if number or part.quoted or not (part.text == "~" or part.text.startswith("~/")):
            return part.text
        return self.environment.get("HOME", "~") + part.text[1:]

    def text(self, word: RawWord, after: int = 0) -> str:
        """The value of a word in an assignment, without its first `after` letters, where nothing is split."""
        found, first = self.joined(word.parts, word.line)[after:], word.parts[0]
        if first.kind == "text" and not first.quoted and first.text[after : after + 2] == "~/":
            return self.environment.get("HOME", "~") + found[1:]
        return found

    def joined(self, parts: Sequence[Piece], line: int) -> str:
        """The parts as one text. Raises ConfigError: it is too long."""
        found = ""
        for part in parts:
            value = " ".join(each.text for each in self.part(part, line))
            found += value
            self.spend(1 + len(value))
            if len(found) > LONGEST:
                raise ConfigError(f"line {line}: a value is longer than {LONGEST:,} characters; write a shorter one")
        return found

    def document(self, document: Document) -> str:
        """The text of a here-document."""
        return self.joined(document_parts(document), document.line)

    def part(self, part: Piece, line: int) -> Sequence[Item]:
        """The values of a part: one, but for an array."""
        if part.kind == "text":
            return [Item(part.text, 0)]
        self.spend(len(part.text))
        if part.kind == "arithmetic":
            return [Item(self.arithmetic(part.text, line), 0)]
        if part.kind == "parameter":
            return self.parameter(part, line)
        known = output_of(part.text, lambda word: self.text(word))
        if known is not None and UNKNOWN.search(known) is None:
            return [Item(known, 0)]
        why = "the output of a command is not known, because nothing is executed; write the value in its place"
        return [Item(self.unknown(why, line, part.written), 0)]

    def parameter(self, part: Piece, line: int) -> Sequence[Item]:
        """The values of `${inside}`."""
        found = _PARAMETER.fullmatch(part.text)
        if found is None or (found["op"] is None and found["argument"]) or part.text.startswith("!"):
            return [Item(self.unread(part, line), 0)]
        name, index, op = found["name"], found["index"], found["op"]
        value = str(len(self.arguments)) if name == "#" else self.variable(name, index, line)
        if isinstance(value, tuple) and (name == "#" or found["length"]) and self.marked(value):
            return [Item(self.unread(part, line), 0)]
        if name == "#" and self.marked(self.arguments):
            return [Item(self.unread(part, line), 0)]
        if found["length"]:
            if isinstance(value, str) and UNKNOWN.search(value):
                return [Item(value, 0)]
            return [Item(str(len(value or ())), 0)]
        if op is None:
            return self.set_value(value, name, part, line)
        return self.operated(value, name, op, found["argument"], part, line)

    def unread(self, part: Piece, line: int) -> str:
        """The mark of an expansion that is not covered."""
        return self.unknown("such an expansion is not read; write the value in its place", line, part.written)

    @staticmethod
    def marked(items: Sequence[Item]) -> bool:
        """Whether something of an array is not known."""
        return any(UNKNOWN.search(each.text) for each in items)

    def operated(
        self, value: Value | None, name: str, op: str, argument: str, part: Piece, line: int
    ) -> Sequence[Item]:
        """The value of `${name` followed by an operator."""
        missing = value is None or (op[0] == ":" and len(op) > 1 and value in ("", ()))
        missing = missing or (value == () and op in ("-", "+", "?"))
        if op in ("?", ":?"):
            return self.set_value(None if missing else value, name, part, line)
        if op in ("+", ":+") and missing:
            return []
        if op in ("-", ":-", "=", ":=") and not missing:
            return self.set_value(value, name, part, line)
        if argument in ('"${' + name + '[@]}"', "${" + name + "[@]}") and isinstance(value, tuple):
            return value  # ${X[@]+"${X[@]}"}
        text = self.joined(parts_of(argument, part.quoted), line)
        if op in ("+", ":+", "-", ":-", "=", ":="):
            if op in ("=", ":="):
                self.variables[name] = text
            return [Item(text, 0)]
        if isinstance(value, tuple) or value is None:
            return self.set_value(None, name, part, line) if value is None else [Item(self.unread(part, line), 0)]
        if UNKNOWN.search(value):
            return [Item(value, 0)]
        cut = None if UNKNOWN.search(text) else changed(value, op, text)
        return [Item(self.unread(part, line) if cut is None else cut, 0)]

    def set_value(self, value: Value | None, name: str, part: Piece, line: int) -> Sequence[Item]:
        """A variable's values; the mark of one that is set nowhere."""
        if value is not None:
            return value if isinstance(value, tuple) else [Item(value, 0)]
        if name.isdigit():
            why = f"${name}, the script's own argument, is not given; write it into the script"
        else:
            why = f"{name} is set nowhere, neither in the script nor in the environment; export it first"
        return [Item(self.unknown(why, line, part.written, unset=True), 0)]

    def variable(self, name: str, index: str | None = None, line: int = 0) -> Value | None:
        """A variable of the script, else of the environment; None: it is set nowhere."""
        if name in ("@", "*"):
            return self.arguments
        if name in _CHANGES:
            return self.unknown(f"${name} is another one in every run; write a value", line, f"${name}")
        if name in ("0", "BASH_SOURCE"):
            return self.script
        if name.isdigit():
            at = int(name) - 1 if len(name) < 6 else LONGEST
            if self.marked(self.arguments[:at]):
                return self.unknown(f"${name} depends on a word that is not known", line, f"${name}")
            return self.arguments[at].text if at < len(self.arguments) else None
        value = self.variables[name] if name in self.variables else self.environment.get(name)
        if isinstance(value, str) and "\ue000" in UNKNOWN.sub("", value):
            return self.unknown(f"{name} has a character that no value has", line, f"${name}")
        if index in ("@", "*"):
            return value if isinstance(value, tuple) else () if value is None else (Item(value, 0),)
        if index is None or index == "0":
            return (value[0].text if value else None) if isinstance(value, tuple) else value
        if index.isdigit() and len(index) < 6 and not (isinstance(value, tuple) and self.marked(value[: int(index)])):
            return value[int(index)].text if isinstance(value, tuple) and int(index) < len(value) else None
        return self.unknown("which item of an array is not known; write its value", line, f"${{{name}[{index}]}}")

    def arithmetic(self, text: str, line: int) -> str:
        """The value of `$((text))`; variables that it sets are not known afterwards."""
        written, why = f"$(({text}))", "this sum is not known; write the number in its place"
        for found in _SETS.finditer(text):
            name = found[1] or found[2]
            self.variables[name] = self.unknown(f"{name} is set in (( )), which is not followed", line, f"${name}")
        if _SETS.search(text):
            return self.unknown(why, line, written)
        filled = self.joined(parts_of(text), line)
        for _ in range(10):
            filled = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda name: self.operand(name[0], line), filled[:LONGEST])
            self.spend(len(filled))
        mark = UNKNOWN.search(filled)
        if mark is not None:
            return mark[0]
        try:
            return str(calculated(filled))
        except ValueError:
            return self.unknown(why, line, written)

    def operand(self, name: str, line: int) -> str:
        """A variable in an expression; an empty one is 0."""
        value = self.set_value(self.variable(name, line=line), name, Piece("parameter", name, True, name), line)
        return value[0].text or "0" if value else "0"
