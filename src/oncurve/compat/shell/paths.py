"""The ways through a script whose conditions are not known: each is followed, and their ends are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from oncurve.compat.shell.commands import Block
from oncurve.compat.shell.values import Item, Value, Values

State = tuple[dict[str, Value | None], tuple[Item, ...]]


class Left(Exception):  # noqa: N818 - no error: a way through the script that ends here
    """`return`, `break`, `continue` or `exit`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass
class Paths:
    """The state of a script: its values, its functions, and the ways that left a function or a loop that is open."""

    values: Values
    functions: dict[str, Block] = field(default_factory=dict)
    left: list[tuple[str, State]] = field(default_factory=list)

    def state(self) -> State:
        """The variables and arguments as they are."""
        self.values.spend(1 + len(self.values.variables))
        return dict(self.values.variables), self.values.arguments

    def restore(self, state: State) -> None:
        """Make the variables and arguments those of `state`."""
        self.values.variables, self.values.arguments = dict(state[0]), state[1]

    def apart(self, follow: Callable[[], bool | None]) -> bool | None:
        """Follow a process of its own: what it sets is forgotten."""
        before, left, functions = self.state(), self.left, dict(self.functions)
        self.left = []
        try:
            return follow()
        except Left:
            return None
        finally:
            self.restore(before)
            self.left, self.functions = left, functions

    def ways(self, ways: Iterable[Callable[[], object]], line: int) -> bool | None:
        """Follow each of several ways from here; what they make different is not known after them."""
        before, ends = self.state(), list[State]()
        kind = ""
        for way in ways:
            self.restore(before)
            try:
                way()
            except Left as found:
                kind = found.kind
                self.left.append((kind, self.state()))
            else:
                ends.append(self.state())
        if not ends:
            self.left.pop()
            raise Left(kind)
        self.merge(ends, line)
        return None

    def merge(self, ends: Sequence[State], line: int) -> None:
        """Go on from several ends of the ways that lead here."""
        self.restore(ends[0])
        names = dict.fromkeys(name for variables, _ in ends for name in variables)
        self.values.spend(len(names) * len(ends))
        for name in names:
            found = [plain(variables.get(name, self.values.environment.get(name))) for variables, _ in ends]
            if any(each != found[0] for each in found):
                why = f"{name} depends on what happens from line {line} on, which is not known"
                self.values.variables[name] = self.values.unknown(why, line, f"${name}")
        if any(plain(arguments) != plain(ends[0][1]) for _, arguments in ends):
            why = f"the arguments depend on what happens from line {line} on, which is not known"
            self.values.arguments = (Item(self.values.unknown(why, line, "$@"), 0),)

    def gathered(self, kinds: tuple[str, ...], line: int, follow: Callable[[], object]) -> None:
        """Follow a function's or a loop's body; the ways that left it by one of `kinds` come together after it."""
        outer, self.left = self.left, []
        ends = list[State]()
        try:
            follow()
            ends.append(self.state())
        except Left as found:
            self.left.append((found.kind, self.state()))
        ends += [state for kind, state in self.left if kind in kinds]
        others = [each for each in self.left if each[0] not in kinds]
        self.left = [*outer, *others]
        if not ends:
            raise Left(self.left.pop()[0])
        self.merge(ends, line)


def plain(value: Value | None) -> object:
    """A value without its lines."""
    return tuple(item.text for item in value) if isinstance(value, tuple) else value
