"""Whole runs at real shapes, assembled as every run is: random weights, the benchmark's prompts and reward."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from bench import models
from bench.cases import Case
from bench.gpu.day import Place
from bench.models import SIZES, Size
from bench.systems import ours

SHAPES = {
    "0.5B": Size(896, 24, 14, 2, 4864, vocabulary=151936),
    "1.5B": Size(1536, 28, 12, 2, 8960, vocabulary=151936),
    "7B": Size(3584, 28, 28, 4, 18944, vocabulary=152064),
}
"""The shapes of Qwen2.5."""
TOY = Size(64, 2, 4, 2, 96)


def case_of(place: Place, name: str, **work: Any) -> Case:
    """Return a step of 64 groups of 8 completions of 512 tokens, on prompts of 160, unless `work` says otherwise."""
    SIZES.update({**SHAPES, "toy": TOY})
    case = Case("oncurve", name, 64, 8, 512, prompt_tokens=160, threads=8)
    case = dataclasses.replace(case, **work)
    if not place.toy:
        return case
    return dataclasses.replace(case, model="toy", prompts=4, group_size=2, completion=12, prompt_tokens=9, threads=1)


def make_model(place: Place, name: str) -> None:
    """Make a model in bf16, on the device, where `bench.models` looks for it."""
    from transformers import Qwen2ForCausalLM

    size, tokenizer = SIZES[name], models.load_tokenizer()
    path = models.CACHE / name
    if path.is_dir():
        return
    torch.manual_seed(0)
    config = size.config(
        max_position_embeddings=32768, tie_word_embeddings=name != "7B", **models.special_tokens(tokenizer)
    )
    torch.set_default_dtype(torch.bfloat16)
    with place.device:
        module = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    module.save_pretrained(path)
    tokenizer.save_pretrained(path)
    del module
    if place.device.type == "cuda":
        torch.cuda.empty_cache()


def assembled(place: Place, case: Case, **settings: dict[str, Any]) -> Any:
    """Return the run of a case, with further settings by section."""
    make_model(place, case.model)
    model = {**settings.pop("model", {}), "device": place.device.type}
    return ours.build_run(case, model=model, **settings)


FIGURES = (
    *(f"time/{phase}" for phase in ("step", "rollout", "reward", "score", "update")),
    *("tokens/sampled", "memory/peak_bytes", "policy/mismatch", "length/mean"),
)


def step(run: Any, place: Place) -> dict[str, float]:
    """Take a step; return seconds by phase, and what is allocated and reserved at most in it."""
    if place.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    metrics = run.trainer.step().metrics
    found = {name: metrics[name] for name in FIGURES if name in metrics}
    if place.device.type == "cuda":
        found["allocated"], found["reserved"] = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return found


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
