"""Part A of the day: is it right?"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.gpu import checks
from bench.gpu.day import Place, Section
from bench.gpu.limits import FLOORS, MACHINE, floors, machine
from bench.gpu.runs import assembled, case_of, lines_of

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "src" / "oncurve" / "demo" / "recipe.toml"
HALF = ("model.dtype=bfloat16",)
DTYPES: dict[str, tuple[str, ...]] = {"float32": (), "bfloat16": HALF}
TESTS = (
    *(f"tests/unit/models/test_{name}.py" for name in ("cuda_graphs", "flash", "linear_logprobs", "triton_kernels")),
    "tests/unit/cluster/test_on_gpus.py",
    "tests/gpu_pretended/test_kernels_compile.py",
)


def smoke(place: Place) -> None:
    """Take two steps of the shipped recipe in bf16, with every warning."""
    command = ["train", "task", f"model.device={place.device.type}", *HALF, "run.steps=2", "eval.every=0"]
    started = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-W", "default", "-m", "oncurve", *command, "--out", str(place.out / "smoke")],
        capture_output=True,
        text=True,
        check=False,
    )
    place.note("exit code", process.returncode)
    place.note("seconds", time.monotonic() - started)
    place.note("said", (process.stdout + process.stderr)[-6000:])


def equal_to_plain(place: Place) -> None:
    """Hold every CUDA form against the plain one: `bench.gpu.checks`."""
    for name in checks.CHECKS:
        try:
            place.note(name, checks.one(name, place.device))
        except Exception as error:  # the others still run
            place.note(name, {"error": f"{type(error).__name__}: {error}"[:1000], "passed": False})


def tests(place: Place) -> None:
    """Run the tests that need a GPU, or say something else on one: each file in a process, all at once."""
    options = ("-q", "-W", "default", "-p", "no:benchmark", "-p", "no:xdist", "--tb=short", "--show-capture=no")
    started = {
        file: subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, file],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for file in (TESTS[:1] if place.toy else TESTS)
    }
    for file, process in started.items():
        said, _ = process.communicate()
        place.note(file, {"exit code": process.returncode, "said": said[-4000 if process.returncode else -200 :]})


def same_bits(place: Place) -> None:
    """Take two equal steps of a small model from the same state: the digests of tokens and of weights, by dtype."""
    case = case_of(place, "0.5B", prompts=8, completion=64)
    for dtype in ("bfloat16", "float32"):
        for number in range(2):
            with assembled(place, case, model={"dtype": dtype}) as run:
                result = run.trainer.step()
                ids = repr([row.ids for group in result.groups for row in group.completions])
                place.note(f"{dtype}, tokens, {number}", hashlib.sha256(ids.encode()).hexdigest()[:16])
                place.note(f"{dtype}, weights, {number}", digest(run.loaded.model.module))


def digest(module: torch.nn.Module) -> str:
    """Return a digest of the bits of all parameters."""
    found = hashlib.sha256()
    for parameter in module.parameters():
        found.update(parameter.detach().cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def learning(place: Place) -> None:
    """Train the demo on the card in both dtypes at once: accuracy on held-out problems, every ten steps; and the
    difference between sampler and learner, the mean of all steps.
    """
    runs = {name: _demo(place, name, *settings) for name, settings in DTYPES.items()}
    for name, (process, out) in runs.items():
        said, _ = process.communicate()
        place.note(f"{name}: exit code", process.returncode)
        if process.returncode:
            place.note(f"{name}: said", said[-3000:])
            continue
        lines = lines_of(out / "metrics.jsonl")
        place.note(
            f"{name}: accuracy", {line["step"]: line["eval/accuracy"] for line in lines if "eval/accuracy" in line}
        )
        for figure, found in (("reward", "reward/mean"), ("mismatch", "policy/mismatch"), ("seconds", "time/step")):
            place.note(f"{name}: {figure}", [round(line[found], 6) for line in lines if found in line])


def killed(place: Place) -> None:
    """Kill a run of each dtype in the middle, and continue it: digests of its weights and of those of one left
    alone.
    """
    settings = ("run.steps=12", "checkpoint.every=4", "eval.every=0")
    alone = {name: _demo(place, f"{name} alone", *settings, *dtype) for name, dtype in DTYPES.items()}
    other = {name: _demo(place, f"{name} killed", *settings, *dtype) for name, dtype in DTYPES.items()}
    resumed = {}
    for name, (process, out) in other.items():
        metrics = out / "metrics.jsonl"
        while process.poll() is None and not (metrics.is_file() and len(metrics.read_bytes().splitlines()) >= 6):
            time.sleep(0.02)
        process.kill()
        process.communicate()
        place.note(f"{name}: steps at the kill", len(lines_of(metrics)))
        resumed[name] = _started("resume", str(out))
    for name, process in resumed.items():
        said, _ = process.communicate()
        if process.returncode:
            place.note(f"{name}: the resumed run said", said[-2000:])
        alone[name][0].communicate()
        for run, folder in (("alone", alone[name][1]), ("killed", other[name][1])):
            file = folder / "model" / "model.safetensors"
            place.note(f"{name}: weights, {run}", hashlib.sha256(file.read_bytes()).hexdigest()[:16])
        lines = zip(*(lines_of(folder / "metrics.jsonl") for folder in (alone[name][1], other[name][1])), strict=False)
        place.note(f"{name}: what differs, by step", {one["step"]: _differing(one, two) for one, two in lines})


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the metrics of a step that differ, but for times and memory."""
    measured = ("time/", "memory/", "tokens/per", "rollout/idle", "machine/")
    return [key for key, value in one.items() if value != other.get(key) and not key.startswith(measured)][:8]


def _demo(place: Place, name: str, *settings: str) -> tuple[subprocess.Popen[str], Path]:
    out = place.out / name.replace(" ", "-")
    toy = ("run.steps=3", "data.prompts_per_step=4", "data.eval_size=8") if place.toy else ()
    command = ["train", str(DEMO), f"model.device={place.device.type}", *toy, *settings, "--out", str(out)]
    return _started(*command), out


def _started(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "oncurve", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


SECTIONS = {
    "machine": Section(machine, 40, MACHINE),
    "smoke": Section(smoke, 120),
    "equal to plain": Section(equal_to_plain, 150),
    "floors": Section(floors, 40, FLOORS),
    "same bits": Section(same_bits, 150),
    "killed": Section(killed, 150),
    "learning": Section(learning, 150),
    "tests": Section(tests, 170),
}
