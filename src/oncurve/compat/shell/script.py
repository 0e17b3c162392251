"""The call of a program in a shell script: its words, with the script's variables filled in. Nothing is executed.

The script is followed as bash would: assignments, arrays, functions, conditions and `case`, `shift` and `set --`,
here-documents for `read`, calls inside quotes (`bash -c "..."`, `ray job submit -- "..."`). A command joined by `&&`
is taken to succeed, and `exit` with an error is passed over: a word given after the script may replace its cause.
Where a condition or the number of a loop's turns is not known, each way is followed, and what the ways set to different
values is not known after them. What is not known does no harm in a word that is given again after the script.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from oncurve.base.errors import ConfigError
from oncurve.compat.shell.commands import Block, Case, Chain, Command, If, Loop, Simple, commands_of
from oncurve.compat.shell.conditions import truth_of
from oncurve.compat.shell.outputs import LONGEST
from oncurve.compat.shell.paths import Left, Paths
from oncurve.compat.shell.tokens import RawWord, tokens_of
from oncurve.compat.shell.values import UNKNOWN, Item, Value, Values, Word

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_TESTS = ("[", "[[", "test")
_PRINTS = ("echo", "printf", "cat")
_SUCCEEDS = ("", ":", "true", "export", "set", "shopt", "shift", "unset", "cd", "mkdir", "ulimit", *_PRINTS, *_DECLARES)
SCRIPTS = """\
A script is read and not run. Variables, defaults like `${N:-8}`, arrays, sums, functions, `if` and `case` are followed
as bash follows them, with the variables of the environment; the call may stand in quotes, as after `bash -c` or
`ray job submit --`. A value that only a command's output, a loop or a condition with a command could give is an error
that names its line, unless the setting is given again after the script."""
"""What docs/coming-from.md says of scripts, for each tool that has them."""

DEEPEST = 50
"""Functions that call each other, and texts in quotes that call the shell again."""


@dataclass(frozen=True)
class Program:
    """A program whose call is looked for.

    pattern   of a word and the one before it, with a blank between: `-m verl.trainer.main_ppo`
    example   the call, for messages
    """

    pattern: re.Pattern[str]
    example: str


def find_call(
    script: str, program: Program, environment: Mapping[str, str], arguments: Sequence[str] = (), path: str = "bash"
) -> list[Word]:
    """The words after the name of `program` in the one call of it in `script`.

    `environment` has the variables that the script does not set, `arguments` is `$@`, `path` is `$0`. Raises
    ConfigError: no such call, several, or a script that is no shell's or is nested too deeply.
    """
    if "\ue000" in script + "".join(arguments) or "\x00" in script:
        raise ConfigError("holds characters that no script has")
    values = Values(path, environment, tuple(Item(each, 0) for each in arguments))
    reader = _Script(values, program=program)
    try:
        reader.whole(script)
    except RecursionError:
        raise ConfigError("the script is nested too deeply; give the words of its call themselves") from None
    if not reader.calls:
        raise ConfigError(f"there is no call like: {program.example}; name the script that has it, or give its words")
    if len(reader.calls) > 1:
        lines = ", ".join(str(line) for line, _ in reader.calls)
        raise ConfigError(f"the program is called on lines {lines}; leave one of the calls in, or give its words")
    return [values.word(each) for each in reader.calls[0][1]]


@dataclass
class _Script(Paths):
    """The script while it is followed. `looping`: for what a loop sets only; `outer`: what `local` names had before."""

    program: Program = field(kw_only=True)
    calls: list[tuple[int, list[Item]]] = field(default_factory=list)
    outer: dict[str, Value | None] = field(default_factory=dict)
    depth: int = 0
    looping: bool = False

    def whole(self, text: str, line: int = 1) -> None:
        """Follow a text as a script of its own."""
        self.values.spend(len(text))
        try:
            self.run(commands_of(tokens_of(text, line)))
        except Left:
            return

    def run(self, commands: Sequence[Command]) -> bool | None:
        """Follow commands; the truth of the last one, None where it is not known."""
        truth: bool | None = True
        for command in commands:
            self.values.spend(100)
            truth = self.one(command)
        return truth

    def one(self, command: Command) -> bool | None:
        """Follow one command: whether it succeeds; None: not known."""
        if isinstance(command, Simple):
            return self.simple(command)
        if isinstance(command, Chain):
            return self.chain(command)
        if isinstance(command, If):
            return self.condition(command)
        if isinstance(command, Case):
            return self.case(command)
        if isinstance(command, Loop):
            return self.loop(command)
        if command.kind == "function":
            self.functions[command.name] = command
            return True
        if command.kind == "group":
            return self.run(command.body)
        return self.apart(lambda: self.run(command.body))

    def chain(self, chain: Chain) -> bool | None:
        """Follow `&&` and `||`: whether the whole succeeds; None: not known."""
        truth, taken = self.one(chain.commands[0]), chain.commands[0]
        truth = (None if truth is None else not truth) if chain.negated else truth
        assumed = False
        for link, command in zip(chain.links, chain.commands[1:], strict=True):
            if truth is None and isinstance(taken, Simple) and not chain.negated and not _is_test(taken):
                truth, assumed = True, True  # a command, which is taken to succeed
            if truth is None:
                truth = self.ways([lambda command=command: self.one(command), lambda: None], chain.line)  # type: ignore[misc]
            elif truth == (link == "&&"):
                truth, taken = self.one(command), command
        return None if assumed else truth

    def condition(self, condition: If) -> bool | None:
        """Follow the branch that is taken, each of them where that is not known."""
        return self.branch(condition, 0)

    def branch(self, condition: If, number: int) -> bool | None:
        """The branches of an `if` from one on."""
        for at in range(number, len(condition.branches)):
            tested, body = condition.branches[at]
            truth = self.run(tested)
            if truth:
                return self.run(body)
            if truth is None:
                following = at + 1
                return self.ways(
                    [lambda: self.run(body), lambda: self.branch(condition, following)],  # noqa: B023 - returns
                    condition.line,
                )
        return self.run(condition.otherwise)

    def case(self, case: Case) -> bool | None:
        """Follow the pattern that fits, each of them where that is not known."""
        subject = self.values.in_test(self.values.text(case.subject))
        ways = list[Callable[[], object]]()
        for patterns, body in case.arms:
            texts = [self.values.in_test(self.values.text(pattern)) for pattern in patterns]
            unknown = [UNKNOWN.search(subject + text) or len(subject + text) > LONGEST for text in texts]
            follow = lambda body=body: self.run(body)  # noqa: E731
            if "*" in texts or any(
                not blind and fnmatch.fnmatchcase(subject, text) for blind, text in zip(unknown, texts, strict=True)
            ):
                ways.append(follow)
                if not case.falls:
                    break
            elif any(unknown) or case.falls:
                ways.append(follow)
        else:
            ways.append(lambda: None)
        return self.run_one(ways, case.line)

    def run_one(self, ways: list[Callable[[], object]], line: int) -> bool | None:
        """Follow each of the ways; what they make different is unknown afterwards."""
        if len(ways) > 1:
            return self.ways(ways, line)
        ways[0]()
        return True

    def loop(self, loop: Loop) -> bool | None:
        """A loop of which the number of turns is not known: once for what it sets, and once for its calls."""
        if loop.kind in ("while", "until"):
            truth = self.run(loop.condition)
            if truth is not None and truth != (loop.kind == "while"):
                return True
        if loop.name:
            why = f"{loop.name} has several values in the loop of line {loop.line}"
            self.values.variables[loop.name] = self.values.unknown(why, loop.line, f"${loop.name}")

        def body() -> None:
            self.gathered(("break", "continue"), loop.line, lambda: self.run(loop.body))

        calls, looping = list(self.calls), self.looping
        self.looping = True
        self.ways([body, lambda: None], loop.line)
        self.looping, self.calls = looping, calls
        if not looping:
            self.ways([body, lambda: None], loop.line)
        return None

    def simple(self, command: Simple) -> bool | None:
        """Assignments, builtins, functions and the call that is looked for."""
        words = list(command.words)
        if words and words[0].parts[0].text == "((" and words[0].parts[0].kind == "text":
            text = self.values.arithmetic(words[0].parts[1].text, command.line)
            return None if UNKNOWN.search(text) else text != "0"
        if words and words[0].plain in _TESTS:
            return truth_of(words, self.values)
        if words and words[0].plain in _DECLARES:
            for word in words[1:]:
                name = _name(word) or word.plain
                if words[0].plain == "local" and self.depth and name:
                    self.outer.setdefault(name, self.values.variable(name, None))
                if _assigned(word) is not None:
                    self.assign(word)
            return True
        prefix = list[RawWord]()
        while words and _assigned(words[0]) is not None:
            prefix.append(words.pop(0))
        if not words:
            for word in prefix:
                self.assign(word)
            return True
        found = [item for word in words for item in self.values.fields(word)]
        before = {name: self.values.variables.get(name) for name in map(_name, prefix)}
        missing = [name for name in before if name not in self.values.variables]
        for word in prefix:
            self.assign(word)
        truth = self.command(found, command)
        self.values.variables |= before
        for name in missing:
            self.values.variables.pop(name, None)
        return truth

    def command(self, found: list[Item], command: Simple) -> bool | None:
        """A command of words that are expanded."""
        texts = [each.text for each in found]
        name = texts[0] if texts else ""
        if name in ("return", "break", "continue") or (name == "exit" and texts[1:] in ([], ["0"])):
            raise Left(name)
        if name in ("unset", "shift", "set", "read", "mapfile", "readarray", "getopts"):
            self.builtin(name, found[1:], command)
        elif name == "eval":
            if not UNKNOWN.search(" ".join(texts)):
                self.inside(" ".join(texts[1:]), command.line, self.values.arguments)
        elif name in self.functions:
            return self.function(self.functions[name], found[1:], command.line)
        elif name not in _PRINTS:
            self.called(found, command.line)
        return True if name in _SUCCEEDS else False if name == "false" else None

    def builtin(self, name: str, found: list[Item], command: Simple) -> None:
        """The commands that set variables or arguments."""
        values, texts = self.values, [each.text for each in found]
        if name == "unset":
            values.variables |= dict.fromkeys(text for text in texts if text.isidentifier())
        elif name == "set" and "--" in texts:
            values.arguments = tuple(found[texts.index("--") + 1 :])
        elif name == "shift":
            count = texts[0] if texts else "1"
            if not count.isdigit() or len(count) > 5 or values.marked(values.arguments[: int(count)]):
                mark = values.unknown("the arguments are not known after this shift", command.line, "$@")
                values.arguments = (Item(mark, 0),)
            elif int(count) <= len(values.arguments):
                values.arguments = values.arguments[int(count) :]
        elif name in ("read", "mapfile", "readarray", "getopts"):
            names = [text for text in texts if text.isidentifier()]
            for each in names:
                why = f"{each} is read from an input, which is not known"
                values.variables[each] = values.unknown(why, command.line, f"${each}")
            if name == "read" and command.document is not None and names and "-a" not in texts:
                text = values.document(command.document).strip(" \t\n")
                if len(names) == 1 and ("-d" in texts or "\n" not in text):
                    values.variables[names[0]] = text

    def function(self, function: Block, arguments: list[Item], line: int) -> bool | None:
        """A call of a function of the script, with arguments and `local` variables of its own."""
        outer, self.outer = self.outer, {}
        truth: list[bool | None] = [None]

        def body() -> None:
            truth[0] = self.run(function.body)

        with self.deeper(tuple(arguments), line):
            self.gathered(("return",), function.line, body)
        self.values.variables |= self.outer
        self.outer = outer
        return truth[0]

    @contextmanager
    def deeper(self, arguments: tuple[Item, ...], line: int) -> Iterator[None]:
        """Arguments of a function or of another shell. Raises ConfigError: it calls itself without an end."""
        if self.depth >= DEEPEST:
            raise ConfigError(f"line {line}: functions or shells call each other without an end")
        outer, self.values.arguments = self.values.arguments, arguments
        self.depth += 1
        try:
            yield
        finally:
            self.values.arguments = outer
            self.depth -= 1

    def inside(self, text: str, line: int, arguments: tuple[Item, ...]) -> None:
        """Follow a text that another shell gets, or this one by `eval`."""
        with self.deeper(arguments, line):
            self.whole(text, line)

    def assign(self, word: RawWord) -> None:
        """Set a variable: `NAME=value`, `NAME+=value`, `NAME=(a b)`; of `NAME[i]=value` nothing is known."""
        found = _assigned(word)
        assert found is not None
        name, adds, variables = found[1], bool(found[3]), self.values.variables
        before = self.values.variable(name, "@" if word.array is not None else None) if adds else None
        if found[2]:
            why = f"{name} is set element by element"
            variables[name] = (Item(self.values.unknown(why, word.line, f"${name}"), 0),)
        elif word.array is not None:
            items = [item for inner in word.array for item in self.values.fields(inner)]
            listed = before if isinstance(before, tuple) else ()
            self.values.spend(len(listed))
            variables[name] = (*listed, *items)
        else:
            value = self.values.text(word, after=len(found[0]))
            value = f"{before}{value}" if isinstance(before, str) else value
            self.values.spend(len(value))
            variables[name] = value

    def called(self, found: list[Item], line: int) -> None:
        """Note the arguments of a command that is the program, or of one that has the program's call in quotes."""
        texts = [each.text[-LONGEST:] for each in found]
        for at, (previous, text) in enumerate(zip(["", *texts], texts, strict=False)):
            if self.program.pattern.fullmatch(f"{previous} {text}"):
                self.calls.append((line, found[at + 1 :]))
                return
        for at, (text, its_line) in enumerate(found):
            if len(text.split()) > 1 and self.program.pattern.search(text):
                shell = at > 0 and re.fullmatch(r"-\w*c", texts[at - 1]) is not None
                arguments = tuple(found[at + 2 :]) if shell else self.values.arguments
                self.apart(lambda text=text, line=its_line, own=arguments: self.inside(text, line, own))  # type: ignore[misc]


def _assigned(word: RawWord) -> re.Match[str] | None:
    """The name of a word that is an assignment; None: it is none."""
    return _ASSIGNED.match("".join(_unquoted(word)))


def _unquoted(word: RawWord) -> Iterator[str]:
    """The unquoted text that a word begins with."""
    for part in word.parts:
        if part.quoted or part.kind != "text":
            return
        yield part.text


def _name(word: RawWord) -> str:
    found = _assigned(word)
    return found[1] if found is not None else ""


def _is_test(command: Simple) -> bool:
    first = command.words[0] if command.words else None
    return first is not None and (first.plain in _TESTS or first.parts[0].text == "((")
