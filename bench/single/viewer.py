"""`oncurve view` on 100,000 groups and on completions of 32,768 tokens: seconds in a browser, frames, memory.

    python -m bench.single.viewer [--groups 100000] [--folder DIR] [--out bench/results/viewer.json]

Two runs are made below the folder: `wide` has one measured step of that many groups, 8 completions of 80 tokens each,
and `long` one group with 2 completions of 32,768. A headless Chromium opens them. A browser with an empty cache is
started for each first paint. Memory is that of the server's process: its peak, and without the pages of files.
It needs chromium, chromedriver and selenium, as the tests of the pages do.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench import machine

__all__ = ["main", "make", "measure"]

OUT = Path(__file__).parents[1] / "results" / "viewer.json"
TESTS = Path(__file__).parents[2] / "tests"
COMPLETIONS, TOKENS, LONG_TOKENS, VOCABULARY = 8, 80, 32_768, 512
REPEATS = 7
LOADED = "document.querySelector('.grid .row .c-mean')?.innerText.trim()"
"""What a page of groups has once rows are there."""

SEEN = f"""window.seen = {{}};
const look = (now) => {{
  if ({LOADED}) seen.rows ??= performance.now();
  if (document.querySelector('.pushed')) seen.changed_most ??= performance.now();
  if (!seen.rows || !seen.changed_most) requestAnimationFrame(look);
}};
requestAnimationFrame(look);"""
"""Notes when the groups of a page are there, and the tokens that the step changed most: run before the page's own."""

FRAMES = """window.frames_at = [];
const frame = (now) => { frames_at.push(now); if (frames_at.length < 3600) requestAnimationFrame(frame); };
requestAnimationFrame(frame);"""
"""Notes the time of each frame of the page's thread, for a minute at most."""


def make(folder: Path, groups: int) -> None:
    """Write both runs."""
    _write(folder / "wide", groups, COMPLETIONS, TOKENS)
    _write(folder / "long", 1, 2, LONG_TOKENS)


def _write(run: Path, groups: int, size: int, tokens: int) -> None:
    from oncurve.report import TOKENS as SUFFIX, RolloutFiles, packed_tokens

    run.mkdir(parents=True)
    metrics = [json.dumps({"step": step, "reward/mean": step / 100, "time/step": 2.0}) for step in range(1, 101)]
    (run / "metrics.jsonl").write_text("\n".join(metrics) + "\n", encoding="utf-8")
    (run / "environment.json").write_text("{}", encoding="utf-8")
    (run / "config.toml").write_text("[run]\nsteps = 100\n", encoding="utf-8")
    generator, count = np.random.default_rng(0), groups * size * tokens
    numbers = {name: -generator.exponential(size=count).astype("f4") for name in ("before", "after", "entropy", "kl")}
    pieces = {str(token): f" w{token}" if token % 12 else "\n" for token in range(VOCABULARY)}
    ends = np.arange(1, groups + 1) * size * tokens
    files = RolloutFiles(run)
    content = files.content(_records(groups, size, tokens, pieces))
    files.write(100, {**content, SUFFIX: packed_tokens(ends.tolist(), pieces, numbers)})


def _records(groups: int, size: int, tokens: int, pieces: dict[str, str]) -> Iterator[dict[str, Any]]:
    from oncurve.report import group_record
    from oncurve.types import Completion, Group, Prompt, Score

    draws = random.Random(0)
    for number in range(groups):
        completions = []
        for sample in range(size):
            ids = tuple(draws.choices(range(VOCABULARY), k=tokens))
            text = "".join(pieces[str(token)] for token in ids)
            logprobs = tuple(-draws.expovariate(1.0) for _ in ids)
            completions.append(Completion(ids, text, logprobs, draws.choice(("eos", "length")), sample, 1))
        rewards = [float(draws.random() < number / groups) for _ in completions]
        prompt = Prompt(number, f"What is {number} + {draws.randrange(10**6)}?", (1, 2, 3), {"answer": "4"})
        mean = statistics.fmean(rewards)
        scores = tuple(Score(reward, parts={"exact": reward}) for reward in rewards)
        yield group_record(Group(prompt, tuple(completions), scores), [reward - mean for reward in rewards])


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures of both runs, in seconds and MB."""
    sys.path.insert(0, str(TESTS))
    from fakes.browser import browser

    command = [sys.executable, "-m", "oncurve", "view", str(folder), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            found: dict[str, Any] = {"idle_mb": _megabytes(server.pid)}
            paints = []
            for _ in range(3):
                with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as window:
                    paints.append(_first_paint(window, f"{address}/wide/100"))
            found["first_paint"] = {key: [each[key] for each in paints] for key in paints[0]}
            with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as window:
                window.open(f"{address}/wide/100")
                window.wait(LOADED, seconds=120)
                window.wait("document.querySelector('.pushed')", seconds=120)
                found |= {"group": _groups(window), "sort": _sorts(window), "search": _search(window, server.pid)}
                found["server_mb"] = _megabytes(server.pid)
                found["scroll"] = _scroll(window, f"{address}/long/100/0", ".completion > .tokens")
                found["scroll_plain"] = _scroll(window, _plain(folder).as_uri(), "div")
        finally:
            server.terminate()
    return found


def _first_paint(window: Any, address: str) -> dict[str, float]:
    """Return the seconds from the request of the page until something, all rows in view, and the tokens are there."""
    window.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SEEN})
    window.open(address)
    seen = window.wait("seen.rows && seen.changed_most && seen", seconds=120)
    paint = window.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return {name: value / 1000 for name, value in {"contentful": paint, **seen}.items()}


def _timed(window: Any, act: str, done: str, *arguments: Any) -> float:
    """Return the seconds from an act to the frame after its outcome, by the page's own clock."""
    script = f"""const end = arguments[arguments.length - 1], begun = performance.now();
    {act};
    const seen = () => end(performance.now() - begun);
    const look = () => requestAnimationFrame(({done}) ? seen : look);
    look();"""
    return float(window.driver.execute_async_script(script, *arguments)) / 1000


def _groups(window: Any) -> list[float]:
    """Return the seconds to each of some groups, far from each other: completions and colours are there."""
    seconds = []
    for number in range(50_000, 50_000 + 7919 * REPEATS, 7919):
        place = f"#/wide/100/{number % _count(window)}"
        done = "document.querySelectorAll('.completion .t[class*=up], .completion .t[class*=down]').length > 100"
        seconds.append(_timed(window, "location.hash = arguments[0]", done, place))
        window.go("#/wide/100")
        window.wait(LOADED)
    return seconds


def _count(window: Any) -> int:
    return int(window.run("return Number(document.querySelector('.grid').getAttribute('aria-rowcount')) - 1"))


def _sorts(window: Any) -> list[float]:
    """Return the seconds to order all groups by each of some columns: until the first row is another one."""
    first = "document.querySelector('.grid .body .row')?.innerText"
    act = f"const before = {first}; document.querySelector(`.c-${{arguments[0]}} button`).click()"
    done = f"!['', before].includes({first}) && !{first}?.includes('…')"
    return [_timed(window, act, done, name) for name in ("mean", "spread", "largest", "length")]


def _search(window: Any, server: int) -> dict[str, float]:
    """Return the seconds, and the server's of one core, until all texts were looked through for one that is nowhere."""
    act = """const find = document.querySelector('[data-filter]'); find.value = 'nowhere';
    find.dispatchEvent(new Event('input', {bubbles: true}))"""
    begun, before = time.perf_counter(), sum(psutil.Process(server).cpu_times()[:2])
    window.run(act)
    window.wait(r"/^0 of [\d,]+ groups$/.test(document.querySelector('main [role=status]').innerText)", seconds=300)
    return {
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": sum(psutil.Process(server).cpu_times()[:2]) - before,
    }


def _plain(folder: Path) -> Path:
    """Write a page of 32,768 words and no script: as many frames as this machine's Chromium shows of anything."""
    page = folder / "plain.html"
    words = "".join(f"w{number}" + " \n"[number % 12 == 0] for number in range(LONG_TOKENS))
    style = "height:26rem; overflow:auto; white-space:pre-wrap; font:.83rem/1.6 monospace"
    page.write_text(f"<div class=t style='{style}'>{words}</div>", encoding="utf-8")
    return page


def _scroll(window: Any, address: str, selector: str) -> dict[str, Any]:
    """Return the frames that Chromium's profile has, and the page's processor time for each, while 24,000 pixels of
    32,768 tokens pass under the mouse at 2,400 pixels per second.
    """
    window.driver.get("about:blank")
    window.open(address)
    box = f"document.querySelector('{selector}')"
    window.wait(f"document.querySelector('.t') && {box}", seconds=60)
    window.run(f"{box}.scrollIntoView({{block: 'center'}})")
    place = window.run(f"const at = {box}.getBoundingClientRect(); return [at.x + 60, at.y + at.height / 2]")
    gesture = {"x": place[0], "y": place[1], "yDistance": -24_000, "speed": 2400, "gestureSourceType": "mouse"}
    window.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    before = _busy(window)
    with _profile(window) as events:
        window.run(FRAMES)
        window.driver.execute_cdp_cmd("Input.synthesizeScrollGesture", gesture)
        times, reached = window.run(f"const found = frames_at; frames_at = []; return [found, {box}.scrollTop]")
    lengths, names = np.diff(times), Counter(event["name"] for event in events)
    return {
        "frames_per_second": 1000 * len(lengths) / (times[-1] - times[0]),
        "frame_ms": {f"{share:g}": float(np.quantile(lengths, share)) for share in (0.5, 0.95, 0.99, 1.0)},
        "cpu_ms_per_frame": 1000 * (_busy(window) - before) / len(lengths),
        "drawn": names["DrawFrame"],
        "dropped": names["DroppedFrame"],
        "pixels": reached,
    }


def _busy(window: Any) -> float:
    """Return the processor seconds that the page's thread has spent."""
    found = window.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))


@contextmanager
def _profile(window: Any) -> Iterator[list[dict[str, Any]]]:
    """Return the events of a profile as DevTools takes it, which are there when the context ends."""
    import websocket

    port = window.driver.capabilities["goog:chromeOptions"]["debuggerAddress"]
    with urllib.request.urlopen(f"http://{port}/json/version") as answer:
        line = websocket.create_connection(json.load(answer)["webSocketDebuggerUrl"], suppress_origin=True)
    frames = {"includedCategories": ["disabled-by-default-devtools.timeline.frame", "devtools.timeline.frame"]}
    line.send(json.dumps({"id": 1, "method": "Tracing.start", "params": {"traceConfig": frames}}))
    line.recv()
    events: list[dict[str, Any]] = []
    yield events
    line.send(json.dumps({"id": 2, "method": "Tracing.end"}))
    while (said := json.loads(line.recv())).get("method") != "Tracing.tracingComplete":
        events += said.get("params", {}).get("value", [])
    line.close()


def _megabytes(process: int) -> dict[str, float]:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    known = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    return {name: int(known[name]) / 1000 for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile")}


def main(words: Sequence[str] | None = None) -> int:
    """Make what is not there yet, measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "oncurve-viewer")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(words)
    if not given.folder.exists():
        make(given.folder, given.groups)
    sizes = {
        path.name.partition(".")[2]: path.stat().st_size / 1e6
        for path in (given.folder / "wide" / "rollouts").iterdir()
    }
    found = {"groups": given.groups, "files_mb": sizes, "load": machine.load(), **measure(given.folder)}
    print(json.dumps(found, indent=1))
    given.out.write_text(json.dumps({"machine": machine.describe(), "results": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
