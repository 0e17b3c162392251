"""The words of a shell script: what bash would split it into, before anything is expanded.

Covered: quotes, continued lines, comments, `$NAME`, `${...}`, `$(...)`, `$((...))`, arrays `X=(a b)`, redirections and
here-documents (which are left out), `[[ ]]` and `(( ))`. Not covered: aliases, `{a,b}` and file patterns, which stay as
they are. Nothing is executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from oncurve.errors import ConfigError

Kind = Literal["text", "parameter", "command", "arithmetic"]


@dataclass(frozen=True)
class Piece:
    """A piece of a word: text, or what stands inside of `${...}`, `$(...)` or `$((...))`."""

    kind: Kind
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Word:
    """A word and its line. `array`: the words of `NAME=( ... )`, of which the parts are `NAME=` or `NAME+=`."""

    line: int
    parts: tuple[Piece, ...] = ()
    array: tuple[Word, ...] | None = None

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


Token = Word | Operator

_OPERATORS = ("\n", ";;", ";", "&&", "&", "||", "|&", "|", "(", ")")
_REDIRECTION = re.compile(r"[0-9]*(&>>|&>|<<<|<<-|<<|<>|>>|>\||>&|<&|>|<)")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*\+?=")


def tokens_of(text: str) -> list[Token]:
    """The words and operators of a script. Raises ConfigError with the line: a quote or bracket is never closed."""
    return _Lexer(text.replace("\r\n", "\n")).tokens()


def parts_of(text: str, quoted: bool = True) -> tuple[Piece, ...]:
    """The parts of a text that stands inside of another expansion, such as the default of `${NAME:-default}`."""
    lexer = _Lexer(text)
    found = list[Piece]()
    while lexer.at < len(text):
        lexer.part(found, blanks=True)
    return tuple(Piece(part.kind, part.text, quoted) for part in found)


@dataclass
class _Lexer:
    text: str
    at: int = 0
    line: int = 1
    in_test: bool = False
    here: list[str] = field(default_factory=list)

    def tokens(self, closing: str = "") -> list[Token]:
        """All tokens, or those up to an unquoted `closing`."""
        found = list[Token]()
        while True:
            self.blanks()
            if self.at >= len(self.text):
                if closing:
                    raise ConfigError(f"line {self.line}: ( is never closed")
                return found
            if closing and self.text[self.at] == closing:
                self.at += 1
                return found
            if not self.redirected():
                found.append(self.token())

    def blanks(self) -> None:
        """Skip blanks, continued lines and comments."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.skip(2)
            elif self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text[self.at] == "#":
                while self.at < len(self.text) and self.text[self.at] != "\n":
                    self.at += 1
            else:
                return

    def skip(self, count: int) -> str:
        """The next characters, with their lines counted."""
        found = self.text[self.at : self.at + count]
        self.line += found.count("\n")
        self.at += count
        return found

    def redirected(self) -> bool:
        """Skip a redirection and its target; False: there is none here."""
        found = None if self.in_test else _REDIRECTION.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        self.blanks()
        target = self.word()
        if found[1] in ("<<", "<<-"):
            self.here.append("".join(part.text for part in target.parts))
        return True

    def token(self) -> Token:
        line = self.line
        if self.text.startswith("((", self.at) and not self.in_test:
            return Word(line, (Piece("text", "(("), Piece("arithmetic", self.between("((", "))"))))
        operator = next((each for each in _OPERATORS if self.text.startswith(each, self.at)), None)
        if operator is None:
            return self.word()
        self.skip(len(operator))
        if operator == "\n":
            self.documents()
        if self.in_test and operator != "\n":
            return Word(line, (Piece("text", operator),))
        return Operator(line, operator)

    def documents(self) -> None:
        """Skip the here-documents that begin after this line."""
        for name in self.here:
            while self.at < len(self.text):
                line, _, _ = self.text[self.at :].partition("\n")
                self.skip(len(line) + 1)
                if line.strip() == name:
                    break
        self.here.clear()

    def word(self) -> Word:
        line, found = self.line, list[Piece]()
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r\n;&|)" or (self.text[self.at] in "<>" and not self.in_test):
                break
            if self.text[self.at] == "(":
                text = "".join(part.text for part in found)
                if not _ASSIGNS.fullmatch(text):
                    break
                self.at += 1
                inner = [each for each in self.tokens(")") if isinstance(each, Word)]
                return Word(line, tuple(found), tuple(inner))
            self.part(found)
        word = Word(line, tuple(found))
        if not found:
            raise ConfigError(f"line {line}: unexpected {self.text[self.at : self.at + 1] or 'end'}")
        if word.plain in ("[[", "]]"):
            self.in_test = word.plain == "[["
        return word

    def part(self, found: list[Piece], blanks: bool = False) -> None:
        """Append the next part of a word, or several of a text in double quotes."""
        letter = self.text[self.at]
        if letter == "'" and not blanks:
            self.at += 1
            found.append(Piece("text", self.up_to("'"), True))
        elif letter == '"':
            self.at += 1
            self.double_quoted(found)
        elif letter == "\\":
            following = self.skip(2)[1:]
            found.append(Piece("text", "" if following == "\n" else following, True))
        elif letter == "$" or letter == "`":
            found.append(self.expansion(quoted=False))
        else:
            found.append(Piece("text", self.skip(1)))

    def double_quoted(self, found: list[Piece]) -> None:
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
                found.append(Piece("text", self.skip(1), True))
        if self.at >= len(self.text):
            raise ConfigError(f'line {line}: the quote " is never closed')
        self.at += 1

    def expansion(self, quoted: bool) -> Piece:
        """What a `$` or a backquote begins."""
        if self.text[self.at] == "`":
            self.at += 1
            return Piece("command", self.up_to("`"), quoted)
        if self.text.startswith("$((", self.at):
            self.at += 1
            return Piece("arithmetic", self.between("((", "))"), quoted)
        if self.text.startswith("$(", self.at):
            self.at += 1
            return Piece("command", self.between("(", ")"), quoted)
        if self.text.startswith("${", self.at):
            self.at += 1
            return Piece("parameter", self.between("{", "}"), quoted)
        name = _NAME.match(self.text, self.at + 1)
        if name is None:
            return Piece("text", self.skip(1), quoted)
        self.at = name.end()
        return Piece("parameter", name[0], quoted)

    def up_to(self, quote: str) -> str:
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
