import io
import re

import pytest
from rich.console import Console

from oncurve.display import (
    BeforeAfter,
    Progress,
    ScoredCompletion,
    advise,
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


def test_zeros_are_explained_once_and_then_not_printed_as_numbers() -> None:
    console = pipe(width=100)
    with Progress(6, console, Clock()) as progress:
        for number in range(1, 7):
            progress.step(step(number, reward=0.0, constant=1.0))
    text = printed(console)
    assert text.count("Every reward of the last 3 steps is 0") == 1
    assert "partial credit" in text
    assert text.count("reward 0.00 ") == 3
    assert text.count("no gradient: all groups are constant") == 3
    assert max(len(line) for line in text.splitlines()) <= 130


def history(reward: float, constant: float, count: int = 3) -> list[dict[str, float]]:
    return [step(n, reward=reward, constant=constant) for n in range(1, count + 1)]


def said(lines) -> str | None:
    found = advise(lines)
    return None if found is None else found.name


def course(count: int, first: int = 1, **values) -> list[dict[str, float]]:
    """Steps of a healthy run, metrics changed by functions of the step (or constants)."""
    healthy = {"reward": lambda s: 0.3 + 0.002 * s + 0.03 * (s % 3), "kl": lambda s: 1e-4 * s, "kl_coef": 0.001}
    healthy |= {"entropy": 0.4, "truncated": 0.1, "learning_rate": 1e-6, "constant": 0.4}
    made = named(healthy | values)
    return [
        {"step": number} | {key: value(number) if callable(value) else value for key, value in made.items()}
        for number in range(first, first + count)
    ]


def test_groups_that_teach_nothing_are_told_by_what_their_rewards_are() -> None:
    assert "not even by chance" in advise(history(0.0, 1.0)).text
    assert "same (mean 1)" in advise(history(1.0, 1.0)).text
    assert "steps all completions are cut off" in advise(course(60, truncated=1.0)).text
    assert "90% or more of the groups are the same (mean 0.01)" in advise(history(0.01, 0.9)).text
    for quiet in (history(0.0, 1.0, count=2), history(0.01, 0.89), [*history(0.0, 1.0), step(4)], []):
        assert advise(quiet) is None


def test_constant_groups_with_an_advantage_all_the_same_are_no_trouble() -> None:
    assert advise([line | {"advantage/abs_mean": 0.0} for line in history(0.0, 1.0)]) is not None
    assert advise([line | {"advantage/abs_mean": 2.1} for line in history(0.0, 1.0)]) is None


@pytest.mark.parametrize(
    ("name", "key", "sick", "changes"),
    [
        ("constant", "rollout.group_size", {"constant": 0.9}, {"constant": 0.89}),
        ("truncated", "rollout.max_new_tokens", {"truncated": 0.95}, {"truncated": 0.94}),
        ("entropy", "objective.clip_high", {"entropy": 0.009}, {"entropy": 0.011}),
        ("unmoved", "learner.learning_rate", {"kl": 1.9e-5}, {"kl": 2.1e-5}),  # as low as rounding
        ("unmoved", "learner.learning_rate", {"kl": 3e-5, "kl_coef": 0.04}, {"kl": 5e-5, "kl_coef": 0.04}),
    ],
)
def test_a_state_is_told_once_it_has_lasted(name, key, sick, changes) -> None:
    assert said(course(60)) is None
    assert said(course(60, **sick)) == name
    assert key in advise(course(60, **sick)).text
    assert said(course(60, **(sick | changes))) is None
    assert said([*course(57), *course(2, 58, **sick), *course(1, 60)]) is None
    assert said([*course(57), *course(3, 58, **sick)]) == name
    assert advise(course(60, **sick), {name}) is None
    without = [{k: v for k, v in line.items() if k not in named(sick)} for line in course(60, **sick)]
    assert said(without) is None


def test_a_run_that_has_solved_its_task_is_left_alone_until_nothing_at_all_is_left_to_learn() -> None:
    solved = {"reward": 0.97, "entropy": 0.004, "constant": 0.97}
    assert said(course(60, **solved)) is None
    assert said(course(60, **(solved | {"constant": 1.0}))) == "constant"
    assert said(course(60, **(solved | {"reward": 0.6}))) == "constant"
    assert said(course(60, **(solved | {"reward": 0.6, "constant": 0.5}))) == "entropy"
    assert said(course(60, **(solved | {"reward": -0.97}))) == "constant"


def test_a_policy_that_does_not_move_is_given_time_and_a_reference_that_moves_is_no_measure() -> None:
    assert said(course(39, kl=0.0)) is None
    assert said(course(40, kl=0.0)) == "unmoved"
    assert said(course(60, kl=0.0, kl_coef=0.0)) is None
    assert said(course(60, kl=0.0, learning_rate=lambda s: 1e-8 * s)) is None
    assert said(course(60, kl=0.0, moved=1.0)) is None


def test_a_reward_that_falls_while_the_kl_jumps_is_too_high_a_learning_rate() -> None:
    def falls(s: int) -> float:
        return 0.5 + 0.02 * (s % 2) if s < 28 else 0.2

    def jumps(s: int) -> float:
        return 0.01 if s < 28 else 0.2

    for kl in ("kl", "kl_old"):
        lines = [
            {k: v for k, v in line.items() if kl == "kl" or k != "policy/kl"} for line in course(30, **{kl: jumps})
        ]
        assert said(lines) is None
        fallen = [line | {"reward/mean": falls(int(line["step"]))} for line in lines]
        assert said(fallen) == "unstable"
        assert "lower learner.learning_rate" in advise(fallen).text
    assert said(course(30, reward=falls)) is None
    assert said(course(6, 25, reward=falls, kl=jumps)) is None  # too little before to compare with
    assert said(course(30, kl=jumps, reward=lambda s: 0.5 + 0.2 * (s % 2) - 0.1 * (s >= 28))) is None  # noise


def test_each_advice_is_given_once_in_a_run_and_truncation_is_on_the_line() -> None:
    console = pipe()
    with Progress(80, console) as progress:
        for line in course(80, kl=0.0, truncated=lambda s: min(1.0, s / 50)):
            progress.step(line)
    text = " ".join(printed(console).split())
    assert text.count("cut off at rollout.max_new_tokens") == 1
    assert text.count("The learning rate is too low") == 1
    assert "cut off 20%" in text


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
    no_std = explain_group([ScoredCompletion("", r, r - 0.25) for r in rewards])
    assert "advantage = reward - mean:" in no_std
    population = explain_group([ScoredCompletion("", r, (r - 0.25) / 0.4330127) for r in rewards])
    assert "(1 - 0.25) / 0.43 = +1.73" in population
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
