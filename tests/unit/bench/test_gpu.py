"""The day of a GPU runs from end to end; without a GPU it says so; what it finds is written as soon as it is found."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from bench.gpu import day

from fakes.started import start_process

ROOT = Path(__file__).parents[3]


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_and_ends_with_2(tmp_path, capsys):
    assert day.main(["A", "--out", str(tmp_path)]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err


def rehearsal(out, part, sections):
    command = [sys.executable, "-m", "bench.gpu", "day", part, "--rehearse", "--out", out, "--only", sections]
    return start_process(*command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "sections"),
    [("A", "machine,smoke,equal to plain,floors,same bits,killed,learning"), ("B", "fixed,profile,natural,larger")],
)
def test_a_rehearsal_ends_every_section_and_passes_every_check(tmp_path, part, sections):
    assert rehearsal(tmp_path, part, sections).wait(570) == 0
    lines = lines_of(tmp_path / f"{part}.jsonl")
    assert [line["section"] for line in lines if line.get("ended") == 0] == sections.split(",")
    found = {line["figure"]: line["value"] for line in lines if "figure" in line}
    assert all(value["passed"] for value in found.values() if isinstance(value, dict) and "passed" in value)
    for name in ("tokens, {}", "weights, {}"):
        if name.format(0) in found:
            assert found[name.format(0)] == found[name.format(1)]
            assert found["weights, alone"] == found["weights, killed"]


@pytest.mark.slow
def test_what_is_killed_leaves_what_it_has_found(tmp_path):
    process, file = rehearsal(tmp_path, "A", "machine,learning"), tmp_path / "A.jsonl"
    while not (file.is_file() and '"ended"' in file.read_text()):
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert [line["section"] for line in lines_of(file)][:3] == ["machine"] * 3


def test_a_section_that_fails_is_a_line_and_the_others_go_on(tmp_path):
    place = day.Place(torch.device("cpu"), True, tmp_path, tmp_path / "A.jsonl", "broken", 0.0, {"first": 2})

    def broken(_):
        place.note("first", 1)
        raise ValueError("no such thing")

    assert day._here(day.Section(broken, 1), place) == 1
    first, second = lines_of(place.file)
    assert (first["figure"], first["value"], first["expected"]) == ("first", 1, 2)
    assert second["error"] == "ValueError: no such thing"
