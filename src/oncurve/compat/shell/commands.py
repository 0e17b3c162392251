"""The commands of a shell script as a tree: simple commands, conditions, `case`, loops, groups and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from oncurve.base.errors import ConfigError
from oncurve.compat.shell.tokens import Document, Operator, RawWord, Token


@dataclass(frozen=True)
class Simple:
    """A command of words, with the last of its here-documents. In the background it makes no difference."""

    line: int
    words: tuple[RawWord, ...]
    document: Document | None = None


@dataclass(frozen=True)
class Chain:
    """Commands joined by `&&` and `||`; `links[i]` stands before `commands[i + 1]`. `negated`: `!` before the first."""

    line: int
    commands: tuple[Command, ...]
    links: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True)
class If:
    """`if`, `elif` and `else`: each condition with its body."""

    line: int
    branches: tuple[tuple[tuple[Command, ...], tuple[Command, ...]], ...]
    otherwise: tuple[Command, ...] = ()


@dataclass(frozen=True)
class Case:
    """`case subject in`: the patterns of each arm with its body. `falls`: an arm goes on with the next one (`;&`)."""

    line: int
    subject: RawWord
    arms: tuple[tuple[tuple[RawWord, ...], tuple[Command, ...]], ...]
    falls: bool = False


@dataclass(frozen=True)
class Block:
    """A body: of a function, which runs when it is called, a group, or a subshell, which keeps its variables."""

    line: int
    kind: Literal["function", "group", "subshell"]
    body: tuple[Command, ...]
    name: str = ""


@dataclass(frozen=True)
class Loop:
    """A loop: the condition of `while` and `until`, the variable of `for` and `select`, and the body."""

    line: int
    kind: str
    condition: tuple[Command, ...]
    body: tuple[Command, ...]
    name: str = ""


Command = Simple | Chain | If | Case | Block | Loop

_ENDS = (")", ";;", ";&", ";;&")


def commands_of(tokens: Sequence[Token]) -> tuple[Command, ...]:
    """The commands of a script. Raises ConfigError with the line: `fi`, `done`, `esac` or a bracket is missing."""
    parser = _Parser(tokens)
    found = parser.body(())
    if parser.at < len(tokens):
        raise ConfigError(f"line {tokens[parser.at].line}: unexpected {parser.word() or parser.operator()}")
    return found


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def word(self) -> str | None:
        """The plain text of the next word; None: it is an operator, or has quotes."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return token.plain if isinstance(token, RawWord) else None

    def operator(self) -> str | None:
        """The next token, if it is an operator; None: it is a word, or there is none."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return token.text if isinstance(token, Operator) else None

    def line(self) -> int:
        """The line of the next token."""
        return self.tokens[min(self.at, len(self.tokens) - 1)].line

    def expect(self, word: str, line: int, of: str) -> None:
        """Pass over a reserved word. Raises ConfigError: it is not there."""
        self.separators()
        if self.word() != word:
            raise ConfigError(f"line {line}: {of} has no {word}")
        self.at += 1

    def separators(self) -> None:
        """Skip ends of lines and semicolons."""
        while self.operator() in ("\n", ";", "&"):
            self.at += 1

    def body(self, ends: tuple[str, ...]) -> tuple[Command, ...]:
        """Commands up to one of the reserved words, `)` or `;;`."""
        found = list[Command]()
        while True:
            self.separators()
            if self.at >= len(self.tokens) or self.word() in ends or self.operator() in _ENDS:
                return tuple(found)
            found.append(self.chain())

    def chain(self) -> Command:
        """Commands with `&&`, `||` and `|` between them."""
        line, links = self.line(), list[str]()
        negated = self.word() == "!"
        self.at += negated
        commands = [self.pipeline()]
        while self.operator() in ("&&", "||"):
            links.append(str(self.operator()))
            self.at += 1
            while self.operator() == "\n":
                self.at += 1
            commands.append(self.pipeline())
        return Chain(line, tuple(commands), tuple(links), negated) if links or negated else commands[0]

    def pipeline(self) -> Command:
        """A command; of several joined by pipes, each is in a subshell."""
        line, commands = self.line(), [self.command()]
        while self.operator() in ("|", "|&"):
            self.at += 1
            while self.operator() == "\n":
                self.at += 1
            commands.append(self.command())
        if len(commands) == 1:
            return commands[0]
        return Block(line, "group", tuple(Block(each.line, "subshell", (each,)) for each in commands))

    def command(self) -> Command:
        """One command: a loop, a condition, a case, a function, a block or a simple one."""
        line, word = self.line(), self.word()
        if self.operator() == "(":
            self.at += 1
            body = self.body(())
            if self.operator() != ")":
                raise ConfigError(f"line {line}: ( is never closed")
            self.at += 1
            return Block(line, "subshell", body)
        if self.operator() is not None or self.at >= len(self.tokens):
            raise ConfigError(f"line {line}: unexpected {self.operator() or 'end'}")
        if word == "if":
            return self.condition(line)
        if word == "case":
            return self.case(line)
        if word in ("for", "select", "while", "until"):
            return self.loop(line, str(word))
        if word == "{":
            self.at += 1
            body = self.body(("}",))
            self.expect("}", line, "{")
            return Block(line, "group", body)
        if word == "function" or self.is_definition():
            return self.function(line)
        return self.simple(line)

    def loop(self, line: int, kind: str) -> Loop:
        """A loop of this kind, up to its `done`."""
        self.at += 1
        name, condition = "", tuple[Command, ...]()
        if kind in ("while", "until"):
            condition = self.body(("do",))
        else:
            name = self.word() or ""
            while self.at < len(self.tokens) and self.word() != "do":
                self.at += 1
        self.expect("do", line, kind)
        body = self.body(("done",))
        self.expect("done", line, kind)
        return Loop(line, kind, condition, body, name)

    def is_definition(self) -> bool:
        """Whether `name()` stands here."""
        following = [
            token.text if isinstance(token, Operator) else "" for token in self.tokens[self.at + 1 : self.at + 3]
        ]
        return self.word() is not None and following == ["(", ")"]

    def function(self, line: int) -> Block:
        """The body of a function."""
        self.at += self.word() == "function"
        name = self.word() or ""
        self.at += 3 if self.is_definition() else 1
        while self.operator() == "\n":
            self.at += 1
        return Block(line, "function", (self.command(),), name)

    def condition(self, line: int) -> If:
        """`if`, with its `elif` and `else`, up to `fi`."""
        branches, otherwise = list[tuple[tuple[Command, ...], tuple[Command, ...]]](), tuple[Command, ...]()
        while self.word() in ("if", "elif"):
            self.at += 1
            tested = self.body(("then",))
            self.expect("then", line, "if")
            branches.append((tested, self.body(("elif", "else", "fi"))))
        if self.word() == "else":
            self.at += 1
            otherwise = self.body(("fi",))
        self.expect("fi", line, "if")
        return If(line, tuple(branches), otherwise)

    def case(self, line: int) -> Case:
        """`case`, with its patterns, up to `esac`."""
        self.at += 1
        subject = self.tokens[self.at] if self.at < len(self.tokens) else None
        self.at += 1
        if not isinstance(subject, RawWord):
            raise ConfigError(f"line {line}: case has no word")
        self.expect("in", line, "case")
        arms, falls = list[tuple[tuple[RawWord, ...], tuple[Command, ...]]](), False
        while True:
            self.separators()
            if self.word() == "esac":
                self.at += 1
                return Case(line, subject, tuple(arms), falls)
            patterns = list[RawWord]()
            while self.at < len(self.tokens) and self.operator() != ")":
                token = self.tokens[self.at]
                patterns += [token] if isinstance(token, RawWord) else []
                self.at += 1
            if self.at >= len(self.tokens):
                raise ConfigError(f"line {line}: case has no esac")
            self.at += 1
            arms.append((tuple(patterns), self.body(("esac",))))
            falls = falls or self.operator() in (";&", ";;&")
            self.at += self.operator() in (";;", ";&", ";;&")

    def simple(self, line: int) -> Simple:
        """Assignments and words, up to the end of the command."""
        words, document = list[RawWord](), None
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                break
            if isinstance(token, Document):
                document = token
            else:
                words.append(token)
            self.at += 1
        return Simple(line, tuple(words), document)
