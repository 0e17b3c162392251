"""The commands of a shell script as a tree: simple commands, conditions, `case`, loops, groups and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oncurve.compat.verl.shell_words import Operator, Token, Word
from oncurve.errors import ConfigError


@dataclass(frozen=True)
class Simple:
    """A command of words. `in_background` and pipes make no difference here."""

    line: int
    words: tuple[Word, ...]


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
    """`case subject in`: the patterns of each arm with its body."""

    line: int
    subject: Word
    arms: tuple[tuple[tuple[Word, ...], tuple[Command, ...]], ...]


@dataclass(frozen=True)
class Block:
    """A body: of a loop, which may run any number of times; of a function, which runs when it is called; or a group."""

    line: int
    kind: str
    body: tuple[Command, ...]
    name: str = ""


Command = Simple | Chain | If | Case | Block

_LOOPS = ("for", "while", "until", "select")


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
        return token.plain if isinstance(token, Word) else None

    def operator(self) -> str | None:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        return token.text if isinstance(token, Operator) else None

    def line(self) -> int:
        return self.tokens[min(self.at, len(self.tokens) - 1)].line

    def expect(self, word: str, line: int, of: str) -> None:
        """Pass over a reserved word. Raises ConfigError: it is not there."""
        self.separators()
        if self.word() != word:
            raise ConfigError(f"line {line}: {of} has no {word}")
        self.at += 1

    def separators(self) -> None:
        while self.operator() in ("\n", ";", "&"):
            self.at += 1

    def body(self, ends: tuple[str, ...]) -> tuple[Command, ...]:
        """Commands up to one of the reserved words, `)` or `;;`."""
        found = list[Command]()
        while True:
            self.separators()
            if self.at >= len(self.tokens) or self.word() in ends or self.operator() in (")", ";;"):
                return tuple(found)
            found.append(self.chain())

    def chain(self) -> Command:
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
        """A command; of several joined by pipes all, in a group."""
        line, commands = self.line(), [self.command()]
        while self.operator() in ("|", "|&"):
            self.at += 1
            while self.operator() == "\n":
                self.at += 1
            commands.append(self.command())
        return commands[0] if len(commands) == 1 else Block(line, "group", tuple(commands))

    def command(self) -> Command:
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
        if word in _LOOPS:
            self.until("do", line, str(word))
            return self.closed(line, "loop", "done")
        if word == "{":
            self.at += 1
            return self.closed(line, "group", "}")
        if word == "function" or self.is_definition():
            return self.function(line)
        return self.simple(line)

    def closed(self, line: int, kind: str, end: str, name: str = "") -> Block:
        body = self.body((end,))
        self.expect(end, line, "a block")
        return Block(line, kind, body, name)

    def until(self, word: str, line: int, of: str) -> None:
        """Skip to the word after a reserved one."""
        while self.at < len(self.tokens) and self.word() != word:
            self.at += 1
        self.expect(word, line, of)

    def is_definition(self) -> bool:
        """Whether `name()` stands here."""
        following = [
            token.text if isinstance(token, Operator) else "" for token in self.tokens[self.at + 1 : self.at + 3]
        ]
        return self.word() is not None and following == ["(", ")"]

    def function(self, line: int) -> Block:
        self.at += self.word() == "function"
        name = self.word() or ""
        self.at += 1
        while self.operator() in ("(", ")", "\n"):
            self.at += 1
        self.expect("{", line, "a function")
        return self.closed(line, "function", "}", name)

    def condition(self, line: int) -> If:
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
        self.at += 1
        subject = self.tokens[self.at] if self.at < len(self.tokens) else None
        self.at += 1
        if not isinstance(subject, Word):
            raise ConfigError(f"line {line}: case has no word")
        self.expect("in", line, "case")
        arms = list[tuple[tuple[Word, ...], tuple[Command, ...]]]()
        while True:
            self.separators()
            if self.word() == "esac":
                self.at += 1
                return Case(line, subject, tuple(arms))
            patterns = list[Word]()
            while self.at < len(self.tokens) and self.operator() != ")":
                token = self.tokens[self.at]
                patterns += [token] if isinstance(token, Word) else []
                self.at += 1
            if self.at >= len(self.tokens):
                raise ConfigError(f"line {line}: case has no esac")
            self.at += 1
            arms.append((tuple(patterns), self.body(("esac",))))
            self.at += self.operator() == ";;"

    def simple(self, line: int) -> Simple:
        words = list[Word]()
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                break
            words.append(token)
            self.at += 1
        return Simple(line, tuple(words))
