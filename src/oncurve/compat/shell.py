"""The words of one call in a shell script, with their lines: the script is read, and nothing in it is executed.

Covered: assignments, arrays, `export`, here-documents for `read`, `$name`, `${name:-word}` and its relatives, `$@`,
`$((...))` of whole numbers, branches, pipes, a call inside quotes. Not covered: the output of commands, which branch is
taken, loops. A variable that depends on one of these is unknown, and so is each word that holds it; the word says
which variable on which line, so that a word that is given again after the script need not be known.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate

from oncurve.compat.shell_tokens import Piece, Reader, Token, document_parts, parts_of
from oncurve.errors import ConfigError

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=")
DECLARING = ("export", "declare", "local", "readonly", "typeset")
LOOPS = dict.fromkeys(("for", "while", "until", "select"), "done")
OPENING = {"if": "fi", "case": "esac", "{": "}", "function": "}"} | LOOPS
RESERVED = (*OPENING, *OPENING.values(), "then", "do", "else", "elif", "!", "time")
PRINTING = ("echo", "printf", "cat")
QUOTES = -1
"""As the line of a piece of a word: it was in quotes, so that the word is there even if it is empty."""
ARGUMENTS = ("@", "*", "#")
UNREAD = "such an expansion is not read; write the value in its place"
NOWHERE = "is set nowhere; export it first, as the script expects it"


@dataclass(frozen=True)
class Word:
    """A word of a call. `why` says what is not known of it; its text is then as it is written."""

    text: str
    line: int
    why: str = ""

    @property
    def place(self) -> str:
        """Where it stands: an argument of the script stands on no line of it."""
        return f"line {self.line}" if self.line else "the script's arguments"

    def known(self) -> str:
        """The text. Raises ConfigError: it depends on a variable that is not known."""
        if self.why:
            raise ConfigError(f"{self.place}: {self.text}: {self.why}")
        return self.text


def find_call(
    script: str, names: Sequence[str], environment: Mapping[str, str], arguments: Sequence[str] = (), line: int = 1
) -> list[Word]:
    """The words after the one word of `script` that is one of `names`, or a path that ends in one.

    `environment` has the variables that the script does not set, `arguments` is `$@`; `line` is the number of the
    script's first line. Raises ConfigError: no such call, several, or a script that is no shell's.
    """
    calls = list(_Shell(environment, tuple(arguments), names).calls(script, line))
    if len(calls) == 1:
        return calls[0][1:]
    wanted = " or ".join(names)
    if not calls:
        raise ConfigError(f"there is no call of {wanted}; name the script that has it, or give the words themselves")
    lines = ", ".join(str(call[0].line) for call in calls)
    raise ConfigError(f"{wanted} is called on lines {lines}; leave one of the calls in, or give the words themselves")


Value = Word | tuple[Word, ...]
"""What a variable holds: a text, or the elements of an array."""


class _Shell:
    """The variables of a script while it is read from the top."""

    def __init__(self, environment: Mapping[str, str], arguments: tuple[str, ...], names: Sequence[str]) -> None:
        self.environment, self.names = environment, names
        self.arguments: tuple[str, ...] | None = arguments  # None: those of a function
        self.variables: dict[str, Value] = {}
        self.here: dict[int, str] = {}

    def calls(self, script: str, line: int) -> Iterable[list[Word]]:
        """Each call, from the word that names it."""
        reader = Reader(script.replace("\r\n", "\n"), line)
        tokens = reader.tokens()
        self.here = reader.here
        blocks: list[_Block] = []
        for statement in _statements(tokens):
            if not statement and blocks:  # after a branch of `case`
                blocks[-1].end_branch(self.variables)
            first = statement[0].literal if statement else None
            while statement and first in RESERVED:
                self._turn(first, statement, blocks)
                statement = [] if first in ("for", "case", "select", "function") else statement[1:]
                first = statement[0].literal if statement else None
            if statement:
                yield from self._statement(statement)

    def _turn(self, word: str, statement: list[Token], blocks: list[_Block]) -> None:
        """A reserved word: a block begins, goes on with another branch, or ends."""
        line = statement[0].line
        if word in OPENING:
            blocks.append(_Block(OPENING[word], dict(self.variables), line, self.arguments))
            self.arguments = None if OPENING[word] == "}" else self.arguments  # a function has arguments of its own
            if word in ("for", "select") and len(statement) > 1 and (name := statement[1].literal):
                self.variables[name] = Word(f"${name}", line, f"{name} has several values in the loop of line {line}")
        elif word in ("else", "elif") and blocks:
            blocks[-1].end_branch(self.variables)
        elif blocks and word == blocks[-1].end:
            block = blocks.pop()
            block.end_branch(self.variables)
            self.arguments = block.arguments
            for name in block.changed:
                why = f"{name} depends on what happens between lines {block.line} and {line}"
                self.variables[name] = Word(f"${name}", line, why)

    def _statement(self, statement: list[Token]) -> Iterable[list[Word]]:
        first = statement[0].literal
        if first in DECLARING:
            self._assign([token for token in statement[1:] if not (token.literal or "").startswith("-")])
        elif first == "unset":
            for token in statement[1:]:
                self.variables.pop(token.literal or "", None)
        elif first == "shift" and self.arguments is not None:
            count = statement[1].literal or "" if len(statement) > 1 else "1"
            self.arguments = self.arguments[int(count) :] if count.isdigit() else None
        elif first == "read" and statement[0].line in self.here and (name := statement[-1].literal):
            parts = document_parts(self.here[statement[0].line], statement[0].line)
            self.variables[name] = self._text(parts, statement[0].line)
        elif all(_assigns(token) for token in statement):
            self._assign(statement)
        else:
            words = [word for token in statement for word in self._words(token)]
            if first == "set" and len(words) > 1 and words[1].text == "--":
                self.arguments = None if any(word.why for word in words) else tuple(word.text for word in words[2:])
            elif first not in PRINTING:
                yield from self._calls_in(words)

    def _calls_in(self, words: list[Word]) -> Iterable[list[Word]]:
        for index, word in enumerate(words):
            if any(word.text == name or word.text.endswith("/" + name) for name in self.names):
                yield words[index:]
                return
        for word in words:
            if any(name in word.text for name in self.names) and len(word.text.split()) > 1:
                inner = _Shell(self.environment, self.arguments or (), self.names)
                inner.variables = dict(self.variables)
                yield from inner.calls(word.text, word.line)

    def _assign(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            if token.kind == "array":
                elements = tuple(word for each in token.elements for word in self._words(each))
                before = self.variables.get(token.name, ()) if token.append else ()
                self.variables[token.name] = ((before,) if isinstance(before, Word) else before) + elements
            elif found := ASSIGNMENT.match(_start(token)):
                value = self._text(_after(token.parts, found.end()), token.line)
                if found[2]:
                    value = replace(value, why=f"{found[1]} is set element by element on line {token.line}")
                if found[3] and isinstance(old := self.variables.get(found[1]), Word):
                    value = Word(old.text + value.text, token.line, old.why or value.why)
                self.variables[found[1]] = value

    def _text(self, parts: Iterable[Piece], line: int) -> Word:
        """The parts as one word, as an assignment takes them."""
        text, why = "", ""
        for part in parts:
            each = self._value(part, line) if part.expansion else Word(part.text, line)
            for word in (each,) if isinstance(each, Word) else each:
                text += word.text if isinstance(each, Word) else f" {word.text}" * bool(text) or word.text
                why = why or word.why
        return Word(text if text[:2] != "~/" else self.environment.get("HOME", "~") + text[1:], line, why)

    def _words(self, token: Token) -> list[Word]:
        """The words that a token becomes: none for an empty variable, several for an array or unquoted blanks."""
        done, open_word = list[Word](), list[Word]()

        def finish() -> None:
            if open_word and any(word.text or word.line == QUOTES for word in open_word):
                lines = [word.line for word in open_word if word.line > 0]
                why = next((word.why for word in open_word if word.why), "")
                done.append(Word("".join(word.text for word in open_word), lines[0] if lines else token.line, why))
            open_word.clear()

        for part in token.parts:
            if not part.expansion:
                open_word.append(Word(part.text, QUOTES if part.quoted else 0))
                continue
            value = self._value(part, token.line)
            words = (replace(value, line=0),) if isinstance(value, Word) else value
            if part.quoted and (part.text in ("$*", "${*}") or part.text.endswith("[*]}")):
                words = (Word(" ".join(word.text for word in words), 0, "".join(word.why for word in words)),)
            if part.quoted and not words:  # "${empty[@]}" is no word, and "" is one
                open_word = [replace(word, line=0) for word in open_word]
            for index, word in enumerate(words):
                pieces = [word.text] if part.quoted or word.why else re.split(r"\s+", word.text)
                for number, piece in enumerate(pieces):
                    if index or number:
                        finish()
                    open_word.append(replace(word, text=piece))
        finish()
        return done

    def _value(self, part: Piece, line: int) -> Value:
        """What an expansion stands for."""
        written = part.text
        if written.startswith("$(("):
            return self._sum(written, line)
        if written.startswith(("$(", "`")):
            return Word(written, line, "the output of a command is not known; write the value in its place")
        body = written[2:-1] if written.startswith("${") else written[1:]
        name = re.match(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", body)
        if name is None:
            return Word(written, line, UNREAD)
        rest = body[name.end() :]
        value = self._variable(name[0])
        if rest in ("[@]", "[*]"):
            return value if isinstance(value, tuple) else () if value is None else (value,)
        if rest.startswith(("[@]:-", "[@]+")):
            return value if isinstance(value, tuple) else ()
        if isinstance(value, tuple) and (index := re.fullmatch(r"\[(\d+)\]", rest)):
            return value[int(index[1])] if int(index[1]) < len(value) else Word("", line)
        if isinstance(value, tuple) and name[0] not in ("@", "*"):
            value = value[0] if value else Word("", line)
        if rest:
            return self._changed(name[0], rest, value, part, line)
        if value is None:
            return Word(written, line, f"{name[0]} {NOWHERE}")
        return value

    def _variable(self, name: str) -> Value | None:
        if name in ARGUMENTS or name.isdigit():
            if self.arguments is None:
                return Word(f"${name}", 0, f"${name} is an argument of a function")
            if name == "#":
                return Word(str(len(self.arguments)), 0)
            if name.isdigit():
                at = int(name) - 1
                return Word(self.arguments[at], 0) if 0 <= at < len(self.arguments) else None
            return tuple(Word(argument, 0) for argument in self.arguments)
        if name in self.variables:
            return self.variables[name]
        return Word(self.environment[name], 0) if name in self.environment else None

    def _changed(self, name: str, rest: str, value: Value | None, part: Piece, line: int) -> Value:
        """`${name:-word}`, `${name%pattern}` and their relatives."""
        found = re.match(r":?[-=+?]|##?|%%?", rest)
        if found is None or isinstance(value, tuple):
            return Word(part.text, line, UNREAD)
        mark, word = found[0], self._text(parts_of(rest[found.end() :], line, part.quoted), line)
        if mark[0] in "#%":
            if value is None or value.why or word.why:
                return value or Word(part.text, line, f"{name} {NOWHERE}")
            return replace(value, text=_cut(value.text, mark, word.text))
        absent = value is None or (mark[0] == ":" and not value.text)
        if mark[-1] == "+":
            return Word("", line) if absent else word
        if not absent and value is not None:
            return value
        if mark[-1] == "?":
            return Word(part.text, line, f"{name} {NOWHERE}")
        if mark[-1] == "=":
            self.variables[name] = word
        return word

    def _sum(self, written: str, line: int) -> Word:
        """`$((...))` of whole numbers, with + - * / % and brackets; `/` and `%` round towards zero, as in C."""
        names = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda name: name[1] or name[2], written[3:-2])
        try:
            return Word(str(self._number(ast.parse(names.strip(), mode="eval").body)), line)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return Word(written, line, "this sum is not known; write the number in its place")

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            value = self._variable(node.id)
            if isinstance(value, Word) and not value.why:
                return int(value.text or "0")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
            result = SUMS[type(node.op)](self._number(node.left), self._number(node.right))
            if abs(result) < 2**63:
                return result
        raise ValueError(ast.dump(node))


@dataclass
class _Block:
    """A part of a script that need not run: the variables in front of it, and those that a branch of it changes."""

    end: str
    before: dict[str, Value]
    line: int
    arguments: tuple[str, ...] | None
    changed: set[str] = field(default_factory=set)

    def end_branch(self, variables: dict[str, Value]) -> None:
        """The next branch, and what is after the block, do not see what this one has set."""
        names = variables.keys() | self.before.keys()
        self.changed |= {name for name in names if _plain(variables.get(name)) != _plain(self.before.get(name))}
        variables.clear()
        variables.update(self.before)


def _plain(value: Value | None) -> object:
    """A value without its lines."""
    return [(word.text, word.why) for word in value] if isinstance(value, tuple) else value and (value.text, value.why)


def _quotient(first: int, second: int) -> int:
    return abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)


SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda first, second: first - second * _quotient(first, second),
}


def _cut(text: str, mark: str, pattern: str) -> str:
    """`text` without the shortest (`#`, `%`) or longest (`##`, `%%`) match of a pattern at its start or end."""
    matches = re.compile(translate(pattern)).match
    lengths = range(len(text) + 1) if len(mark) == 1 else range(len(text), -1, -1)
    if mark[0] == "#":
        return next((text[length:] for length in lengths if matches(text[:length])), text)
    return next((text[: len(text) - length] for length in lengths if matches(text[len(text) - length :])), text)


def _statements(tokens: Iterable[Token]) -> Iterable[list[Token]]:
    """The commands between operators; an empty one after each branch of `case`."""
    statement: list[Token] = []
    for token in tokens:
        if token.kind == "operator":
            if statement:
                yield statement
            statement = []
            if token.name in (";;", ";&", ";;&"):
                yield []
        else:
            statement.append(token)
    if statement:
        yield statement


def _start(token: Token) -> str:
    """The unquoted text that a word begins with."""
    first = token.parts[0] if token.parts else Piece("")
    return "" if first.expansion or first.quoted else first.text


def _assigns(token: Token) -> bool:
    return token.kind == "array" or ASSIGNMENT.match(_start(token)) is not None


def _after(parts: tuple[Piece, ...], count: int) -> tuple[Piece, ...]:
    return (replace(parts[0], text=parts[0].text[count:]), *parts[1:])
