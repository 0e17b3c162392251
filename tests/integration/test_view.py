"""`oncurve view` in a real browser: on a run while it trains, on texts that want to be markup, and as a copy."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.browser import Browser, browser
from fakes.tables import table
from fakes.viewed import served, write_run
from oncurve.report import EvaluationFiles, RolloutIndex

pytestmark = pytest.mark.slow

PAYLOADS = [
    *table("view", "payloads"),
    "W" * 3000,
    "word " * 600,
    "\n" * 200,
    "\U0001f600" * 50 + "e" + "\u0301" * 300,
]
HOSTILE = [*PAYLOADS, *(f"x {text} y" for text in PAYLOADS)]


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "profile") as opened:
        yield opened


def clean(window: Browser, *origins: str) -> None:
    """Check that the console has nothing, and that no request went elsewhere."""
    assert window.messages() == []
    asked = [address for address in window.requests() if not address.startswith(("data:", "blob:", *origins))]
    assert asked == []


def start_view(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "oncurve", "view", str(folder), "--no-browser", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


def test_a_run_is_watched_while_it_trains_and_the_server_ends_and_returns(window: Browser, project: Path) -> None:
    training = [sys.executable, "-m", "oncurve", "train", "recipe.toml", "run.steps=60", "rollout.max_new_tokens=48"]
    training += ["data.eval_fraction=0.5", "eval.every=20", "learner.learning_rate=0.02"]
    once = subprocess.run([*training, "run.steps=4", "run.seed=1", "--out", "runs/b"], capture_output=True, timeout=300)
    assert once.returncode == 0, once.stderr
    train = subprocess.Popen([*training, "--out", "runs/deep/a"], stdout=subprocess.DEVNULL)
    viewer, address = start_view(Path("runs"))
    origin = address.partition("#")[0]
    try:
        window.open(address)
        window.wait("!location.href.includes('key=')")
        window.see("deep/a", "running", "4 of 4", seconds=120)
        window.click("a[data-row][href='#/deep%2Fa']")
        window.see("reward/mean", "Mean reward of the valid completions", "running", seconds=120)
        window.wait("document.querySelectorAll('.chart canvas').length > 3")
        now = "Number(document.querySelector('.tile b').innerText.split(' ')[0])"
        first = window.wait(now)
        window.wait(f"{now} > {first}", seconds=60)
        assert window.serious() == []
        clean(window, origin)

        end(viewer)
        window.see("no answer")
        window.messages()  # a server that is gone is told by the browser itself
        viewer, again = start_view(Path("runs"), "--port", address.split(":")[2].partition("/")[0])
        window.see("does not accept this page's key")
        window.messages()
        window.run("window.same = 1; location.hash = arguments[0]", again.partition("#")[2])
        later = window.wait(f"{now} > {first + 1} && {now}")
        assert window.run("return window.same") == 1
        assert train.wait(timeout=300) == 0
        window.see("finished", f"{max(60, later)} of 60")
        clean(window, origin)
        groups_are_found(window, Path("runs/deep/a"))
        flips_are_found(window, Path("runs/deep/a"))
        runs_are_compared(window)
        assert window.serious() == []
        clean(window, origin)
    finally:
        train.kill()
        train.wait(timeout=30)
        end(viewer)


def groups_are_found(window: Browser, run: Path) -> None:
    """Slider, filter, order, group, colours, keys, link: the numbers are those of the record."""
    index = RolloutIndex(run)
    window.click(".tabs a:nth-child(2)")
    window.see("step 60", "2 of 2 groups")
    window.go("#/deep%2Fa/99")
    window.see("Of step 99 no groups were kept; this is step 60.", "2 of 2 groups")
    window.run(
        "const at = document.getElementById('step'); at.value = 0; "
        "at.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    window.wait("location.hash === '#/deep%2Fa/1'")
    window.see("of 1 to 60", "2 of 2 groups")
    window.keys("]")
    window.wait("location.hash === '#/deep%2Fa/2'")
    window.keys("[")
    window.wait("location.hash === '#/deep%2Fa/1'")
    window.run("[...document.querySelectorAll('.chips button')].find((each) => each.innerText === 'constant').click()")
    constant = sum(row["spread"] == 0 for row in index.rows(1))
    window.see(f"{constant} of 2 groups")
    window.click(".chips button")
    window.click(".c-mean button")
    window.wait("document.querySelector('[aria-sort=descending]') !== null")
    assert window.serious() == []
    window.keys("j", "\ue007")
    window.see("Group", "Completions", "change of probability")
    step, number = 1, int(window.run("return location.hash.split('/')[3]"))
    item = index.group(step, number)["completions"][0]
    window.go(f"#/deep%2Fa/{step}/{number}/0/2")
    window.wait("document.querySelector('#completion-0 .at')?.dataset.token === '2'")
    change = window.run("return [...document.querySelectorAll('.readout .chosen b')].map((each) => each.innerText)[0]")
    import math

    exact = math.exp(item["after"][2]) - math.exp(item["before"][2])
    assert float(change.replace("−", "-")) == pytest.approx(exact, rel=6e-3, abs=1e-9)
    window.run("document.querySelector('#completion-0 .tokens').focus({preventScroll: true})")
    window.keys("\ue014")
    window.wait("document.querySelector('#completion-0 .at')?.dataset.token === '3'")
    window.wait("location.hash.endsWith('/0/3')")
    colours = set()
    for _ in range(7):
        colours.add(window.run("return document.querySelector('.tools select').value"))
        window.run("document.activeElement.blur()")
        window.keys("c")
    assert {"change", "advantage", "ratio", "kl", "entropy", "probability", "none"} <= colours
    assert window.run("return document.querySelectorAll('.tokens .t').length") >= len(item["ids"])
    window.click("a.small")
    window.see("over time", "First and last")
    window.go("#/deep%2Fa/doctor")
    window.see("Now", seconds=60)
    assert window.run("return document.querySelectorAll('.evidence a').length") > 0


def flips_are_found(window: Browser, run: Path) -> None:
    """The problems that flipped between two evaluations, by the record, and one of them in both."""
    files = EvaluationFiles(run)
    window.click(".tabs a:nth-child(3)")
    for first, last in ((0, 60), (20, 60), (0, 40)):
        window.go(f"#/deep%2Fa/evaluation/{first}/{last}")
        one, two = (files.read(step) for step in (first, last))
        window.see(f"were right after step {first}, ", f"after step {last}.")
        window.see(f"flipped {sum(one[number]['right'] != two[number]['right'] for number in one)}")
    window.run(
        "[...document.querySelectorAll('.chips button')].find((each) => each.innerText.startsWith('all')).click()"
    )
    assert window.serious() == []
    window.click("table.flips a")
    number = int(window.wait("location.hash.split('/')[5]"))
    window.see("held out", "Greedy completions", "after step 40", one[number]["prompt"].strip(), two[number]["reply"])


def runs_are_compared(window: Browser) -> None:
    window.go("#/")
    window.see("Compare runs")
    window.run("document.querySelectorAll('td input').forEach((each) => each.click())")
    window.wait("document.querySelector('#compare').href.includes('#compare/')")
    window.click("#compare")
    window.see("What differs", "run.seed", "run.steps", "reward/mean")
    window.wait("document.querySelectorAll('.chart .legend li').length > 4")


def test_texts_stay_texts_without_the_policy_too(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules["oncurve.view.server"].HEADERS, "Content-Security-Policy", "upgrade-insecure-requests 'none'"
    )
    assert len(set(HOSTILE)) >= 80
    for place, text in enumerate(HOSTILE[:12]):
        run = write_run(tmp_path / "runs" / f"r{place}", [text, *HOSTILE], name=f"{text}/{place}")
        line = f'{{"step": 4, "rewards/{place}": 1}}\n'.replace(f"rewards/{place}", "rewards/" + text.replace('"', "'"))
        with (run / "metrics.jsonl").open("a") as out:
            out.write(line)
    hostile = tmp_path / "runs" / "<img src=x onerror=pwned=1>"
    write_run(hostile, HOSTILE, name="<svg onload=pwned=1>")
    bad = "script, img, iframe, object, embed, base, style, link, meta, math, [onload], [onerror], [onmouseover]"
    nothing = f"""return window.pwned === undefined && document.querySelectorAll('#app :is({bad})').length === 0
        && [...document.querySelectorAll('#app a[href]')].every((each) => each.getAttribute('href').startsWith('#'))"""
    with served(tmp_path / "runs") as address:
        origin = address.partition("#")[0]
        window.open(address, width=360)
        window.see("Runs", "onerror")
        name = "%3Cimg%20src%3Dx%20onerror%3Dpwned%3D1%3E"
        places = [
            "#/",
            f"#/{name}",
            f"#/{name}/3",
            f"#/{name}/settings",
            f"#/{name}/prompt/4",
            f"#/{name}/evaluation",
            *(f"#/{name}/evaluation/0/3/{number}" for number in range(0, len(HOSTILE), 7)),
            f"#compare/{name}/r1/r2",
        ]
        places += [f"#/r{place}" for place in range(12)] + [f"#/{name}/3/{number}" for number in range(len(HOSTILE))]
        for place in places:
            window.go(place)
            heading = (
                "Group"
                if place.count("/") == 3 and place.rpartition("/")[2].isdigit() and "prompt" not in place
                else ""
            )
            window.wait(
                "document.querySelector('h1')?.innerText.includes(arguments[0]) "
                "&& !document.querySelector('[role=alert]')",
                heading,
            )
            assert window.run(nothing), place
            assert not window.overflows(), place
        window.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        assert window.run(nothing)
        assert window.run("return document.title.includes('undefined')") is False
        assert [
            each
            for each in window.messages()
            if "Content-Security-Policy" not in each and "Content Security" not in each
        ] == []
        assert [each for each in window.requests() if not each.startswith((origin, "data:"))] == []


def test_a_copy_opens_from_a_file_and_asks_for_nothing(window: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", ["first", "<b>second</b>", "third"])
    write_run(tmp_path / "runs" / "b")
    command = [sys.executable, "-m", "oncurve", "view", str(tmp_path / "runs"), "--export", str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    window.open(Path(done.stdout.strip()).as_uri())
    window.see("Runs", "copy", "of 3")
    window.go("#/a")
    window.see("reward/mean", "time")
    window.go("#/a/3")
    window.see("3 of 3 groups", "<b>second</b>")
    window.run(
        "const find = document.querySelector('[data-filter]'); find.value = 'SEC'; "
        "find.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    window.see("1 of 3 groups")
    window.go("#/a/3/1")
    window.see("Group 1", "reward by part")
    for page in table("view", "pages_of_a_copy"):
        window.go(page)
        window.wait("document.querySelector('h1') !== null && !document.querySelector('[role=alert]')")
    assert window.serious() == []
    clean(window, "file://")


@pytest.mark.parametrize("dark", [False, True])
def test_every_page_is_accessible_and_fits_from_360_to_2560_pixels(window: Browser, tmp_path: Path, dark: bool) -> None:
    write_run(tmp_path / "runs" / "a", ["a prompt of some words " * 20, "x" * 400])
    with served(tmp_path / "runs") as address:
        window.open(address)
        for page in table("view", "pages"):
            for width in (360, 1280, 2560):
                window.size(width, 900, dark)
                window.go(page)
                window.wait("document.querySelector('h1') !== null && !document.body.innerText.includes('Reading')")
                assert not window.overflows(), (page, width)
            assert window.serious() == [], page
        window.keys("?")
        window.see("one level up")
        window.keys("\ue00c")
        clean(window, address.partition("#")[0])
