"""rlox's `GRPO`, around a transformers module in float32 whose `generate` has a cache.

It supports the fixed cell only: its prompts are one tensor, so all have one length (`Case.prompt_tokens`), and it has
no mask, so shorter completions would be trained on their padding. Its loss is the policy gradient with a k1 term, over
prompt tokens as well, and its reference always runs. It computes in float32, because it converts log-probs to NumPy.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from bench import models
from bench.cases import Case, is_constant
from bench.systems.probe import Probe
from bench.systems.process import BenchError
from bench.systems.rewards import hashed
from bench.systems.worker import Channel

__all__ = ["serve"]


class _Plain(nn.Module):
    """The model that rlox needs: `forward(ids) -> logits` and `generate(ids, max_new_tokens) -> ids`."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return `(B, T)` -> `(B, T, V)`."""
        logits: Tensor = self.network(input_ids, use_cache=False).logits
        return logits

    def generate(self, prompts: Tensor, max_new_tokens: int) -> Tensor:
        """Return prompts and completions `(B, P + C)`, temperature 1, no end token."""
        whole: Tensor = self.network.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            min_new_tokens=max_new_tokens,
            max_new_tokens=max_new_tokens,
        )
        return whole


def _make(case: Case) -> Any:
    import rlox.algorithms.grpo as rlox

    path = models.model_path(case.model, case.vocabulary)
    policy, reference = (_Plain(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)) for _ in range(2))
    return rlox.GRPO(
        policy,
        reference.requires_grad_(False),
        lambda completions, prompts: [0.0] * len(completions),
        group_size=case.group_size,
        learning_rate=1e-6,
        kl_coef=case.kl_coef,
        max_new_tokens=case.completion,
    )


def _watch(trainer: Any) -> Probe:
    probe = Probe()
    passes = "_get_per_token_logprobs"
    probe.timed(trainer, "train_step", "train")
    probe.timed(trainer, "reward_fn", "reward")
    probe.timed(trainer, passes, lambda: "train" if torch.is_grad_enabled() else "reference")
    probe.timed(trainer.optimizer, "step", "optimizer")
    probe.timed_generate(trainer.model)
    for model in (trainer.model, trainer.ref_model):
        probe.count_tokens(model.network)
    return probe


def serve(case: Case, channel: Channel) -> None:
    """Take a training step per command. Raises BenchError for work that rlox does not support."""
    if case.prompt_tokens is None or case.lengths != "fixed":
        raise BenchError("rlox takes prompts of one length and completions of one length only")
    trainer = _make(case)
    step = 0

    def reward(completions: list[Tensor], prompts: Tensor) -> list[float]:
        ids = [row[prompts.shape[1] :].tolist() for row in completions]
        first = step * case.prompts
        constant = [is_constant(case, first + row // case.group_size) for row in range(len(ids))]
        return hashed(ids, ids, constant)

    trainer.reward_fn = reward
    probe = _watch(trainer)
    channel.ready(dtype="torch.float32")
    while channel.wants_step():
        first = step * case.prompts
        prompts = torch.tensor([models.prompt_ids(case, first + m) for m in range(case.prompts)])
        started = time.perf_counter()
        trainer.train_step(prompts)
        channel.done(probe.report(time.perf_counter() - started, [case.completion] * case.rows))
        step += 1
