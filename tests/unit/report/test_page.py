import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fakes.tables import table
from oncurve.display import run_card
from oncurve.display.progress import curve
from oncurve.report import RolloutFiles, ShownGroups, group_record, read_run, render_report, write_report
from oncurve.report.templates import HEIGHT, WIDTH, chart_of, one_line
from oncurve.types import Completion, Group, Prompt, Score

EVIL = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}{% raw %}"
    "\x00\x1b[31m\u202egnp.exe \U0001f600 e\u0301"
)


class Elements(HTMLParser):
    """Every element with its attributes, and whether each that was opened was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def make_run(directory, text="7*8=56", steps=30, rewards=(1.0, 0.0), **more) -> None:
    lines = [
        {"step": s, "reward/mean": s / steps, "policy/kl": 0.01 * s, "time/step": 2.0, "tokens/sampled": 100}
        for s in range(1, steps + 1)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "config.toml").write_text('extends = "grpo"\n[run]\nsteps = 30\n[model]\npath = "some/<model>"\n')
    (directory / "environment.json").write_text(json.dumps({"device": "cpu", "threads": 2, "torch": "<2>"}))
    mean = sum(rewards) / len(rewards)
    for step in {1, steps}:
        completions = tuple(
            Completion((1, 2), f"{text} of {i}", (-1.0, -1.0), "length" if i else "eos", i, step)
            for i in range(len(rewards))
        )
        scored = Group(Prompt(3, f"ask {text}", (1,)), completions, tuple(Score(r) for r in rewards), draw=step)
        record = {"step": step, **group_record(scored, [r - mean for r in rewards])}
        RolloutFiles(directory).write(step, RolloutFiles.content([record]))


def test_the_page_is_whole_and_asks_nothing_of_anyone(tmp_path) -> None:
    make_run(tmp_path)
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    html = path.read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(html)
    assert elements.open == []
    tags = {tag for tag, _ in elements.found}
    assert "svg" in tags
    assert not tags & {"script", "iframe", "object", "img", "base", "form"}
    for tag, attributes in elements.found:
        assert not any(name.startswith("on") for name in attributes), tag
        assert attributes.get("href") in (None, "data:,")
        assert "src" not in attributes
    assert not re.search(r"https?://|@import|url\(", html)
    assert "default-src 'none'" in html


def test_model_text_is_text_and_nothing_else(tmp_path) -> None:
    make_run(tmp_path, text=EVIL)
    html = render_report(replace(read_run(tmp_path), damage=(EVIL,)))
    elements = Elements()
    elements.feed(html)
    assert elements.open == []
    assert not {tag for tag, _ in elements.found} & {"script", "img"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "{{ 7*7 }}" in html
    assert "\x00" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "\U0001f600" in html
    assert "some/&lt;model&gt;" in html


def test_curves_groups_and_settings_are_there_with_their_meaning(tmp_path) -> None:
    make_run(tmp_path, rewards=(1.0, 0.0, 0.0, 0.5))
    html = render_report(read_run(tmp_path))
    assert [words for words in table("page", "curves") if words not in html] == []


def test_accuracy_while_training_is_the_first_tile_and_a_card_has_the_rows_answer(tmp_path) -> None:
    make_run(tmp_path)
    log = tmp_path / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines = [{"step": 0.0, "eval/accuracy": 0.25}, *lines[:-1], lines[-1] | {"eval/accuracy": 0.5, EVIL: 1.0}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    group = {"prompt": {"text": "6*7?", "columns": {"key": f"forty-two {EVIL}"}}, "completions": []}
    files = RolloutFiles(tmp_path)
    files.write(30, files.content([group]))
    (tmp_path / "config.toml").write_text('rewards = [{ kind = "exact", answer = "key" }]')
    page = render_report(read_run(tmp_path))
    tile = re.search(r'<div class="tile">(.*)</div>', page).group(1)
    assert "held-out accuracy" in tile
    assert "25.0 → 50.0" in tile
    assert "before training → after step 30" in tile
    assert re.search(r"The row's answer: <span[^>]*>forty-two &lt;script&gt;", page)
    assert not {"\u202e", "\x1b", "<script>"} & {mark for mark in ("\u202e", "\x1b", "<script>") if mark in page}


@pytest.mark.parametrize(
    ("rewards", "config", "words"),
    [
        *table("page", "stands"),
        (range(64), "", ["8 of 64 completions are shown.", "reward <b>63</b>", "reward <b>0</b>"]),
    ],
)
def test_what_stands_on_the_page_of_a_run(tmp_path, rewards, config, words) -> None:
    make_run(tmp_path, rewards=tuple(map(float, rewards)))
    if config:
        (tmp_path / "config.toml").write_text(config)
    page = render_report(read_run(tmp_path))
    assert all(each in page for each in words)


def test_a_run_that_has_only_begun_has_a_page(tmp_path) -> None:
    (tmp_path / "config.toml").write_text("")
    assert "No step has ended yet." in render_report(read_run(tmp_path))


def test_a_fault_is_said_where_it_happened(tmp_path) -> None:
    make_run(tmp_path)
    completion = Completion((1,), "", (-1.0,), "stop", 0, 1)
    group = Group(Prompt(0, "p", (1,)), (completion,), (Score(0.0, valid=False, fault="raised: <boom>"),))
    RolloutFiles(tmp_path).write(1, RolloutFiles.content([{"step": 1, **group_record(group)}]))
    html = render_report(read_run(tmp_path))
    assert "not scored: raised: &lt;boom&gt;" in html
    assert "(nothing)" in html


def test_a_chart_lies_within_its_drawing() -> None:
    chart = chart_of("reward/mean", [{"step": s, "reward/mean": (s * 37 % 11) / 10} for s in range(1, 1001)])
    places = [tuple(map(float, pair.split(","))) for pair in f"{chart['line']} {chart['raw']}".split()]
    assert len(places) <= 800
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert len(chart["points"]) <= 80
    assert not chart["dots"]


LINES = [{"step": float(step), "reward/mean": step / 4, "policy/kl": 0.0} for step in range(1, 5)]


def group(text: str, reward: float | None = 1.0, advantage: float | None = 0.5) -> dict[str, object]:
    completion = {"text": text, "ids": [1], "ended": "eos", "reward": reward, "advantage": advantage, "parts": {}}
    return {"draw": 0, "prompt": {"id": 0, "text": "2+2=", "ids": [1], "columns": {}}, "completions": [completion]}


def test_a_card_has_first_and_last_values_and_escapes_what_it_quotes() -> None:
    shown = run_card("runs/<b>", LINES, ["line & line"], done=0.5)
    assert [words for words in table("page", "card") if words not in shown] == []
    assert "cut off" not in shown  # shown only where there is some
    assert "cut off" in run_card("run", [{"step": 1.0, "completions/truncated": 0.5}])
    assert "<table" not in run_card("run", [])


def test_a_curve_has_two_points_at_least_and_leaves_out_what_is_not_finite() -> None:
    assert curve([1.0]) == ""
    assert curve([1.0, float("nan")]) == ""
    assert curve([0.0, float("inf"), 1.0]).count(",") == 2
    assert "20.0 " in curve([3.0, 3.0])  # a constant is drawn at the bottom
    assert curve([float(index) for index in range(1000)]).count(",") == 75


def test_groups_show_texts_with_rewards_and_advantages_of_a_step() -> None:
    groups = ShownGroups([group("<script>4</script>")], step=3)
    assert repr(groups) == "<1 group of step 3, 1 completion>"
    assert groups[0]["completions"][0]["reward"] == 1.0
    frame = groups._repr_html_()
    page = html.unescape(frame)
    assert frame.startswith("<iframe srcdoc=")
    assert "<script>" not in page
    assert "Step 3." in page
    assert "+0.50" in page


def test_a_line_that_is_cut_says_so() -> None:
    assert one_line("one\n line") == "one line"
    assert one_line("word " * 20) == ("word " * 20)[:57] + "..."
