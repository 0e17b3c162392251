import io
import re

import pytest
from rich.console import Console

from oncurve.display import (
    BeforeAfter,
    Progress,
    ScoredCompletion,
    explain_group,
    is_plain,
    show_before_after,
    show_group,
    sparkline,
)
from oncurve.display.text import clock, one_line, wrapped

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


KEYS = {
    "reward": "reward/mean",
    "length": "completions/length",
    "kl": "policy/kl",
    "kl_old": "policy/kl_old",
    "kl_coef": "policy/kl_coef",
    "entropy": "policy/entropy",
    "learning_rate": "optim/learning_rate",
    "constant": "groups/constant",
    "truncated": "completions/truncated",
    "invalid": "completions/invalid",
    "skipped": "optim/updates_skipped",
    "moved": "reference/moved",
}


def named(values) -> dict[str, float]:
    """Metrics by their keys, from short names for these tests."""
    return {KEYS.get(name, name): value for name, value in values.items()}


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


def test_spans_of_time() -> None:
    assert [clock(x) for x in (7, 750, 11100, float("inf"))] == ["0:07", "12:30", "3:05:00", "?"]


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0] * 100, width=10) == "▁" * 10
    assert sparkline([]) == ""
    assert sparkline([0, float("nan"), 1], ascii_only=True) == "_#"
    assert len(sparkline(list(range(1000)), width=16)) == 16


def test_wrapping_hangs_the_items_of_a_list() -> None:
    assert wrapped("a b\n  1. cc dd", 8) == "a b\n  1. cc\n     dd"


def test_plain_where_there_is_no_terminal_no_colour_or_no_utf8(monkeypatch) -> None:
    assert is_plain(pipe())
    assert not is_plain(terminal())
    assert is_plain(Console(file=Stream("ascii"), force_terminal=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert is_plain(terminal())


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
    assert "accuracy 50%" in lines[2]
    assert len(lines) == 3


def test_what_the_first_step_has_once_does_not_count_for_the_time_left() -> None:
    console, clock_seconds = pipe(), Clock()
    with Progress(100, console, clock_seconds) as progress:
        for number, seconds in ((1, 600.0), (2, 2.0), (3, 4.0)):
            clock_seconds.now += seconds
            progress.step(step(number))
            expected = {1: 600.0, 2: 2.0, 3: 3.0}[number]
            assert progress.seconds_left() == (100 - number) * expected


def test_a_long_run_prints_some_of_its_lines_with_the_first_and_the_last() -> None:
    console = pipe()
    with Progress(601, console, Clock()) as progress:
        for number in range(1, 602):
            progress.step(step(number))
    numbers = [int(n) for n in re.findall(r"step +(\d+)/", printed(console))]
    assert numbers[0] == 1
    assert numbers[-1] == 601
    assert 50 <= len(numbers) <= 62


def test_the_time_left_of_a_resumed_run_counts_only_its_own_steps() -> None:
    clock_seconds = Clock()
    with Progress(100, pipe(), clock_seconds) as progress:
        assert progress.seconds_left() == float("inf")
        for number in (91, 92):
            clock_seconds.now += 3.0
            progress.step(step(number))
        assert progress.seconds_left() == pytest.approx(24.0)


def test_trouble_is_on_the_line() -> None:
    console = pipe()
    with Progress(1, console, Clock()) as progress:
        progress.step(step(1, invalid=3.0, skipped=1.0))
    assert "invalid 3  updates skipped 1" in printed(console)


def test_the_live_line_is_redrawn_in_colour_and_stays_at_the_end() -> None:
    console = terminal()
    with Progress(2, console, Clock()) as progress:
        progress.step(step(1))
        progress.say("[bold]a word[/bold]")
        progress.step(step(2, **{"eval/accuracy": 0.625}))
    text = printed(console)
    assert "\x1b[" in text
    assert "[bold]a word[/bold]" in text
    assert "▁" in text
    last = letters(text[text.rindex("step ") :])
    assert "2/2" in last
    assert "accuracy 62%" in last


def test_a_narrow_terminal_folds_between_fields() -> None:
    console = terminal(width=60)
    with Progress(2, console, Clock()) as progress:
        progress.step(step(1))
    lines = [letters(line) for line in re.split(r"[\r\n]", printed(console))]
    assert 40 < max(len(line) for line in lines) <= 60


def test_zeros_are_not_printed_as_numbers_once_they_last() -> None:
    console = pipe(width=100)
    with Progress(6, console, Clock()) as progress:
        for number in range(1, 7):
            progress.step(step(number, reward=0.0, constant=1.0))
    text = printed(console)
    assert text.count("reward 0.00 ") == 2
    assert text.count("no gradient: all groups are constant") == 4


def test_advice_is_set_off_and_wrapped_and_truncation_is_on_the_line() -> None:
    console = pipe(width=60)
    with Progress(2, console, Clock()) as progress:
        progress.step(step(1, truncated=0.2))
        progress.advise("cause " * 30 + "\n  1. change it")
    text = printed(console)
    assert "cut off 20%" in text
    assert "\n\ncause" in text
    assert "\n  1. change it\n" in text
    assert max(len(line) for line in text.partition("\n\n")[2].splitlines()) <= 60


def group() -> list[ScoredCompletion]:
    return [
        ScoredCompletion("7*8=54\n#### 54", 0.0, -0.5, "length"),
        ScoredCompletion("7*8=56\n#### 56", 1.0, 1.5),
        ScoredCompletion("[red]no[/red]\x1b[31m", 0.0, -0.5),
        ScoredCompletion("?", 0.0, -0.5),
    ]


def test_a_group_in_plain_lines_is_ranked_and_worked_out() -> None:
    console = pipe()
    show_group(console, "What is 7*8?\x1b[2J", group(), "One group of step 3")
    text = printed(console)
    assert "\x1b" not in text
    rows = [line.strip() for line in text.splitlines()]
    assert rows[1:3] == ["One group of step 3", r"What is 7*8?\x1b[2J"]
    assert rows[5] == "1.00      +1.50  7*8=56 | #### 56"
    assert "0.00      -0.50  7*8=54 | #### 54 (cut off)" in rows
    assert r"0.00      -0.50  [red]no[/red]\x1b[31m" in rows
    assert "(1 - 0.25) / 0.50 = +1.50" in rows
    assert "divided by 4 - 1 = 3: 4 are a sample" in " ".join(rows)
    assert "(0 - 0.25) / 0.50 = -0.50" in rows


def test_a_group_on_a_terminal_is_coloured_by_advantage() -> None:
    console = terminal()
    show_group(console, "What is 7*8?", group())
    text = printed(console)
    assert "\x1b[36m7*8=56 ⏎ #### 56" in text
    assert "█│" in text.replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert "[red]no[/red]" in text
    assert "more likely" in text


def test_the_explanation_fits_the_rule_that_was_used() -> None:
    rewards = (1.0, 0.0, 0.0, 0.0)
    other = explain_group([ScoredCompletion("", r, 7 * r - 1) for r in rewards])
    assert "how far above (+) or below (-)" in other
    assert "standard deviation" not in other
    assert "teaches nothing" in explain_group([ScoredCompletion("", 0.5, 0.0)] * 3)
    assert "has a reward" in explain_group([ScoredCompletion("", None, None)])


def test_completions_without_a_reward_are_last_and_say_so() -> None:
    console = pipe()
    show_group(console, "p", [ScoredCompletion("broken", None, None), *group()])
    assert re.search(r"none +none  broken", printed(console))
    assert printed(console).index("broken") > printed(console).index("?")


def test_before_and_after() -> None:
    item = BeforeAfter("What is\n7*8?", "56", "7*8=54\n#### 54\x1b[2J", False, "", True)
    plain, coloured = pipe(), terminal()
    for console in (plain, coloured):
        show_before_after(console, [item])
    assert r"before wrong  7*8=54 | #### 54\x1b[2J" in printed(plain)
    assert "after  right  (nothing)\n" in printed(plain)
    assert "(answer: 56)" in printed(plain)
    assert "\x1b" not in printed(plain)
    assert "\x1b[2J" not in printed(coloured)


def test_what_the_encoding_cannot_write_does_not_stop_the_run() -> None:
    console = pipe("ascii")
    show_group(console, "π?", [ScoredCompletion("naïve", 1.0, 0.7), ScoredCompletion("b", 0.0, -0.7)])
    show_before_after(console, [BeforeAfter("π", "1", "ñ", False, "ok", True)])
    with Progress(1, console, Clock()) as progress:
        progress.say("πάντα")
        progress.step(step(1))
    assert "na?ve" in printed(console)
    assert printed(console).isascii()


def test_the_curve_of_a_resumed_run_begins_with_its_earlier_steps() -> None:
    console = pipe()
    with Progress(4, console, Clock(), rewards=[0.0, 0.1]) as progress:
        progress.step({"step": 3.0, "reward/mean": 0.2})
    assert "[_=#  " in console.file.getvalue()


def test_no_word_of_a_wrapped_line_is_broken() -> None:
    text = "a rate-too-low at " + "runs/" * 30 + " and a well-known end"
    for width in range(10, 60):
        assert wrapped(text, width).split() == text.split()
