"""Parts of the growth curves that need a process of their own: `python -m bench.growth.worker PART JSON`.

    train     {"points": [...], "trl_tokens": n, ...}     seconds of the training pass at each point, both in turn
    memory    {"system": ..., "points": [...]}            bytes held before an update, and the peak during it
    sampler   {"vocabularies": [...], ...}                seconds of drawing one token per row

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


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of every point, by system; all points have one vocabulary, so that one model of each system
    suffices.
    """
    import torch

    from bench.growth.passes import Ours, Point, Trl
    from bench.timing import time_in_turn

    torch.set_num_threads(settings["threads"])
    points = [Point(**point) for point in settings["points"]]
    systems: dict[str, Any] = {"oncurve": Ours(points[0].vocabulary), "trl": Trl(points[0].vocabulary)}
    found: dict[str, Any] = {"points": []}
    for number, point in enumerate(points):
        wanted = [name for name in systems if name == "oncurve" or point.padded_tokens <= settings["trl_tokens"]]
        for name in wanted:
            systems[name].take(point)
        ways = {name: systems[name].train_pass for name in wanted}
        found["points"].append(time_in_turn(ways, settings["repeats"], 0.05, settings["seconds_a_point"]))
        if number == 0:
            found["gradient_cosine"] = _cosine(*(system.gradient() for system in systems.values()))
    return found


def _cosine(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return the cosine of the two whole gradients, which shows that both do the same work."""
    import torch

    names = sorted(ours)
    if names != sorted(theirs):
        raise RuntimeError(f"the two gradients have different names: {set(names) ^ set(theirs)}")
    a, b = (torch.cat([gradient[name].flatten() for name in names]) for gradient in (ours, theirs))
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def memory(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the memory of each point, in a process forked for it, which has imported libraries and done nothing else.

    The fork is safe because this process has run nothing of torch yet, so that it has no threads.
    """
    for name in ("bench.growth.passes", "transformers", *(["trl"] if settings["system"] == "trl" else [])):
        importlib.import_module(name)
    context = multiprocessing.get_context("fork")
    found = []
    for point in settings["points"]:
        mouth, ear = context.Pipe(duplex=False)
        process = context.Process(target=_memory_of, args=(settings["system"], point, settings["threads"], ear))
        process.start()
        ear.close()
        found.append(mouth.recv())
        process.join()
    return {"points": found}


def _memory_of(system: str, settings: dict[str, Any], threads: int, answer: Any) -> None:
    """Send the bytes of the process before the first update (`before`), and the peak during it (`peak`)."""
    import torch

    from bench.growth.passes import Ours, Point, Trl

    torch.set_num_threads(threads)
    point = Point(**settings)
    trained = (Ours if system == "oncurve" else Trl)(point.vocabulary)
    trained.take(replace(point, prompts=1, group_size=2, prompt_tokens=8, completion=8))
    trained.update()  # makes the optimizer state, and libraries set themselves up
    trained.take(point)
    forgotten = forget_peak()
    before = resident()
    trained.update()
    answer.send({"before": before, "peak": peak_bytes(forgotten)})
    os._exit(0)


def resident() -> int:
    """Return bytes the process holds now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> bool:
    """Reset the kernel's count of peak memory; False where that is not allowed."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def peak_bytes(forgotten: bool) -> int:
    """Return the peak bytes of the process, since `forget_peak` where that was allowed."""
    if forgotten:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def sampler(settings: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of drawing one token per row from float32 logits, by vocabulary.

    oncurve's `sample` also returns the token's log-probability; TRL samples as `generate` does: softmax, then
    `torch.multinomial`.
    """
    import torch

    from bench.timing import time_in_turn
    from oncurve.rollout.sampler import sample

    torch.set_num_threads(settings["threads"])
    rows, points = settings["rows"], []
    generator = torch.Generator().manual_seed(0)
    for vocabulary in settings["vocabularies"]:
        logits = torch.randn(rows, vocabulary, generator=generator)
        uniforms = torch.rand(rows, dtype=torch.float64, generator=generator)
        ways = {
            "oncurve": lambda z=logits, u=uniforms: sample(z, u),
            "trl": lambda z=logits: torch.multinomial(torch.softmax(z, dim=-1), 1),
        }
        with torch.no_grad():
            points.append(time_in_turn(ways, settings["repeats"], 0.01, settings["seconds_a_point"]))
    return {"points": points}


def main() -> None:
    """Run the part that the command line names, and print its answer."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answer
    settings = json.loads(sys.argv[2])
    answers.write(json.dumps({"train": train, "memory": memory, "sampler": sampler}[sys.argv[1]](settings)) + "\n")
    answers.flush()
    os._exit(0)  # threads of a library must not keep the process


if __name__ == "__main__":
    main()
