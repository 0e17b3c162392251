"""The correctness gate: the fast path's gradient at the 6.5M shape against the plain oracle's, which shares no code.

    float64    relative error of the whole gradient <= 1e-10
    float32    <= 1e-5, against the oracle in float64
    bfloat16   cosine with the oracle's gradient in float64 >= 0.9995, masters in float32

`python -m bench.compare.gate THREADS` prints one line of JSON, in a process of its own. The
difference of sampler and learner comes from the timed runs (`results.void_reasons`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import models
from bench.cases import Case

__all__ = ["CASE", "measure"]

ROOT = Path(__file__).parents[2]
CASE = Case("oncurve", "6.5M", prompts=2, group_size=3, completion=24, lengths="natural", kl_coef=0.04)
"""Small, because the oracle goes token by token: six completions, two prompts, natural lengths, KL to another model."""

LIMITS = {"gradient float64": 1e-10, "gradient float32": 1e-5, "gradient bfloat16, 1 - cosine": 5e-4}


def measure(threads: int) -> dict[str, Any]:
    """Return `{"gates": {name: {"value", "limit", "passed"}}}`, in a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "bench.compare.gate", str(threads)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the gate could not be measured:\n{done.stderr[-2000:]}")
    values = json.loads(done.stdout.splitlines()[-1])
    gates = {name: {"value": values[name], "limit": at, "passed": values[name] <= at} for name, at in LIMITS.items()}
    return {"gates": gates}


def main() -> None:
    """Measure in this process."""
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    sys.path.insert(0, str(ROOT / "tests"))
    right = _oracle()
    values = {}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        error = (_ours(dtype).double() - right).norm() / right.norm()
        values[f"gradient {name}"] = float(error)
    cosine = torch.nn.functional.cosine_similarity(_ours(torch.bfloat16).double(), right, dim=0)
    values["gradient bfloat16, 1 - cosine"] = 1.0 - float(cosine)
    print(json.dumps(values))


def _module(dtype: Any, disturbed: bool = False) -> Any:
    """Return the 6.5M model in `dtype`; `disturbed`: another one near it, for a reference that differs from the
    policy.
    """
    import torch
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(models.model_path(CASE.model), dtype=torch.float64)
    if disturbed:
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += 0.1 * parameter.data.std().nan_to_num() * noise
    return module.to(dtype)


def _write_out_norms(module: Any) -> Any:
    """RMS norms in float64: transformers computes them in float32 whatever the model's precision is."""
    import torch

    def exact(norm: Any) -> Any:
        return lambda x: norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

    for part in module.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = exact(part)
    return module.eval()


def _rewards() -> list[list[float]]:
    return [[1.0, 0.0, 0.25], [0.5, 0.75, 0.0]]


def _completions() -> list[list[list[int]]]:
    """Return tokens of every completion: text of other prompts, of the lengths of the case."""
    lengths = CASE.lengths_of_step(0)
    return [
        [models.prompt_ids(CASE, 10 + g * CASE.group_size + i)[:length] for i, length in enumerate(group)]
        for g, group in enumerate(lengths)
    ]


def _oracle() -> Any:
    """Return the gradient `(all parameters,)` float64 by `tests/oracles/plain_grpo.py` and the module's plain
    forward.
    """
    import torch

    from oracles.plain_grpo import PlainConfig, PlainGroup, reference_loss

    policy = _write_out_norms(_module(torch.float64))
    reference = _write_out_norms(_module(torch.float64, disturbed=True))
    groups = [
        PlainGroup(models.prompt_ids(CASE, g), completions, rewards)
        for g, (completions, rewards) in enumerate(zip(_completions(), _rewards(), strict=True))
    ]
    loss = reference_loss(
        lambda ids: policy(ids).logits[0],
        groups,
        PlainConfig(kl_coef=CASE.kl_coef),
        lambda ids: reference(ids).logits[0],
    )
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


def _ours(dtype: Any) -> Any:
    """Return the learner's accumulated gradient, computing in `dtype`."""
    import torch

    from oncurve.advantages import GroupAdvantage
    from oncurve.batching import collate
    from oncurve.learner import LearnerConfig
    from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
    from oncurve.models import wrap
    from oncurve.types import Completion, Group, Prompt, Score

    masters = torch.float32 if dtype == torch.bfloat16 else dtype
    policy, reference = wrap(_module(masters)), wrap(_module(masters, disturbed=True))
    if not policy.fast:
        raise RuntimeError(f"the model does not take the fast path: {policy.path_reason}")
    groups = [
        Group(
            Prompt(g, "", tuple(models.prompt_ids(CASE, g))),
            tuple(Completion(tuple(ids), "", (0.0,) * len(ids), "length", i, 0) for i, ids in enumerate(completions)),
            tuple(Score(reward) for reward in rewards),
        )
        for g, (completions, rewards) in enumerate(zip(_completions(), _rewards(), strict=True))
    ]
    learner = LearnerConfig().build(
        policy, Clipped(), Regularizer(KLPenalty(coef=CASE.kl_coef), 0.0), reference=reference, dtype=dtype
    )
    batch = learner.score(collate(groups), frozenset({"reference"}))
    batch = batch.with_advantages(GroupAdvantage()(batch))
    learner.accumulate(batch.with_weights(TokenMean()(batch)))
    return torch.cat([gradient.flatten() for gradient in learner.optimizer.gradients().values()])


if __name__ == "__main__":
    main()
