"""The training pass of oncurve and of TRL on the same tokens: forward, loss, backward, and nothing else.

Random tokens, random advantages, a small Qwen2 with random weights: only sizes matter here. Both compute in bf16 (TRL:
bf16 weights, its fastest setting where the processor has bf16), both process the rows in passes of at
most `tokens_per_micro_batch` token positions, as each counts them.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Ours", "Point", "Trl", "make_module", "micro_batch_rows"]


@dataclass(frozen=True)
class Point:
    """One batch: M prompts of P tokens, G completions each of C tokens, over a vocabulary of V."""

    prompts: int = 2
    group_size: int = 8
    prompt_tokens: int = 256
    completion: int = 64
    vocabulary: int = 8192
    tokens_per_micro_batch: int = 16384

    @property
    def rows(self) -> int:
        """B = M · G."""
        return self.prompts * self.group_size

    @property
    def padded_tokens(self) -> int:
        """Token positions where every completion has its own copy of the prompt: M · G · (P + C)."""
        return self.rows * (self.prompt_tokens + self.completion)

    def prompt_ids(self) -> Tensor:
        """Return `(M, P)` int64."""
        return torch.randint(2, self.vocabulary, (self.prompts, self.prompt_tokens), generator=_generator(0))

    def completion_ids(self) -> Tensor:
        """Return `(B, C)` int64."""
        return torch.randint(2, self.vocabulary, (self.rows, self.completion), generator=_generator(1))

    def advantages(self) -> Tensor:
        """Return `(B,)` float32, never 0: every row has a gradient."""
        return torch.rand(self.rows, generator=_generator(2)) + 0.1


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def micro_batch_rows(point: Point) -> int:
    """Return rows of P + C tokens in one pass of TRL."""
    return max(1, point.tokens_per_micro_batch // (point.prompt_tokens + point.completion))


def make_module(vocabulary: int) -> Any:
    """Return a Qwen2 of 2 layers, hidden size 256, float32, the same for every call."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


class Ours:
    """oncurve's learner: `train_pass` is `LocalLearner.accumulate`."""

    def __init__(self, vocabulary: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self._module, self._dtype = make_module(vocabulary), dtype
        self._learner: Any = None
        self._batch: Any = None

    def take(self, point: Point) -> None:
        """Use this batch from now on."""
        from oncurve.learner import LearnerConfig
        from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
        from oncurve.models.loading.weights import loaded_from
        from oncurve.types import TrainBatch

        if self._learner is None:
            settings = LearnerConfig(tokens_per_micro_batch=point.tokens_per_micro_batch, learning_rate=1e-6)
            model = loaded_from(self._module).model
            self._learner = settings.build(model, Clipped(), Regularizer(KLPenalty(coef=0.0)), dtype=self._dtype)
        if self._learner.config.tokens_per_micro_batch != point.tokens_per_micro_batch:
            raise ValueError("tokens_per_micro_batch is fixed for a learner: give all its points the same")
        ids = point.completion_ids()
        batch = TrainBatch(
            completion_ids=ids,
            lengths=torch.full((point.rows,), point.completion),
            loss_mask=torch.ones_like(ids, dtype=torch.bool),
            valid=torch.ones(point.rows, dtype=torch.bool),
            group_ids=torch.arange(point.prompts).repeat_interleave(point.group_size),
            prompts=tuple(point.prompt_ids()),
            rewards=torch.zeros(point.rows, dtype=torch.float64),
            advantages=point.advantages().double()[:, None].expand(ids.shape).contiguous(),
        )
        self._batch = batch.with_weights(TokenMean()(batch))

    def train_pass(self) -> Any:
        """Return the gradient of the batch."""
        return self._learner.accumulate(self._batch)

    def update(self) -> None:
        """The gradient, and a step of the optimizer."""
        self._learner.apply(self.train_pass())

    def gradient(self) -> dict[str, Tensor]:
        """Return the last pass's gradient, by parameter."""
        return {name: p.grad.double() for name, p in self._module.named_parameters() if p.grad is not None}


class Trl:
    """TRL's trainer: `train_pass` is `compute_loss` and `backward` over the rows in passes."""

    def __init__(self, vocabulary: int, dtype: torch.dtype = torch.bfloat16) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        from bench import models

        settings = GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="bench-trl-"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=8,
            num_generations=8,
            beta=0.0,
            learning_rate=1e-6,
            report_to="none",
            dataloader_pin_memory=False,
        )
        self._trainer = GRPOTrainer(
            model=make_module(vocabulary).to(dtype),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": "x"}] * 8),
            processing_class=models.load_tokenizer(),
        )
        self._trainer.model.train()
        self._trainer.current_gradient_accumulation_steps = 1
        self._optimizer: Any = None
        self._passes: list[dict[str, Tensor]] = []

    def take(self, point: Point) -> None:
        """Use this batch from now on."""
        prompts = point.prompt_ids().repeat_interleave(point.group_size, 0)
        completions = point.completion_ids()
        whole = {
            "prompt_ids": prompts,
            "prompt_mask": torch.ones_like(prompts),
            "completion_ids": completions,
            "completion_mask": torch.ones_like(completions),
            "advantages": point.advantages(),
        }
        rows = micro_batch_rows(point)
        cut = {name: value.split(rows) for name, value in whole.items()}
        count = torch.tensor(completions.numel())
        self._passes = [
            {**{name: parts[i] for name, parts in cut.items()}, "num_items_in_batch": count}
            for i in range(len(cut["prompt_ids"]))
        ]

    def train_pass(self) -> None:
        """The gradient of the batch."""
        model = self._trainer.model
        model.zero_grad(set_to_none=True)
        for inputs in self._passes:
            self._trainer.compute_loss(model, inputs).backward()
        self._trainer._metrics["train"].clear()

    def update(self) -> None:
        """The gradient, clipped, and a step of the optimizer."""
        self.train_pass()
        if self._optimizer is None:
            self._optimizer = self._trainer.create_optimizer()
        torch.nn.utils.clip_grad_norm_(self._trainer.model.parameters(), 1.0)
        self._optimizer.step()

    def gradient(self) -> dict[str, Tensor]:
        """Return the last pass's gradient, by parameter."""
        return {name: p.grad.double() for name, p in self._trainer.model.named_parameters() if p.grad is not None}
