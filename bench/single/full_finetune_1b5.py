"""Full fine-tuning of 1.5 billion parameters in 20 GiB: peak memory and seconds of a fresh process.

    python -m bench.single.full_finetune_1b5 [--steps 2] [--layers 28] [--threads 2] [--out FILE.json]

A random bfloat16 checkpoint of Qwen2.5-1.5B's shape is written to a temporary folder (3 GB), and `oncurve train` trains
it with a recipe: no KL term, split masters, moments in bfloat16, so 12 bytes per parameter with its gradient. The run
ends with its checkpoint and its export, so the folder needs 25 GB for a while.

The peak is that of the training process (`ru_maxrss`), loading, sampling, updates, checkpoint and export included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.models import load_tokenizer, questions
from oncurve.durable import LazyTensors, to_json, write_directory

LIMIT = 20 * 2**30

RECIPE = """
[run]
steps = {steps}
threads = {threads}

[model]
path = "model"
dtype = "bfloat16"

[data]
path = "prompts.jsonl"
template = "{{question}}"
prompts_per_step = 1

[rollout]
group_size = 4
max_new_tokens = 16

[[rewards]]
path = "reward.py:reward"

[kl]
coef = 0

[learner]
masters = "split"
moments = "bfloat16"
{more}
[checkpoint]
every = 0
"""

REWARD = '''\
def reward(completion_ids):
    """A hash of the completion, so that groups are hardly ever constant."""
    return sum(completion_ids) % 101 / 100
'''


def write_model(folder: Path, layers: int) -> int:
    """Write a random checkpoint of Qwen2.5-1.5B's shape, never whole in memory. Returns the number of parameters."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in AutoModelForCausalLM.from_config(config).named_parameters()}
    generator = torch.Generator().manual_seed(0)

    def make(name: str) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shapes[name], dtype=torch.bfloat16)
        return torch.empty(shapes[name], dtype=torch.bfloat16).normal_(0.0, 0.02, generator=generator)

    config.architectures = ["Qwen2ForCausalLM"]
    write_directory(folder, {"model.safetensors": LazyTensors(shapes, make), "config.json": to_json(config.to_dict())})
    load_tokenizer().save_pretrained(folder)
    return sum(shape.numel() for shape in shapes.values())


def train(folder: Path, recipe: str) -> dict[str, Any]:
    """Run the recipe in `folder` by the command line. Returns peak bytes, seconds, and the metrics of its steps."""
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    rows = [json.dumps({"question": question}) for question in questions()[:16]]
    (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "oncurve", "train", "recipe.toml", "--out", "run"],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"oncurve train ended with {done.returncode}")
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "seconds": time.monotonic() - began,
        "steps": [json.loads(line) for line in lines],
    }


def main() -> int:
    """Make the model, train it, print the figures. Exit code 1 where the peak is above the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--learner", default="", help="further lines of [learner], as TOML")
    parser.add_argument("--out", type=Path, help="write the figures to this file, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncurve-1b5-") as name:
        parameters = write_model(Path(name) / "model", given.layers)
        recipe = RECIPE.format(steps=given.steps, threads=given.threads, more=given.learner)
        found = {"parameters": parameters, "threads": given.threads, **train(Path(name), recipe)}
    peak = int(found["peak_bytes"])
    sys.stdout.write(f"{parameters:,} parameters: peak {peak / 2**30:.2f} GiB, {peak / parameters:.2f} bytes each\n")
    for step in found["steps"]:
        phases = ", ".join(f"{key.removeprefix('time/')} {step[key]:.1f}" for key in step if key.startswith("time/"))
        sys.stdout.write(f"step {step['step']:.0f}: {step['time/step']:.1f} s ({phases})\n")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(peak > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
