"""Parts of the growth curves that want a process of their own: `python -m bench.growth_worker PART JSON`.

    train     {"points": [...], "trl_tokens": n, ...}     seconds of the training pass at each point, both in turn
    memory    {"system": ..., "points": [...]}            bytes held before an update, and at the most during it
    sampler   {"vocabularies": [...], ...}                seconds of drawing one token a row

The answer is one line of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

__all__ = ["main", "memory", "sampler", "train"]


def train(told: dict[str, Any]) -> dict[str, Any]:
    """Seconds of every point, by system; all points have one vocabulary, so one model of each system serves them."""
    import torch

    from bench.growth_systems import Ours, Point, Trl
    from bench.timing import time_in_turn

    torch.set_num_threads(told["threads"])
    points = [Point(**point) for point in told["points"]]
    systems: dict[str, Any] = {"oncurve": Ours(points[0].vocabulary), "trl": Trl(points[0].vocabulary)}
    found: dict[str, Any] = {"points": []}
    for number, point in enumerate(points):
        wanted = [name for name in systems if name == "oncurve" or point.padded_tokens <= told["trl_tokens"]]
        for name in wanted:
            systems[name].take(point)
        ways = {name: systems[name].train_pass for name in wanted}
        found["points"].append(time_in_turn(ways, told["repeats"], 0.05, told["seconds_a_point"]))
        if number == 0:
            found["gradient_cosine"] = _cosine(*(system.gradient() for system in systems.values()))
    return found


def _cosine(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Between the two whole gradients: that both do the same work."""
    import torch

    names = sorted(ours)
    if names != sorted(theirs):
        raise RuntimeError(f"the two gradients have other names: {set(names) ^ set(theirs)}")
    a, b = (torch.cat([gradient[name].flatten() for name in names]) for gradient in (ours, theirs))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def memory(told: dict[str, Any]) -> dict[str, Any]:
    """The memory of each point, in a process forked for it: libraries are imported once, and nothing else has happened.

    A fork is sound here because this process has run nothing of torch yet, so there are no threads to lose.
    """
    for name in ("bench.growth_systems", "transformers", *(["trl"] if told["system"] == "trl" else [])):
        importlib.import_module(name)
    context = multiprocessing.get_context("fork")
    found = []
    for point in told["points"]:
        mouth, ear = context.Pipe(duplex=False)
        process = context.Process(target=_memory_of, args=(told["system"], point, told["threads"], ear))
        process.start()
        ear.close()
        found.append(mouth.recv())
        process.join()
    return {"points": found}


def _memory_of(system: str, told: dict[str, Any], threads: int, answer: Any) -> None:
    """Sends the bytes of the process before the first update (`before`), and the most during it (`peak`)."""
    import torch

    from bench.growth_systems import Ours, Point, Trl

    torch.set_num_threads(threads)
    point = Point(**told)
    trained = (Ours if system == "oncurve" else Trl)(point.vocabulary)
    trained.take(replace(point, prompts=1, group_size=2, prompt_tokens=8, completion=8))
    trained.update()  # optimizer states, and what libraries set up once
    trained.take(point)
    forgotten = forget_peak()
    before = resident()
    trained.update()
    answer.send({"before": before, "peak": peak_bytes(forgotten)})
    os._exit(0)


def resident() -> int:
    """Bytes the process holds now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> bool:
    """Let the kernel count the most memory from here on; False where it does not let us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def peak_bytes(forgotten: bool) -> int:
    """The most bytes the process has held, since `forget_peak` where that was allowed."""
    if forgotten:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def sampler(told: dict[str, Any]) -> dict[str, Any]:
    """Seconds of drawing a token a row from float32 logits, by vocabulary.

    oncurve's `sample` gives the token's log-probability too; TRL samples as `generate` does: softmax, then
    `torch.multinomial`.
    """
    import torch

    from bench.timing import time_in_turn
    from oncurve.rollout.sampler import sample

    torch.set_num_threads(told["threads"])
    rows, points = told["rows"], []
    generator = torch.Generator().manual_seed(0)
    for vocabulary in told["vocabularies"]:
        logits = torch.randn(rows, vocabulary, generator=generator)
        uniforms = torch.rand(rows, dtype=torch.float64, generator=generator)
        ways = {
            "oncurve": lambda z=logits, u=uniforms: sample(z, u),
            "trl": lambda z=logits: torch.multinomial(torch.softmax(z, dim=-1), 1),
        }
        with torch.no_grad():
            points.append(time_in_turn(ways, told["repeats"], 0.01, told["seconds_a_point"]))
    return {"points": points}


def main() -> None:
    """Do the part on the command line and print its answer."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not stand beside the answer
    told = json.loads(sys.argv[2])
    answers.write(json.dumps({"train": train, "memory": memory, "sampler": sampler}[sys.argv[1]](told)) + "\n")
    answers.flush()
    os._exit(0)  # threads of a library must not keep the process


if __name__ == "__main__":
    main()
