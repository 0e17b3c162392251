"""The door through which words leave the process: nothing steers the terminal, nothing that refuses is an error."""

import ast
import io
import json
import logging
import os
import pty
import signal
import subprocess
import sys
import tomllib
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.live import Live
from rich.text import Text

from fakes.started import start_process
from fakes.tables import table
from fakes.waiting import errors_with
from oncurve.base import output
from oncurve.display import Screen, say

HOSTILE = "\x1b[2J\x1b]52;c;aGk=\x07 \x9b31m \x00 \r \x08 \u202e \u2066 \u200f \ud800 \x7f \u2028"
SAFE = r"\x1b[2J\x1b]52;c;aGk=\x07 \u009b31m \x00 \x0d \x08 \u202e \u2066 \u200f \ud800 \x7f \u2028"


def steers(text: str) -> bool:
    """Whether a terminal, or the order of what it shows, would be changed by `text`."""
    codes = {ord(character) for character in text} - {0x0A, 0x09}
    marks = {0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
    return any(code < 0x20 or 0x7F <= code <= 0x9F or code in marks or 0xD800 <= code <= 0xDFFF for code in codes)


@given(st.text(st.characters(codec=None, categories=None)))
def test_what_is_visible_steers_nothing_and_stays_as_it_is(text: str) -> None:
    once = output.visible(text)
    assert not steers(once)
    assert output.visible(once) == once
    if not steers(text):
        assert once == text


def test_every_control_character_and_mark_has_its_escape() -> None:
    assert output.visible(HOSTILE) == SAFE
    assert output.visible("naïve 数学\n\t👩‍🔬") == "naïve 数学\n\t👩‍🔬"
    text = f'name = "{output.visible(chr(0x202E))}"'
    assert tomllib.loads(text)["name"] == json.loads('"\\u202e"') == "\u202e"  # what TOML and JSON call it, too


class Refusing(io.StringIO):
    """A stream that fails after some writes."""

    def __init__(self, error: BaseException, good: int = 0) -> None:
        super().__init__()
        self.error, self.good = error, good

    def write(self, text: str) -> int:
        if not self.good:
            raise self.error
        self.good -= 1
        return super().write(text)


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(), OSError(28, "full"), ValueError("closed"), BlockingIOError(), RuntimeError("reentrant")],
)
@pytest.mark.parametrize("door", ["say", "complain", "screen", "live", "plain"])
def test_a_stream_that_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch, door: str, error: Exception) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Refusing(error, good=1))
    for _ in range(3):
        if door == "say":
            output.say("a line")
        elif door == "complain":
            output.complain("a line")
        elif door == "screen":
            say(Screen(), "a line")
        elif door == "live":
            with Live(Text("x"), console=Screen(force_terminal=True), auto_refresh=False) as live:
                live.refresh()
        else:
            print("a line", file=output.Plain(sys.stdout), flush=True)


def test_a_line_that_a_reader_does_not_take_is_dropped_once_the_run_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_hurried", False)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            pass
    os.set_blocking(writing, True)
    before = signal.signal(signal.SIGALRM, lambda number, frame: output.hurry(frame))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    stream = os.fdopen(writing, "w")
    for _ in range(2):  # the first waits for the alarm
        assert output.Plain(stream).write("a line\n") == len("a line\n")
    signal.signal(signal.SIGALRM, before)
    os.close(reading)
    with suppress(OSError):  # what is left in its buffer
        stream.close()


def test_in_the_command_prints_logs_warnings_and_tracebacks_are_visible(capsys: pytest.CaptureFixture[str]) -> None:
    with output.installed():
        print(HOSTILE)  # noqa: T201
        sys.stderr.write(HOSTILE)
        sys.stderr.write(warnings.formatwarning(UserWarning(HOSTILE), UserWarning, __file__, 1))
        logging.lastResort.handle(logging.makeLogRecord({"msg": HOSTILE, "levelno": 40, "levelname": "ERROR"}))
        assert not sys.stdout.isatty()
    said = capsys.readouterr()
    assert not steers(said.out + said.err)
    assert said.out == SAFE + "\n"
    assert said.err.count(SAFE) == 3


def test_our_own_warnings_and_log_records_are_visible_in_any_process(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(UserWarning, match="2J") as found:
        output.warn(HOSTILE)
    assert str(found[0].message) == SAFE
    from oncurve.rewards import component

    component.log.warning("reward %s: %s", "r", HOSTILE)
    assert caplog.messages == [f"reward r: {SAFE}"]


def test_a_screen_keeps_its_own_colours_and_makes_all_others_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = io.StringIO()
    screen = Screen(file=stream, force_terminal=True, color_system="truecolor", width=300)
    screen.print(Text(HOSTILE, "bold"))
    written = stream.getvalue()
    assert written.startswith("\x1b[1m")
    assert "\x1b[2J" not in written
    assert r"\x1b[2J\x1b]52;c;aGk=" in written  # rich itself drops the bell, the return and others
    screen.print(HOSTILE)
    say(screen, HOSTILE)
    assert not any(found in stream.getvalue() for found in ("\x1b[2J", "\x9b", "\u202e", "\r"))


def test_what_workers_print_is_passed_on_through_the_door(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(output.worker_stderr(), "\x1b[31mred é".encode())
    assert errors_with("é", capfd) == "\\x1b[31mred é"


SOURCE = Path(__file__).parents[2] / "src" / "oncurve"
DOOR = {"base/output.py", "display/screen.py", "processes/minder.py"}  # the minder writes the log of its server
SAYS = {"print", "typer.echo", "typer.secho", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write",
        "sys.__stdout__.write", "sys.__stderr__.write", "Console", "rich.print", "rich.console.Console",
        "warnings.warn"}  # fmt: skip
WORKERS = {"processes/pool/serve.py"}  # their standard error is a pipe to the door


def test_nothing_is_printed_past_the_door() -> None:
    """Every console is a `Screen`, every line is `say`, `complain`, `warn` or `urgent`."""
    past = []
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if name not in DOOR else ():
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                raw = called == "os.write" and name not in WORKERS and ast.unparse(node.args[0]) in ("1", "2")
                past += [f"{name}:{node.lineno}: {called}"] if called in SAYS or raw else []
    assert past == []


@pytest.mark.parametrize(("words", "begins"), table("output", "begins"))
def test_a_terminal_is_told_what_is_loaded_before_anything_heavy_is_imported(words: list[str], begins: str) -> None:
    light = "import sys; sys.modules['numpy'] = sys.modules['torch'] = None; from oncurve.cli import main; main()"
    command = [sys.executable, "-c", light, *words]
    ours, theirs = pty.openpty()
    start_process(*command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    with open(ours, "rb") as terminal:
        assert terminal.readline().decode().rstrip() == begins
        with suppress(OSError):  # so a terminal ends
            terminal.read()
    assert "loading" not in subprocess.run(command, capture_output=True, text=True, check=False).stdout
