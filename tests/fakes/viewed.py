"""Runs for the viewer: small ones with any text in every field, and its server in a thread of this process."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import uvicorn

from oncurve.report import TOKENS, EvaluationFiles, RolloutFiles, group_record, packed_tokens
from oncurve.types import Completion, Group, Prompt, Score, Turn
from oncurve.view import Library, application

KEY = "a-key-of-the-tests"


def record(prompt: int, text: str, rewards: Sequence[float] = (1.0, 0.0), name: str = "exact") -> dict:
    """A group whose every text is `text`; each completion has two tokens."""
    completions = tuple(
        Completion(
            (1, 2),
            text,
            (-1.0, -2.0),
            "length" if i else "eos",
            i,
            1,
            trained=(True, False),
            turns=(Turn(0, 1, "assistant", text, None), Turn(1, 2, "tool", text, None)),
        )
        for i in range(len(rewards))
    )
    scores = tuple(Score(r, parts={name: r, f"{name} 2": r}, fault=text, extras={f"{name}/x": r}) for r in rewards)
    mean = sum(rewards) / len(rewards)
    group = Group(Prompt(prompt, text, (1,), {name: text}), completions, scores, draw=prompt)
    return group_record(group, [reward - mean for reward in rewards])


def write_run(directory: Path, texts: Sequence[str] = ("2+2=",), steps: int = 3, **record_settings) -> Path:
    """A run whose last step has one group for each text, with the numbers of its tokens."""
    directory.mkdir(parents=True)
    lines = [{"step": s, "reward/mean": s / steps, "time/step": 2.0, "time/rollout": 1.0} for s in range(1, steps + 1)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "config.toml").write_text(f"[run]\nsteps = {steps}\n[model]\npath = {json.dumps(texts[0])}\n")
    (directory / "environment.json").write_text(json.dumps({"device": "cpu", "oncurve": texts[0]}))
    records = [record(number, text, **record_settings) for number, text in enumerate(texts)]
    count = sum(len(item["ids"]) for each in records for item in each["completions"])
    ends = np.cumsum([sum(len(item["ids"]) for item in each["completions"]) for each in records]).tolist()
    numbers = {"before": np.full(count, -1.0, "f4"), "after": np.linspace(-2.0, -0.1, count, dtype="f4")}
    files = RolloutFiles(directory)
    tokens = {TOKENS: packed_tokens(ends, {"1": texts[0], "2": "4"}, numbers)}
    files.write(steps, {**files.content(records), **tokens})
    for step in (0, steps):
        EvaluationFiles(directory).write(step, [held_out(*each, after=step > 0) for each in enumerate(texts)])
    return directory


def held_out(number: int, text: str, after: bool) -> dict:
    """What became of a held-out problem: each second one is right before, and the others are after."""
    texts = dict.fromkeys(("prompt", "answer", "reply", "ended", "fault"), text)
    return {"id": number, **texts, "reward": 0.5, "right": (number % 2 == 0) != after, "samples": [int(after), 2]}


@contextmanager
def served(root: Path, port: int = 0) -> Iterator[str]:
    """The address of a server of these runs, which ends with the context."""
    settings = uvicorn.Config(
        application(Library(root), KEY), port=port, lifespan="off", ws="none", log_level="critical"
    )
    server = uvicorn.Server(settings)
    listening = settings.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/#key={KEY}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listening.close()
