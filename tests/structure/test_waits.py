"""No wait is without a limit: a process or a thread that never answers must not stop the run for good."""

import ast
from collections.abc import Iterator
from pathlib import Path

from fakes.sources import tree_of
from fakes.tables import table

SOURCE = Path(__file__).parents[2] / "src" / "oncurve"
FILES = sorted(SOURCE.rglob("*.py"))

WITHOUT_LIMIT = {(file, call): reason for file, call, reason in table("waits", "without_limit")}
"""Waits whose limit is elsewhere, with the reason."""

LIMIT_AFTER = {"wait": 0, "join": 0, "get": 0, "result": 0, "acquire": 1, "select": 0, "communicate": 1, "wait_for": 1}
"""Methods that wait, and how many positional arguments come before the limit."""

BY_KEYWORD = {"run", "check_output", "check_call", "call"}
"""Functions of `subprocess` that wait; their limit is a keyword."""

ON_SOCKETS = {"recv", "recv_into", "recv_fds", "recvmsg", "accept", "connect", "sendall", "send_fds"}
"""They wait as long as `settimeout` says, or are given to something that has a limit."""

ON_CHILDREN = {"waitpid", "waitid"}


def limitless(code: str) -> Iterator[str]:
    """The calls of a module that may wait for ever, each with its line before it."""
    tree = tree_of(code)
    has_limit = "settimeout(" in code
    bounded = {  # self._wait(work) has a limit of its own
        id(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("._wait")
        for argument in call.args
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        name, owner = call.func.attr, ast.unparse(call.func.value)
        limits = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg in ("timeout", "seconds")}
        given = bool(limits) and "None" not in limits.values()
        if owner == "select" and name == "select":
            given = len(call.args) == 4
        elif owner == "ray" and name in ("get", "wait"):
            given = given and "timeout" in limits
        elif owner == "subprocess" and name in BY_KEYWORD:
            pass
        elif name in LIMIT_AFTER and not is_no_wait(name, owner, call):
            later = call.args[LIMIT_AFTER[name] :]
            given = given or (bool(later) and ast.unparse(later[0]) not in ("None", "True"))
        elif name in ON_SOCKETS:
            given = has_limit or id(call) in bounded
        elif name in ON_CHILDREN:
            given = "WNOHANG" in ast.unparse(call)
        else:
            continue
        if not given:
            yield f"line {call.lineno}: {ast.unparse(call)}"


def is_no_wait(name: str, owner: str, call: ast.Call) -> bool:
    """Whether a method is another one of the same name: of a string, a path, a dictionary, a table of metrics."""
    if name == "join":
        return owner.startswith(("'", '"', "f'", 'f"', "os.path"))
    return name == "result" and owner.rpartition(".")[2] in ("metrics", "steps")


def test_no_wait_is_without_a_limit() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), line.partition(": ")[2]): line
        for path in FILES
        for line in limitless(path.read_text(encoding="utf-8"))
    }
    assert [(key[0], line) for key, line in found.items() if key not in WITHOUT_LIMIT] == []
    assert [key for key in WITHOUT_LIMIT if key not in found] == []


def test_what_starts_a_process_in_a_test_ends_it_with_the_test() -> None:
    tests, inside = SOURCE.parents[1] / "tests", {"test_view.py", "test_workers.py", "episodes.py", "toy_cluster.py"}
    found = {path.name for path in tests.rglob("*.py") if "subprocess.Popen" + "(" in path.read_text(encoding="utf-8")}
    assert found - inside == {"started.py"}
