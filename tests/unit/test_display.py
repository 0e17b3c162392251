import io
import re

import pytest
from rich.console import Console

from fakes.metric_names import named
from fakes.tables import table
from oncurve.demo.show import show_before_after, show_group
from oncurve.display import Progress, one_line
from oncurve.types import Completion, Group, Prompt, Score

EVIL = "\x1b[2J\x1b]0;title\x07a\x1b]52;c;aGk=\x1b\\b\x9b31m\x00\u202ec[red]\r\x08 \U0001f600"


@pytest.fixture(autouse=True)
def _colours_allowed(monkeypatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


class Stream(io.StringIO):
    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:
        return self._encoding


def pipe(encoding: str = "utf-8", **options) -> Console:
    return Console(file=Stream(encoding), highlight=False, **options)


def terminal(width: int = 120) -> Console:
    return Console(file=Stream(), force_terminal=True, width=width, highlight=False, color_system="truecolor")


def letters(text: str) -> str:
    """`text` without the escape sequences of colours and cursor."""
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def printed(console: Console) -> str:
    return console.file.getvalue()


def step(number: int, **more: float) -> dict[str, float]:
    basics = {"reward": 0.4, "length": 37.42, "kl": 0.0021, "entropy": 0.3, "constant": 0.125}
    return {"step": number, "tokens/per_second": 9123.0} | named(basics | more)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_control_characters_in_model_text_are_escapes() -> None:
    assert one_line(EVIL, 80).isprintable()
    assert "\\x1b[2J" in one_line(EVIL, 80)
    assert one_line("one\ttwo\nthree", 80) == "one two | three"
    assert one_line("a\n\n b \n", 80) == "a | b"
    assert one_line("abcdefghij", 8) == "abcde..."


def test_plain_progress_is_one_ascii_line_a_step() -> None:
    console, clock_seconds = pipe(), Clock()
    with Progress(3, console, clock_seconds) as progress:
        for number, reward in ((1, 0.25), (2, 0.5), (3, 0.75)):
            clock_seconds.now += 2.0
            more = {"eval/accuracy": 0.5} if number == 2 else {}
            progress.step(step(number, reward=reward, **more))
    lines = printed(console).splitlines()
    assert printed(console).isascii()
    assert "\x1b" not in printed(console)
    assert lines[0] == (
        "step 1/3  reward 0.250 [_             ]  length 37.4  KL 0.00210  entropy 0.300  constant groups 12%  "
        "tokens/s 9123  left 0:04"
    )
    assert "accuracy 50%" in lines[1]
    assert "left 0:02" in lines[1]
    assert "accuracy 50% (step 2)" in lines[2]
    assert len(lines) == 3


def test_the_live_line_is_redrawn_in_colour_and_stays_at_the_end() -> None:
    console = terminal()
    with Progress(2, console, Clock()) as progress:
        progress.step(step(1))
        progress.say("[bold]a word[/bold]")
        progress.step(step(2, **{"eval/accuracy": 0.625}))
    text = printed(console)
    assert [words for words in table("display", "shown_c") if words not in text] == []
    last = letters(text[text.rindex("step ") :])
    assert "2/2" in last
    assert "accuracy 62%" in last


def test_advice_is_set_off_and_wrapped_and_trouble_is_on_the_line() -> None:
    console = pipe(width=60)
    with Progress(2, console, Clock()) as progress:
        progress.step(step(1, truncated=0.2, invalid=3.0, skipped=1.0))
        progress.advise("cause " * 30 + "\n  1. change it")
    text = printed(console)
    assert [words for words in table("display", "trouble") if words not in text] == []
    assert max(len(line) for line in text.partition("\n\n")[2].splitlines()) <= 60


ADVANTAGES = (-0.5, 1.5, -0.5, -0.5)


def group() -> Group:
    texts = ("7*8=54\n#### 54", "7*8=56\n#### 56", "[red]no[/red]\x1b[31m", "?")
    completions = tuple(
        Completion((1,), text, (0.0,), "eos" if index else "length", index, 0) for index, text in enumerate(texts)
    )
    scores = tuple(Score(float(index == 1)) for index in range(len(texts)))
    return Group(Prompt(0, "What is 7*8?\x1b[2J", (1,)), completions, scores)


def test_a_group_in_plain_lines_is_ranked_and_worked_out() -> None:
    console = pipe()
    show_group(console, group(), ADVANTAGES, "One group of step 3")
    text = printed(console)
    assert "\x1b" not in text
    rows = [line.strip() for line in text.splitlines()]
    assert rows[1:3] == ["One group of step 3", r"What is 7*8?\x1b[2J"]
    assert rows[5] == "1.00      +1.50  7*8=56 | #### 56"
    assert [words for words in table("display", "shown_b") if words not in rows] == []
    assert "divided by 4 - 1 = 3: 4 are a sample" in " ".join(rows)
    assert "(0 - 0.25) / 0.50 = -0.50" in rows


def test_a_group_on_a_terminal_is_coloured_by_advantage() -> None:
    console = terminal()
    show_group(console, group(), ADVANTAGES, "One group")
    text = printed(console)
    assert [words for words in table("display", "shown_a") if words not in text] == []


def test_before_and_after() -> None:
    before = {"prompt": "What is\n7*8?", "answer": "56", "reply": "7*8=54\n#### 54\x1b[2J", "right": False}
    plain, coloured = pipe(), terminal()
    for console in (plain, coloured):
        show_before_after(console, [(before, {"reply": "", "right": True})])
    assert r"before wrong  7*8=54 | #### 54\x1b[2J" in printed(plain)
    assert "after  right  (nothing)\n" in printed(plain)
    assert "(answer: 56)" in printed(plain)
    assert "\x1b" not in printed(plain)
    assert "\x1b[2J" not in printed(coloured)
