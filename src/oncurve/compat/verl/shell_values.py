"""The values of a shell script's words, as far as they can be known without executing anything.

What is not known (a command's output, a variable that is set nowhere) becomes a mark in the text, `UNKNOWN`, with its
reason; it does no harm where it is not needed. Known without executing: `date`, `pwd`, `basename`, `dirname`, `echo`,
and whether Python could import a module.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import operator
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from oncurve.compat.verl.shell_words import Operator, Piece, Word, parts_of, tokens_of
from oncurve.errors import ConfigError

UNKNOWN = re.compile("\ue000([0-9]+)\ue001")
"""The mark of what is not known, with the number of its reason."""

LONGEST = 100_000
_PARAMETER = re.compile(
    r"(?P<length>#?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?"
    r"(?P<op>:?[-=?+]|##?|%%?|//?|,,?|\^\^?|:)?(?P<argument>.*)",
    re.DOTALL,
)
_IMPORTS = re.compile(
    r"\s*python3?\s+-c\s+(['\"])import (?P<module>\w+)\1\s*(?:[0-9]*&?>\S+\s*|2>&1\s*)*"
    r"&&\s*echo (?P<there>[\w.-]+)\s*\|\|\s*echo (?P<missing>[\w.-]+)\s*"
)
_CHANGES = ("RANDOM", "SECONDS", "LINENO", "PPID", "EPOCHSECONDS")


@dataclass
class Values:
    """The variables of a script as it is read. `script`: its path; `arguments`: its own, of which there are none."""

    script: str
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    unset: set[int] = field(default_factory=set)

    def unknown(self, reason: str, unset: bool = False) -> str:
        """The mark of a value that is not known. `unset`: in a test it is an empty text."""
        self.reasons.append(reason)
        if unset:
            self.unset.add(len(self.reasons) - 1)
        return f"\ue000{len(self.reasons) - 1}\ue001"

    def reason(self, text: str) -> str:
        """Why a text with marks is not known."""
        found = UNKNOWN.search(text)
        return "" if found is None else self.reasons[int(found[1])]

    def in_test(self, text: str) -> str:
        """A text with variables that are set nowhere as empty, which they are in a test."""
        return UNKNOWN.sub(lambda mark: "" if int(mark[1]) in self.unset else mark[0], text)

    def fields(self, word: Word) -> list[str]:
        """The words that a word becomes: unquoted values are split at blanks, `"${X[@]}"` is one word an item."""
        found, current, present, no_items = list[str](), "", False, False
        for part in word.parts:
            values = self.part(part, word.line)
            if not part.quoted and part.kind != "text":
                values = [piece for value in values for piece in value.split()]
            if not values:
                no_items = no_items or part.quoted
                continue
            current += values[0]
            for value in values[1:]:
                found.append(current)
                current = value
            present = True
        return [*found, current] if present and (current or found or not no_items) else found

    def text(self, word: Word) -> str:
        """The value of a word in an assignment, where nothing is split."""
        return "".join(" ".join(self.part(part, word.line)) for part in word.parts)

    def part(self, part: Piece, line: int) -> list[str]:
        """The values of a part: one, but for an array."""
        if part.kind == "text":
            return [part.text]
        if part.kind == "command":
            return [self.output(part.text, line)]
        if part.kind == "arithmetic":
            return [self.arithmetic(part.text, line)]
        return self.parameter(part.text, line)

    def parameter(self, inside: str, line: int) -> list[str]:
        """The values of `${inside}`."""
        found = _PARAMETER.fullmatch(inside)
        if found is None or inside.startswith("!"):
            return [self.unknown(f"${{{inside}}} is not read; write its value")]
        name, index, op = found["name"], found["index"], found["op"]
        if name == "#" and not found["argument"]:
            return ["0"]
        value = self.variable(name, index)
        if found["length"]:
            return [str(len(value) if isinstance(value, list) else len(value or ""))]
        if op is None:
            return self.set_value(value, name, line)
        argument = "".join("".join(self.part(part, line)) for part in parts_of(found["argument"]))
        return self.operated(value, name, op, argument, line)

    def operated(self, value: str | list[str] | None, name: str, op: str, argument: str, line: int) -> list[str]:
        """The value of `${name` followed by an operator."""
        missing = value is None or (op[0] == ":" and len(op) > 1 and value in ("", []))
        if op in ("-", ":-", "=", ":="):
            if missing and op in ("=", ":="):
                self.variables[name] = argument
            return [argument] if missing else self.set_value(value, name, line)
        if op in ("?", ":?"):
            return self.set_value(None if missing else value, name, line)
        if op in ("+", ":+"):
            return [] if missing else [argument]
        if not isinstance(value, str) or UNKNOWN.search(value + argument):
            return self.set_value(value if isinstance(value, str) else None, name, line)
        return [_changed(value, op, argument)]

    def set_value(self, value: str | list[str] | None, name: str, line: int) -> list[str]:
        """A variable's values; the mark of one that is set nowhere."""
        if value is not None:
            return value if isinstance(value, list) else [value]
        if name.isdigit():
            reason = f"${name}, the script's own argument, is not given; write {name} of it into the script"
            return [self.unknown(f"line {line}: {reason}", unset=True)]
        how = f"set it: {name}=... oncurve ..."
        return [self.unknown(f"line {line}: ${name} is set neither in the script nor in the environment; {how}", True)]

    def variable(self, name: str, index: str | None = None) -> str | list[str] | None:
        """A variable of the script, else of the environment; None: it is set nowhere."""
        if name in ("@", "*"):
            return []
        if name in ("?", "!", "$", "-") or name in _CHANGES:
            return self.unknown(f"${name} is another one in every run; write a value")
        if name in ("0", "BASH_SOURCE"):
            return self.script
        value = self.variables.get(name, os.environ.get(name))
        if index is None or index in ("@", "*"):
            return (value[0] if value else None) if isinstance(value, list) and index is None else value
        if isinstance(value, list):
            return value[int(index)] if index.isdigit() and int(index) < len(value) else None
        return value if index == "0" else None

    def arithmetic(self, text: str, line: int) -> str:
        """The value of `$((text))`."""
        filled = "".join("".join(self.part(part, line)) for part in parts_of(text))
        for _ in range(10):
            filled = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda name: self.operand(name[0], line), filled)
        if UNKNOWN.search(filled):
            return self.unknown(self.reason(filled))
        try:
            return str(_calculated(filled))
        except ConfigError as error:
            return self.unknown(f"line {line}: $(({text})): {error}")

    def operand(self, name: str, line: int) -> str:
        """A variable in an expression; an empty one is 0."""
        return "".join(self.set_value(self.variable(name), name, line)) or "0"

    def output(self, text: str, line: int) -> str:
        """The output of `$(text)`, where it is known without executing it."""
        imports = _IMPORTS.fullmatch(text)
        if imports is not None:
            there = importlib.util.find_spec(imports["module"]) is not None
            return imports["there"] if there else imports["missing"]
        try:
            tokens = tokens_of(text)
        except ConfigError:
            tokens = []
        words = [self.text(each) for each in tokens if isinstance(each, Word)]
        simple = words and not any(isinstance(each, Operator) for each in tokens)
        known = _OUTPUTS.get(words[0]) if simple else None
        found = known(words[1:]) if known is not None else None
        if found is not None:
            return found
        return self.unknown(f"line {line}: $({text}) is a command, and nothing is executed; write its output there")


def _date(arguments: Sequence[str]) -> str | None:
    formats = [each for each in arguments if each.startswith("+")]
    return time.strftime(formats[0][1:]) if len(arguments) == 1 and formats else None


def _one_path(change: Callable[[str], str]) -> Callable[[Sequence[str]], str | None]:
    return lambda arguments: change(arguments[0]) if len(arguments) == 1 else None


_OUTPUTS: dict[str, Callable[[Sequence[str]], str | None]] = {
    "date": _date,
    "pwd": lambda arguments: None if arguments else os.getcwd(),
    "basename": _one_path(lambda path: os.path.basename(path.rstrip("/"))),
    "dirname": _one_path(lambda path: os.path.dirname(path) or "."),
    "echo": lambda arguments: " ".join(arguments),
}


def _changed(value: str, op: str, argument: str) -> str:
    """`${value` with `#`, `%`, `/`, `,` or `^`: a matching part left out or replaced, or other letters."""
    if op[0] in ",^":
        change = str.lower if op[0] == "," else str.upper
        return change(value) if len(op) == 2 else change(value[:1]) + value[1:]
    if op[0] == "/":
        pattern, _, instead = argument.partition("/")
        found = re.compile(fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z"))
        return found.sub(lambda _: instead, value, count=0 if op == "//" else 1) if pattern else value
    if op == ":":
        start, _, length = argument.partition(":")
        begin = int(start) if start.strip().lstrip("-").isdigit() else 0
        return value[begin:][: int(length)] if length.isdigit() else value[begin:]
    longest, ends = len(op) == 2, range(len(value) + 1)
    for end in reversed(ends) if longest else ends:
        cut = value[:end] if op[0] == "#" else value[len(value) - end :]
        if fnmatch.fnmatchcase(cut, argument):
            return value[end:] if op[0] == "#" else value[: len(value) - end]
    return value


def _divided(left: int, right: int) -> int:
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.Mod: lambda left, right: left - right * _divided(left, right),
}
_COMPARED: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _calculated(text: str) -> int:
    """The value of an expression of whole numbers. Raises ConfigError: it is none, or too large."""
    try:
        return _of_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        raise ConfigError("no expression of whole numbers; write its value") from None


def _of_node(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**63:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_of_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_of_node(node.left), _of_node(node.right))
        if abs(found) < 2**63:
            return found
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        return int(_COMPARED[type(node.ops[0])](_of_node(node.left), _of_node(node.comparators[0])))
    raise ValueError
