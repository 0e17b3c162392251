"""A shell script as tokens: what bash would split it into, before anything is expanded. Nothing is executed.

Covered: quotes, escapes, continued lines, comments, `$NAME`, `${...}`, `$(...)`, `$((...))`, backquotes, arrays
`X=(a b)`, redirections (left out with their target), here-documents, `[[ ]]` and `(( ))`. Not covered: aliases,
`{a,b}` and patterns of file names, which stay as they are written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from oncurve.base.errors import ConfigError

Kind = Literal["text", "parameter", "command", "arithmetic"]


@dataclass(frozen=True)
class Piece:
    """A piece of a word: text, or what stands inside of `${...}`, `$(...)` or `$((...))`; `written` is all of it."""

    kind: Kind
    text: str
    quoted: bool = False
    written: str = ""


@dataclass(frozen=True)
class RawWord:
    """A word and its line. `array`: the words of `NAME=( ... )`, of which the parts are `NAME=` or `NAME+=`."""

    line: int
    parts: tuple[Piece, ...] = ()
    array: tuple[RawWord, ...] | None = None

    @property
    def plain(self) -> str | None:
        """Its text where all of it is unquoted text, as words of the shell's own grammar are; else None."""
        whole = all(part.kind == "text" and not part.quoted for part in self.parts)
        return "".join(part.text for part in self.parts) if whole and self.array is None else None


@dataclass(frozen=True)
class Operator:
    """An operator that separates commands: a new line, `;`, `;;`, `&`, `&&`, `|`, `||`, `(` or `)`."""

    line: int
    text: str


@dataclass
class Document:
    """A here-document; its text is known when the line that names it is over. `quoted`: nothing in it is expanded."""

    line: int
    end: str
    indented: bool
    quoted: bool
    text: str = ""


Token = RawWord | Operator | Document

_OPERATORS = ("\n", ";;&", ";;", ";&", ";", "&&", "&", "||", "|&", "|", "(", ")")
_REDIRECTION = re.compile(r"[0-9]*(&>>|&>|<<<|<<-|<<|<>|>>|>\||>&|<&|>(?!\()|<(?!\())")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*\+?=")
_PLAIN = re.compile(r"[^\s;&|()<>'\"\\$`#]+")
_QUOTED = re.compile(r'[^"\\$`]+')
_BEFORE_COMMANDS = ("if", "elif", "then", "else", "while", "until", "do", "{", "!", "time")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def tokens_of(text: str, line: int = 1) -> list[Token]:
    """The tokens of a script whose first line is `line`. Raises ConfigError: a quote or bracket is never closed."""
    return _Lexer(text.replace("\r\n", "\n"), line=line).tokens()


def parts_of(text: str, quoted: bool = True) -> tuple[Piece, ...]:
    """The parts of a text that stands inside of another expansion, such as the default of `${NAME:-default}`."""
    lexer, found = _Lexer(text), list[Piece]()
    while lexer.at < len(text):
        lexer.part(found, within=quoted)
    return tuple(Piece(part.kind, part.text, quoted or part.quoted, part.written) for part in found)


def document_parts(document: Document) -> tuple[Piece, ...]:
    """The parts of a here-document: quotes are text in it."""
    if document.quoted:
        return (Piece("text", document.text, True),)
    text = document.text.replace("\\\n", "")
    lexer, found = _Lexer(text), list[Piece]()
    while lexer.at < len(text):
        if text[lexer.at] == "\\" and text[lexer.at + 1 : lexer.at + 2] in ("$", "`", "\\"):
            found.append(Piece("text", lexer.skip(2)[1:], True))
        elif text[lexer.at] in "$`":
            found.append(lexer.expansion(quoted=True))
        else:
            found.append(Piece("text", lexer.skip(1), True))
    return tuple(found)


@dataclass
class _Lexer:
    text: str
    at: int = 0
    line: int = 1
    in_test: bool = False
    waiting: list[Document] = field(default_factory=list)

    def tokens(self, closing: str = "") -> list[Token]:
        """All tokens, or those up to an unquoted `closing`."""
        found, opened = list[Token](), self.line
        while True:
            self.blanks()
            if self.at >= len(self.text):
                if closing:
                    raise ConfigError(f"line {opened}: ( is never closed")
                return found
            if closing and self.text[self.at] == closing:
                self.at += 1
                return found
            if not self.redirected(found):
                last = found[-1] if found else None
                starts = last is None or isinstance(last, Operator)
                starts = starts or (isinstance(last, RawWord) and last.plain in _BEFORE_COMMANDS)
                found.append(token := self.token(starts))
                plain = token.plain if isinstance(token, RawWord) else None
                self.in_test = (plain == "[[" and starts) or (self.in_test and plain != "]]")

    def blanks(self) -> None:
        """Skip blanks, continued lines and comments."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.skip(2)
            elif self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip(self, count: int) -> str:
        """The next characters, with their lines counted."""
        found = self.text[self.at : self.at + count]
        self.line += found.count("\n")
        self.at += count
        return found

    def redirected(self, tokens: list[Token]) -> bool:
        """Skip a redirection and its target, of a here-document with a token; False: there is none here."""
        found = None if self.in_test else _REDIRECTION.match(self.text, self.at)
        if found is None:
            return False
        line, self.at = self.line, found.end()
        self.blanks()
        target = self.word()
        if found[1] in ("<<", "<<-"):
            quoted = any(part.quoted for part in target.parts)
            end = "".join(part.written or part.text for part in target.parts)
            self.waiting.append(Document(line, end, found[1] == "<<-", quoted))
            tokens.append(self.waiting[-1])
        return True

    def token(self, starts: bool) -> RawWord | Operator:
        """The next word or operator. `starts`: a command begins here."""
        line = self.line
        if self.text.startswith("((", self.at) and starts and not self.in_test:
            start = self.at
            inside = self.between("((", "))")
            return RawWord(line, (Piece("text", "(("), Piece("arithmetic", inside, True, self.text[start : self.at])))
        operator = next((each for each in _OPERATORS if self.text.startswith(each, self.at)), None)
        if operator is None:
            return self.word()
        self.skip(len(operator))
        if operator == "\n":
            self.documents()
        if self.in_test and operator != "\n":
            return RawWord(line, (Piece("text", operator),))
        return Operator(line, operator)

    def documents(self) -> None:
        """Read the here-documents that begin after this line."""
        for document in self.waiting:
            rows = list[str]()
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                row = self.skip((len(self.text) if end < 0 else end) + 1 - self.at).removesuffix("\n")
                row = row.lstrip("\t") if document.indented else row
                if row == document.end:
                    break
                rows.append(row)
            document.text = "\n".join(rows)
        self.waiting.clear()

    def word(self) -> RawWord:
        """A word up to the next blank or operator, in pieces."""
        line, found = self.line, list[Piece]()
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in "<>" and self.text.startswith("(", self.at + 1) and not self.in_test:
                found.append(self.bracketed("command", 1, "(", ")", False))  # the name of a pipe
                continue
            if letter in " \t\r\n;&|)" or (letter in "<>" and not self.in_test):
                break
            if letter == "(":
                text = "".join(part.text for part in found)
                if not _ASSIGNS.fullmatch(text):
                    break
                self.at += 1
                inner = [each for each in self.tokens(")") if isinstance(each, RawWord)]
                return RawWord(line, tuple(found), tuple(inner))
            self.part(found)
        if not found:
            raise ConfigError(f"line {line}: unexpected {self.text[self.at : self.at + 1] or 'end'}".rstrip())
        return RawWord(line, tuple(found))

    def part(self, found: list[Piece], within: bool = False) -> None:
        """Append the next part of a word, or several of a text in double quotes. `within`: ' is a letter."""
        letter = self.text[self.at]
        if letter == "'" and not within:
            self.at += 1
            found.append(Piece("text", self.up_to("'"), True))
        elif self.text.startswith("$'", self.at) and not within:
            self.at += 2
            text = self.up_to("'")
            found.append(Piece("text", re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), text), True))
        elif letter == '"':
            self.at += 1
            self.double_quoted(found)
        elif letter == "\\":
            following = self.skip(2)[1:]
            if following != "\n":
                found.append(Piece("text", following, True))
        elif letter in "$`":
            found.append(self.expansion(quoted=False))
        else:
            plain = _PLAIN.match(self.text, self.at)
            found.append(Piece("text", self.skip(plain.end() - self.at if plain else 1)))

    def double_quoted(self, found: list[Piece]) -> None:
        """The pieces of a text in double quotes, added to `found`."""
        line = self.line
        found.append(Piece("text", "", True))  # "" is a word, too
        while self.at < len(self.text) and self.text[self.at] != '"':
            letter = self.text[self.at]
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                following = self.skip(2)[1:]
                found.append(Piece("text", "" if following == "\n" else following, True))
            elif letter in "$`":
                found.append(self.expansion(quoted=True))
            else:
                plain = _QUOTED.match(self.text, self.at)
                found.append(Piece("text", self.skip(plain.end() - self.at if plain else 1), True))
        if self.at >= len(self.text):
            raise ConfigError(f'line {line}: the quote " is never closed')
        self.at += 1

    def expansion(self, quoted: bool) -> Piece:
        """What a `$` or a backquote begins."""
        if self.text[self.at] == "`":
            self.at += 1
            text = self.up_to("`")
            return Piece("command", text, quoted, f"`{text}`")
        if self.text.startswith("$((", self.at):
            return self.bracketed("arithmetic", 1, "((", "))", quoted)
        if self.text.startswith("$(", self.at):
            return self.bracketed("command", 1, "(", ")", quoted)
        if self.text.startswith("${", self.at):
            return self.bracketed("parameter", 1, "{", "}", quoted)
        name = _NAME.match(self.text, self.at + 1)
        if name is None:
            return Piece("text", self.skip(1), quoted)
        self.at = name.end()
        return Piece("parameter", name[0], quoted, f"${name[0]}")

    def bracketed(self, kind: Kind, before: int, opening: str, closing: str, quoted: bool) -> Piece:
        """A piece up to the bracket that closes it."""
        start = self.at
        self.at += before
        text = self.between(opening, closing)
        return Piece(kind, text, quoted, self.text[start : self.at])

    def up_to(self, quote: str) -> str:
        """The text up to the next `quote`."""
        end, line = self.text.find(quote, self.at), self.line
        if end < 0:
            raise ConfigError(f"line {line}: the quote {quote} is never closed")
        found = self.skip(end - self.at)
        self.at += 1
        return found

    def between(self, opening: str, closing: str) -> str:
        """The text between brackets, nested ones and quotes included; `at` is at the opening one."""
        line, first, last = self.line, opening[0], closing[0]
        self.skip(len(opening))
        start, depth = self.at, len(opening)
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "\\":
                self.skip(2)
                continue
            if letter in "'\"" and first != "{":
                self.skip(1)
                self.up_to(letter)
                continue
            depth += (letter == first) - (letter == last)
            self.skip(1)
            if depth == 0:
                return self.text[start : self.at - len(closing)]
        raise ConfigError(f"line {line}: {opening} is never closed")
