"""Whole runs through the command line: the demo, and real pretrained models with real rewards and data."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from fakes import project
from oncurve.config.layers import RECIPES
from oncurve.report import RolloutIndex

pytestmark = pytest.mark.slow


def oncurve(*arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "oncurve", *arguments], capture_output=True, text=True, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def reference_loss(network: torch.nn.Module, groups: Iterable[dict]) -> float:
    """Mean negative log-probability of the completions' tokens under the model as it was given, in nats."""
    total, count = 0.0, 0
    for group in groups:
        prompt = group["prompt"]["ids"]
        for completion in group["completions"]:
            ids = torch.tensor([prompt + completion["ids"]])
            with torch.no_grad():
                logprobs = torch.log_softmax(network(ids).logits[0, len(prompt) - 1 : -1].double(), -1)
            total -= float(logprobs.gather(1, ids[0, len(prompt) :, None]).sum())
            count += len(completion["ids"])
    return total / count


def test_the_demo_gains_forty_points_within_its_memory(tmp_path: Path) -> None:
    found = json.loads(oncurve("demo", "--seed", "3", "--out", str(tmp_path / "demo"), "--json").splitlines()[-1])
    assert 0.20 <= found["accuracy_before"] <= 0.40
    assert found["accuracy_after"] - found["accuracy_before"] >= 0.40
    assert found["gain_interval"][0] > 0
    assert found["problems"] >= 500
    assert found["peak_memory_bytes"] <= 1.5e9


def test_a_word_becomes_three_times_as_frequent_and_stories_stay_stories(test_data: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, out = test_data / "models" / "babyllama105", tmp_path / "run"
    oncurve("train", str(RECIPES / "stories_keyword.toml"), f"model.path={model}", "run.steps=16", "--out", str(out))
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["reward/mean"] >= 3 * metrics[0]["reward/mean"]
    given = AutoModelForCausalLM.from_pretrained(model).eval()
    first, last = (reference_loss(given, RolloutIndex(out).groups(step)) for step in (1, 16))
    assert last - first <= 0.3


def test_a_model_that_solves_nothing_is_told_what_that_means(test_data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "gsm8k.toml"
    text = (project.RECIPES / "solves_nothing.toml").read_text(encoding="utf-8")
    recipe.write_text(text.format(data=test_data))
    printed = oncurve("train", str(recipe), "--out", str(tmp_path / "run"))
    assert "no gradient: all groups are constant" in printed
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
