"""The ratio of learner and sampler under truncated sampling, with the recorded kept sets and without.

At one position the ratio without them is π(a)/q(a) = π(K) for every kept token, so its mean is π(K), exactly. The first
column enumerates that at the first token of each prompt. The others are of sampled completions.
"""

from __future__ import annotations

import math
from typing import Any

from bench.science.runs import TINY, Experiment

__all__ = ["EXPERIMENT"]

CUTS: dict[str, dict[str, float]] = {
    "top_p = 0.8": {"top_p": 0.8},
    "top_p = 0.95": {"top_p": 0.95},
    "top_k = 5": {"top_k": 5},
    "min_p = 0.1": {"min_p": 0.1},
}
PROMPTS, GROUP, TEMPERATURE = 64, 16, 1.5


def _jobs(seeds: int) -> list[dict[str, Any]]:
    return [{"cut": cut} for cut in CUTS]


def _one(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from oncurve.batching import collate
    from oncurve.models import LocalWeights, token_stats, wrap
    from oncurve.rollout import InProcessEngine, Sampling
    from oncurve.tasks import KINDS
    from oncurve.types import Group, Prompt, Score

    torch.set_num_threads(1)
    model = wrap(AutoModelForCausalLM.from_pretrained(TINY).double())
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    rows = [KINDS["arithmetic"]("test", number) for number in range(PROMPTS)]
    prompts = [Prompt(n, "", tuple(tokenizer(row["prompt"]).input_ids)) for n, row in enumerate(rows)]
    sampling = Sampling(group_size=GROUP, max_new_tokens=40, temperature=TEMPERATURE, **CUTS[job["cut"]])
    engine = InProcessEngine(sampling, None, (tokenizer.eos_token_id,), seed=0)
    engine.follow(LocalWeights(model, 0))
    groups = [
        Group(group.prompt, group.completions, (Score(0.0),) * GROUP) for group in engine.generate(prompts, draw=0)
    ]
    batch = collate(groups)
    with torch.no_grad():
        replayed = token_stats(model, batch, temperature=TEMPERATURE).logprobs
        whole = token_stats(model, batch.having(kept_sizes=None, kept_ids=None), temperature=TEMPERATURE).logprobs
        logits = [model.module(torch.tensor([prompt.ids])).logits[0, -1] / TEMPERATURE for prompt in prompts]
    kept = []
    for group, row in zip(groups, logits, strict=True):
        completion = group.completions[0]
        first = torch.frombuffer(bytearray(completion.kept_ids), dtype=torch.int32)[: completion.kept_sizes[0]]
        kept.append(float(row.softmax(0)[first.long()].sum()))
    mask = batch.loss_mask
    ratios = {
        "with": (replayed - batch.rollout_logprobs).exp()[mask],
        "without": (whole - batch.rollout_logprobs).exp()[mask],
        "first": (whole - batch.rollout_logprobs).exp()[:, 0],
    }
    return {"exact": sum(kept) / len(kept)} | {
        name: [float(r.mean()), 1.96 * float(r.std()) / math.sqrt(len(r)), float((r - 1).abs().max())]
        for name, r in ratios.items()
    }


def _page(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| sampling | π(K) at the first token, enumerated | mean ratio there, sampled | without the sets, all tokens | "
        "with the sets, all tokens | largest distance from 1 with the sets |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for run in sorted(runs, key=lambda run: list(CUTS).index(run["cut"])):
        cells = ["{:.4f} ± {:.4f}".format(*run[name]) for name in ("first", "without", "with")]
        lines.append(f"| `{run['cut']}` | {run['exact']:.4f} | " + " | ".join(cells) + f" | {run['with'][2]:.0e} |")
    return "\n".join(lines)


EXPERIMENT = Experiment("ratio", _jobs, _one, _page)
