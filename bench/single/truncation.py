"""Truncated sampling in an update: processor seconds with kept sets over those without, in pairs.

    python -m bench.single.truncation [--repeats 16] [--threads 1] [--out bench/results/truncation.json]

Random models of the Llama shape, 16 completions of 64 tokens in one micro-batch, float32. Both batches
have the same tokens; only one has kept sets, which are random. An update is the gradient of the clipped objective
without a KL term: every other term makes the share of the kept sets smaller.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench import machine
from bench.timing import ratio_interval, time_in_turn

__all__ = ["main", "measure"]

OUT = Path(__file__).parents[1] / "results" / "truncation.json"
CASES = ((512, 64, 200), (1024, 128, 200), (4096, 128, 200), (32000, 256, 20))
"""Vocabulary, width of the model, tokens kept at each position."""


def measure(vocabulary: int, width: int, kept: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of updates without and with kept sets, in turn, and the ratio with its interval."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from oncurve.advantages import GroupAdvantage
    from oncurve.batching import collate
    from oncurve.learner import LearnerConfig
    from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS, KLPenalty, Regularizer
    from oncurve.models import wrap
    from oncurve.types import Completion, Group, Prompt, Score

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    learner = LearnerConfig(tokens_per_micro_batch=2048).build(
        wrap(LlamaForCausalLM(config)), OBJECTIVE_KINDS["clipped"](), Regularizer(KLPenalty(coef=0.0), 0.0)
    )
    groups = []
    for number in range(2):
        completions = []
        for sample in range(8):
            sets = torch.rand(64, vocabulary).topk(kept).indices.int().sort(1).values
            ids = tuple(sets[:, kept // 2].tolist())
            listed = sets.numpy().tobytes()
            completions.append(Completion(ids, "", (-3.0,) * 64, "length", sample, 0, None, (kept,) * 64, listed))
        prompt = Prompt(number, "", tuple(torch.randint(vocabulary, (32,)).tolist()))
        groups.append(Group(prompt, tuple(completions), tuple(Score(float(sample % 2)) for sample in range(8))))
    batch = collate(groups)
    batch = batch.with_advantages(GroupAdvantage()(batch))
    batch = batch.with_weights(AGGREGATION_KINDS["token-mean"]()(batch))

    def update(given: Any) -> None:
        learner.accumulate(given)
        learner.optimizer.zero_grad()

    without = batch.having(kept_sizes=None, kept_ids=None)
    times = time_in_turn(
        {"without": lambda: update(without), "with": lambda: update(batch)}, repeats, clock=time.process_time
    )
    return {**times, "ratio": ratio_interval(times["with"], times["without"])}


def main() -> int:
    """Measure every case, print its line, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found: dict[str, Any] = {"machine": machine.describe(), "load": machine.load(), "threads": given.threads}
    for vocabulary, width, kept in CASES:
        case = found[f"{kept} of {vocabulary}"] = measure(vocabulary, width, kept, given.repeats)
        line = "times as long: {:.3f} ({:.3f} to {:.3f})".format(*case["ratio"])
        print(
            f"{time.strftime('%H:%M:%S')}  {kept:4} kept of {vocabulary:6}  {line}  load {machine.load()[0]}",
            flush=True,
        )
    given.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
