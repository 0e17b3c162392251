"""A shell script as tokens: words with their quoting, arrays, operators. Nothing is executed or looked up.

Covered: quotes, escapes, comments, continued lines, `$name`, `${...}`, `$(...)`, `$((...))`, backticks, arrays
`name=(...)`, redirections (left out with their target), here-documents. Not covered: brace expansion, patterns of
file names, process substitution; they stay as they are written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from oncurve.errors import ConfigError

OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", "\n", ";", "|", "&", "(", ")")
REDIRECTION = re.compile(r"&>>?|<<<|[<>]&|[<>]\||>>|<>|[<>]")
HERE_DOCUMENT = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w.-]+))")
ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")


@dataclass(frozen=True)
class Piece:
    """A piece of a word: literal text, or an expansion as it is written, with its `$`."""

    text: str
    expansion: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class Token:
    """A word, an operator, or an array `name=(...)` (`append`: `name+=(...)`). `line` counts from 1."""

    kind: Literal["word", "operator", "array"]
    line: int
    parts: tuple[Piece, ...] = ()
    name: str = ""
    append: bool = False
    elements: tuple[Token, ...] = ()

    @property
    def literal(self) -> str | None:
        """The text of a word without quotes and expansions, such as a reserved word; None: it has some."""
        plain = self.kind == "word" and not any(part.expansion or part.quoted for part in self.parts)
        return "".join(part.text for part in self.parts) if plain else None


@dataclass
class Reader:
    """Reads tokens from `text`, whose first line is `line`. `here` has the bodies of here-documents by token line."""

    text: str
    line: int = 1
    at: int = 0
    here: dict[int, str] = field(default_factory=dict)
    _waiting: list[tuple[str, bool, int]] = field(default_factory=list)

    def tokens(self, end: str = "") -> list[Token]:
        """All tokens, up to the operator `end`. Raises ConfigError: a quote, brace or array is not closed."""
        found: list[Token] = []
        while (token := self._token()) is not None:
            if token.kind == "operator" and token.name == end:
                return found
            found.append(token)
        if end:
            raise ConfigError(f"line {self.line}: {end!r} is missing before the end of the script")
        return found

    def _token(self) -> Token | None:
        self._skip()
        if self.at >= len(self.text):
            return None
        line = self.line
        if document := HERE_DOCUMENT.match(self.text, self.at):
            self._waiting.append((document[2] or document[3] or document[4], document[1] == "-", line))
            self.at = document.end()
            return self._token()
        if redirection := REDIRECTION.match(self.text, self.at):
            self.at = redirection.end()
            self._skip()
            if self.at < len(self.text) and self.text[self.at] != "\n":
                self._token()
            return self._token()
        if operator := next((each for each in OPERATORS if self.text.startswith(each, self.at)), None):
            self._move(len(operator))
            if operator == "\n":
                self._here_documents()
            return Token("operator", line, name=operator)
        if array := ARRAY.match(self.text, self.at):
            self.at = array.end()
            elements = [token for token in self.tokens(")") if token.kind == "word"]
            return Token("array", line, name=array[1], append=bool(array[2]), elements=tuple(elements))
        parts = self.word()
        descriptor = bool(parts) and all(part.text.isdigit() and not part.quoted for part in parts)
        if descriptor and self.text[self.at : self.at + 1] in ("<", ">"):  # of a redirection
            return self._token()
        return Token("word", line, tuple(parts))

    def _skip(self) -> None:
        """Move over blanks, continued lines and a comment."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self._move(self.text.index("\n", self.at) + 1 - self.at)
            elif self.text[self.at] == "#":
                self.at = self._find("\n")
            else:
                return

    def _find(self, what: str) -> int:
        found = self.text.find(what, self.at)
        return len(self.text) if found < 0 else found

    def _move(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _here_documents(self) -> None:
        for end, indented, line in self._waiting:
            body = list[str]()
            while self.at < len(self.text):
                stop = self._find("\n")
                row = self.text[self.at : stop]
                self._move(stop + 1 - self.at)
                if (row.lstrip("\t") if indented else row).rstrip("\r") == end:
                    break
                body.append(row)
            self.here[line] = "\n".join(body)
        self._waiting = []

    def word(self) -> list[Piece]:
        """The parts of the word that begins here."""
        parts: list[Piece] = []
        while self.at < len(self.text):
            mark = self.text[self.at]
            if mark in " \t\r\n;|&()<>":
                break
            if mark == "'":
                parts.append(Piece(self._up_to("'"), quoted=True))
            elif self.text.startswith("$'", self.at):
                self.at += 1
                parts.append(Piece(_escapes(self._up_to("'")), quoted=True))
            elif mark == '"':
                parts += self._quoted()
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self._move(self.text.index("\n", self.at) + 1 - self.at)
            elif mark == "\\":
                parts.append(Piece(self.text[self.at + 1 : self.at + 2], quoted=True))
                self._move(2)
            else:
                parts.append(self.expansion(quoted=False) or self.plain(" \t\r\n;|&()<>'\"\\$`"))
        return parts

    def _up_to(self, quote: str) -> str:
        line, start = self.line, self.at + 1
        self.at = start
        stop = self._find(quote)
        if stop >= len(self.text):
            raise ConfigError(f"line {line}: the quote {quote} is not closed")
        self._move(stop + 1 - self.at)
        return self.text[start:stop]

    def _quoted(self) -> list[Piece]:
        """The parts between double quotes; at least one, so that `""` is a word."""
        line, parts = self.line, [Piece("", quoted=True)]
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text.startswith("\\\n", self.at):
                self._move(2)
            elif self.text[self.at] == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('$`"\\'):
                parts.append(Piece(self.text[self.at + 1], quoted=True))
                self.at += 2
            elif self.text[self.at] == "\\":
                parts.append(Piece("\\", quoted=True))
                self.at += 1
            else:
                found = self.expansion(quoted=True) or self.plain('"\\$`')
                parts.append(Piece(found.text, found.expansion, quoted=True))
        if self.at >= len(self.text):
            raise ConfigError(f'line {line}: the quote " is not closed')
        self.at += 1
        return parts

    def plain(self, stops: str) -> Piece:
        """At least one character of text, up to one of `stops`."""
        start = self.at
        self._move(1)
        while self.at < len(self.text) and self.text[self.at] not in stops:
            self._move(1)
        return Piece(self.text[start : self.at])

    def expansion(self, quoted: bool) -> Piece | None:
        """The expansion that begins here, if one does."""
        start = self.at
        if self.text[start] == "`":
            return Piece(f"`{self._up_to('`')}`", expansion=True, quoted=quoted)
        if self.text[start] != "$":
            return None
        for opening, closing in (("{", "}"), ("(", ")")):
            if self.text.startswith(opening, start + 1):
                self._close(opening, closing)
                return Piece(self.text[start : self.at], expansion=True, quoted=quoted)
        if name := NAME.match(self.text, start + 1):
            self.at = name.end()
            return Piece(self.text[start : self.at], expansion=True, quoted=quoted)
        return None

    def _close(self, opening: str, closing: str) -> None:
        """Move after the bracket that closes the one after this `$`; quotes and inner brackets are passed over."""
        line, depth = self.line, 0
        self.at += 1
        while self.at < len(self.text):
            mark = self.text[self.at]
            if mark == "'" and closing == ")":
                self._up_to("'")
                continue
            depth += (mark == opening) - (mark == closing)
            self._move(2 if mark == "\\" else 1)
            if depth == 0:
                return
        raise ConfigError(f"line {line}: ${opening} is not closed")


def _escapes(text: str) -> str:
    """The text of `$'...'`."""
    known = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda found: known.get(found[1], found[1]), text, flags=re.DOTALL)


def parts_of(text: str, line: int, quoted: bool) -> tuple[Piece, ...]:
    """The parts of the word inside an expansion, `w` of `${name:-w}`: its own quotes are taken off."""
    reader, parts = Reader(text, line), list[Piece]()
    while reader.at < len(text):
        parts += reader.word() or [reader.plain("'\"\\$`")]
    return tuple(replace(part, quoted=True) for part in parts) if quoted else tuple(parts)


def document_parts(text: str, line: int) -> tuple[Piece, ...]:
    """The parts of a here-document: quotes are text in it."""
    reader, parts = Reader(text.replace("\\\n", ""), line), list[Piece]()
    while reader.at < len(reader.text):
        parts.append(reader.expansion(quoted=True) or reader.plain("$`"))
    return tuple(parts)
