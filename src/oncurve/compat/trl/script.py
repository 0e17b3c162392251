"""A script's `GRPOConfig(...)` and `GRPOTrainer(...)`, read without running it.

Covered: literals, arithmetic of numbers, f-strings of known names, names that are assigned such a value once at the top
of the file, `dict(...)`, keyword arguments and `**` of a known table, `load_dataset("name", split="train")` as a data
set, `LoraConfig(...)`. Not covered: anything that must run; the error names argument and line.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.base.paths import usable_path
from oncurve.compat.dialect import Key, Line, Said, Translation
from oncurve.compat.loading import config_of
from oncurve.compat.trl.config import FIELDS, plain
from oncurve.compat.trl.dialect import DIALECT, TRAINER, TRAINER_KEYS, Told, check_argument
from oncurve.compat.trl.peft_keys import lora_of

LARGEST = 10**6
"""The longest value, in characters or items, that arithmetic in a script may make."""


class UnreadableError(Exception):
    """An expression whose value only running the script would tell."""


def read_script(path: str | Path) -> Translation:
    """The translation of a script's settings. Raises ConfigError: no file, no Python, or a line for each argument that
    cannot be read or translated, with its place."""
    file = Path(path)
    usable_path(file, "SCRIPT")
    try:
        source = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    return read_source(source, str(file))


def read_source(source: str | bytes, name: str = "script.py") -> Translation:
    """`read_script` of a script's text, which messages call `name`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{name}{line}: this is no Python: {said}") from None
    try:
        return _Script(tree, name).translation()
    except RecursionError:
        raise ConfigError(f"{name}: an expression is nested too deeply to be read") from None


class _Script:
    """A parsed script, and what has been found wrong in it."""

    def __init__(self, tree: ast.Module, name: str) -> None:
        self.tree, self.name = tree, name
        self.problems: list[str] = []
        self.known = dict(_assigned(tree))

    def translation(self) -> Translation:
        """The settings of the config and, as far as they are readable, of the trainer."""
        config, trainer = self._only("GRPOConfig"), self._only("GRPOTrainer")
        if config is None and trainer is None:
            raise ConfigError(f"{self.name}: there is no call of GRPOConfig or GRPOTrainer in it")
        said = {} if config is None else self._config(config)
        if trainer is not None:
            said |= self._trainer(trainer)
        try:
            found = DIALECT.translate(said)
        except ConfigError as error:
            raise ConfigError("\n".join([*self.problems, str(error)])) from None
        if self.problems:
            raise ConfigError("\n".join(self.problems))
        config_of(_complete(found))  # what cannot be together is refused now
        return found

    def _only(self, wanted: str) -> ast.Call | None:
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and _called(node) == wanted]
        if len(calls) > 1:
            lines = " and ".join(str(call.lineno) for call in calls)
            raise ConfigError(f"{self.name}: {wanted} is called in lines {lines}; leave one of them")
        return calls[0] if calls else None

    def _place(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}"

    def _config(self, call: ast.Call) -> dict[str, Said]:
        """The fields of `GRPOConfig(...)`."""
        said: dict[str, Said] = {}
        for position, node in enumerate(call.args):
            if position or isinstance(node, ast.Starred):
                self.problems.append(f"{self._place(node)}: GRPOConfig: write its arguments by name")
                continue
            self._add(said, "output_dir", node)
        for keyword in call.keywords:
            if keyword.arg is not None:
                self._add(said, keyword.arg, keyword.value)
                continue
            table = self._read("GRPOConfig: **", keyword.value)
            if table is not None and not (isinstance(table, dict) and all(isinstance(key, str) for key in table)):
                self.problems.append(f"{self._place(keyword.value)}: GRPOConfig: ** of no table of names")
            elif table is not None:
                twice = [f"{self._place(keyword.value)}: {name}: given twice" for name in table if name in said]
                self.problems += twice
                said |= {name: Said(plain(name, value), self._place(keyword.value)) for name, value in table.items()}
        return said

    def _add(self, said: dict[str, Said], name: str, node: ast.expr) -> None:
        """Read one argument; one without a meaning may be anything."""
        if name in said:
            self.problems.append(f"{self._place(node)}: {name}: given twice")
            return
        idle = name in FIELDS and not FIELDS[name].ours and not FIELDS[name].refused
        try:
            value = self.value(node)
        except UnreadableError as error:
            if not idle:
                self.problems.append(f"{self._place(node)}: {name}: {error}")
                return
            value = _source(node)
        said[name] = Said(plain(name, value), self._place(node))

    def _read(self, what: str, node: ast.expr) -> Any:
        try:
            return self.value(node)
        except UnreadableError as error:
            self.problems.append(f"{self._place(node)}: {what}: {error}")
            return None

    def _trainer(self, call: ast.Call) -> dict[str, Said]:
        """The arguments of `GRPOTrainer(...)`: settings where they are readable, and the rest as it stands."""
        names = [key.theirs.removeprefix(TRAINER) for key in TRAINER_KEYS]
        given = [(names[at], node) for at, node in enumerate(call.args[: len(names)]) if not _starred(node)]
        said: dict[str, Said] = {}
        for name, node in [*given, *((k.arg, k.value) for k in call.keywords if k.arg is not None)]:
            try:
                check_argument(name)
                value = self._argument(name, node)
            except (ConfigError, UnreadableError) as error:
                self.problems.append(f"{self._place(node)}: {name}: {error}")
                continue
            said[TRAINER + name] = Said(value, self._place(node))
        return said

    def _argument(self, name: str, node: ast.expr) -> Any:
        if name == "peft_config":
            return self._peft(node)
        if name == "model":
            value = self._or_none(node)
            return Told(_source(node), {"model.path": value} if isinstance(value, str) else {})
        if name in ("train_dataset", "eval_dataset"):
            return Told(_source(node), self._dataset(node, "eval_" if name == "eval_dataset" else ""))
        if name == "reward_funcs":
            return Told(_source(node), self._rewards(node))
        value = self._or_none(node)
        return _source(node) if value is None and not _is_none(node) else value

    def _or_none(self, node: ast.expr) -> Any:
        try:
            return self.value(node)
        except UnreadableError:
            return None

    def _rewards(self, node: ast.expr) -> dict[str, Any]:
        """Rewards that are reward models by path; none where one is a function, which only the script has."""
        listed = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
        paths = [self._or_none(each) for each in listed]
        if not all(isinstance(path, str) for path in paths):
            return {}
        return {"rewards": [{"kind": "model", "path": path} for path in paths]}

    def _dataset(self, node: ast.expr, prefix: str) -> dict[str, Any]:
        """The settings of `load_dataset("name", "subset", split="train")`; none of anything else."""
        call = self._unnamed(node)
        if not isinstance(call, ast.Call) or _called(call) != "load_dataset" or not call.args:
            return {}
        words = [self._or_none(argument) for argument in call.args]
        named = {k.arg: self._or_none(k.value) for k in call.keywords if k.arg is not None}
        if not isinstance(words[0], str):
            return {}
        settings: dict[str, Any] = {f"data.{prefix}path": words[0]}
        subset = named.get("name", words[1] if len(words) > 1 else None)
        if isinstance(named.get("split"), str):
            settings[f"data.{prefix}split"] = named["split"]
        if not prefix and isinstance(subset, str):
            settings["data.subset"] = subset
        if not prefix and isinstance(named.get("revision"), str):
            settings["data.revision"] = named["revision"]
        return settings

    def _peft(self, node: ast.expr) -> Any:
        call = self._unnamed(node)
        if _is_none(call):
            return Told("None", {})
        if not isinstance(call, ast.Call) or _called(call) != "LoraConfig":
            raise UnreadableError("only a LoraConfig(...) is read here")
        given = {k.arg: self.value(k.value) for k in call.keywords if k.arg is not None}
        return Told(_source(call), lora_of(given))

    def _unnamed(self, node: ast.expr) -> ast.expr:
        """The expression that a name at the top of the script stands for, or the expression itself."""
        return self.known.get(node.id, node) if isinstance(node, ast.Name) else node

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression. Raises UnreadableError."""
        if depth > 50:
            raise UnreadableError("its value goes in a circle, or is nested too deeply")

        def within(inner: ast.expr) -> Any:
            return self.value(inner, depth + 1)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.List() | ast.Tuple():
                items = [within(item) for item in node.elts]
                return items if isinstance(node, ast.List) else tuple(items)
            case ast.Dict():
                return self._table(node, within)
            case ast.UnaryOp() | ast.BinOp():
                return _computed(node, within)
            case ast.JoinedStr():
                return "".join(str(within(_plain_part(part))) for part in node.values)
            case ast.Name(id=name) if name in self.known:
                return within(self.known[name])
            case ast.Call() if _called(node) == "dict" and not node.args:
                return {k.arg: within(k.value) for k in node.keywords if k.arg is not None}
            case ast.Attribute() if (last := _source(node)).startswith("torch."):
                return last
        raise UnreadableError(f"{_source(node)} is known only when the script runs; write a literal value")

    def _table(self, node: ast.Dict, within: Callable[[ast.expr], Any]) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        for key, inner in zip(node.keys, node.values, strict=True):
            value = within(inner)
            try:
                table |= value if key is None else {within(key): value}
            except TypeError:
                raise UnreadableError(f"{_source(node)} is no table") from None
        return table


def _complete(found: Translation) -> Translation:
    """The translation with held-out rows and a model where the script makes them in ways that cannot be read."""
    settings = found.settings
    more: dict[str, Any] = {}
    if settings.get("eval") and not any(key.startswith("eval_") for key in settings.get("data", {})):
        more["data.eval_fraction"] = 0.1
    if not settings.get("model", {}).get("path"):
        more["model.path"] = "some/model"
    unread = Line(Key("what the script makes", tuple(more)), "", False, more)
    return replace(found, lines=(*found.lines, unread))


OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


def _computed(node: ast.UnaryOp | ast.BinOp, within: Callable[[ast.expr], Any]) -> Any:
    """Arithmetic of numbers, and sums of texts. Raises UnreadableError: it is none, or too large."""
    operands = [within(node.operand)] if isinstance(node, ast.UnaryOp) else [within(node.left), within(node.right)]
    does = OPERATIONS.get(type(node.op))
    numbers = all(isinstance(each, (int, float)) and abs(each) <= 1e18 for each in operands)
    texts = isinstance(node.op, ast.Add) and all(isinstance(each, str) for each in operands)
    if does is None or not (numbers or texts) or (isinstance(node.op, ast.Pow) and abs(operands[1]) > 60):
        raise UnreadableError(f"{_source(node)} is known only when the script runs; write a literal value")
    try:
        value = does(*operands)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UnreadableError(f"{_source(node)} has no value: {error}") from None
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise UnreadableError(f"{_source(node)} is no number of a setting")
    if isinstance(value, str) and len(value) > LARGEST:
        raise UnreadableError(f"{shown(value)} is too long")
    return value


def _plain_part(part: ast.expr) -> ast.expr:
    """A part of an f-string without a format of its own. Raises UnreadableError."""
    if not isinstance(part, ast.FormattedValue):
        return part
    if part.format_spec is not None or part.conversion != -1:
        raise UnreadableError(f"{_source(part.value)} is formatted in the text; write a literal value")
    return part.value


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that get a value once, at the top of the script or of its main part."""
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] = counts.get(node.id, 0) + 1
    for statement in _top(tree.body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if counts[name] == 1:
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if counts[name] == 1:
                yield name, value


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a script, those under `if __name__ == "__main__":` and in `def main():` too."""
    for statement in body:
        yield statement
        guard = isinstance(statement, ast.If) and "__name__" in _source(statement.test)
        if isinstance(statement, (ast.If, ast.FunctionDef)) and (guard or getattr(statement, "name", "") == "main"):
            yield from _top(statement.body)


def _called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _source(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _starred(node: ast.expr) -> bool:
    return isinstance(node, ast.Starred)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
