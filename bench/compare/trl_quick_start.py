"""One update of TRL's quick start at its own defaults: the gradient of TRL's trainer and of `oncurve.compat.trl`'s.

    python -m bench.compare.trl_quick_start

Both trainers get the same `GRPOConfig` arguments: none but float32 on a CPU, one update, and no clipping, because the
norm that TRL clips by is rounded. Both get the same eight completions of one prompt, and the reward function of the
quick start. The relative difference must be at most 1e-5. Then both train two steps, with several losses, and the keys
of their `log_history` must be the same. Else the exit code is 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from bench import models
from bench.compare.trl_gradients import LIMIT, _Gradient
from bench.compare.updates import CASE, distance

__all__ = ["log_keys", "main", "oncurve_gradient", "trl_gradient"]

GROUP = 8
ARGUMENTS: dict[str, Any] = {"use_cpu": True, "bf16": False, "max_steps": 1, "max_grad_norm": 0.0}
PROMPT = 0
RUNS: tuple[dict[str, Any], ...] = (
    {},
    {"beta": 0.1},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"logging_steps": 10},
)
"""Further arguments of the runs whose logs are compared."""


def completions() -> list[list[int]]:
    """Eight completions of 3 to 24 tokens; the even ones end with EOS."""
    eos = models.load_tokenizer().eos_token_id
    texts = [models.prompt_ids(CASE, 10 + i)[: 3 * (i + 1)] for i in range(GROUP)]
    return [[*ids[:-1], eos] if i % 2 == 0 else ids for i, ids in enumerate(texts)]


def prompt_text() -> str:
    """Return the prompt."""
    return str(models.load_tokenizer().decode(models.prompt_ids(CASE, PROMPT)[:12]))


def reward_num_unique_chars(completions: list[str], **kwargs: Any) -> list[float]:
    """Return the reward of TRL's quick start."""
    return [len(set(text)) for text in completions]


def trl_gradient() -> dict[str, Tensor]:
    """Return the gradient of TRL's own trainer."""
    from trl import GRPOConfig, GRPOTrainer

    kept, tokenizer = _Gradient(), models.load_tokenizer()

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = completions()
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(row) for row in ids],
        }

    with tempfile.TemporaryDirectory(prefix="bench-trl-") as folder:
        trainer = GRPOTrainer(
            model=str(models.model_path(CASE.model)),
            reward_funcs=reward_num_unique_chars,
            args=GRPOConfig(folder, **ARGUMENTS, save_strategy="no", report_to="none", disable_tqdm=True),
            train_dataset=Dataset.from_list([{"prompt": prompt_text()}]),
            processing_class=tokenizer,
            callbacks=[kept],
            rollout_func=rollout,
        )
        with redirect_stdout(sys.stderr):
            trainer.train()
    return kept.found


def oncurve_gradient() -> dict[str, Tensor]:
    """Return the gradient of a run that `oncurve.compat.trl` puts together."""
    from oncurve.compat.trl import GRPOConfig, GRPOTrainer
    from oncurve.metrics import Metrics
    from oncurve.trainer.credit import credited, weighted_by
    from oncurve.types import Completion, Group

    tokenizer = models.load_tokenizer()
    with tempfile.TemporaryDirectory(prefix="bench-trl-") as folder:
        made = GRPOTrainer(
            model=str(models.model_path(CASE.model)),
            reward_funcs=reward_num_unique_chars,
            args=GRPOConfig(Path(folder) / "out", **ARGUMENTS),
            train_dataset=[{"prompt": prompt_text()}],
            processing_class=tokenizer,
        )
        run, metrics = made.run, Metrics()
        rows = [
            Completion(
                tuple(ids),
                tokenizer.decode(ids, skip_special_tokens=True),
                (0.0,) * len(ids),
                "eos" if ids[-1] == tokenizer.eos_token_id else "length",
                i,
                0,
            )
            for i, ids in enumerate(completions())
        ]
        groups = run.rewards.score([Group(run.prompts[0], tuple(rows))])
        batch = credited(run.trainer.score(groups, metrics), run.trainer.credit.advantage)
        run.learner.accumulate(weighted_by(run.trainer.credit.aggregation, batch))
        found = {name: part.float().clone() for name, part in run.learner.optimizer.gradients().items()}
        made.close()
    return found


def log_keys(package: Any, more: dict[str, Any]) -> list[set[str]]:
    """Return the keys of each line of the log of two steps by `trl`, or by `oncurve.compat.trl`."""
    given = {"num_generations": 4, "max_completion_length": 6, "logging_steps": 1, "save_strategy": "no"}
    with tempfile.TemporaryDirectory(prefix="bench-trl-") as folder:
        trainer = package.GRPOTrainer(
            model=str(models.model_path(CASE.model)),
            reward_funcs=reward_num_unique_chars,
            args=package.GRPOConfig(str(Path(folder) / "out"), **{**ARGUMENTS, **given, "max_steps": 2, **more}),
            train_dataset=Dataset.from_list([{"prompt": prompt_text()}] * 4),
            processing_class=models.load_tokenizer(),
        )
        with redirect_stdout(sys.stderr):
            trainer.train()
    return [set(line) for line in trainer.state.log_history]


def main() -> int:
    """Print the differences; the exit code."""
    import trl

    import oncurve.compat.trl as ours

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    difference = distance(oncurve_gradient(), trl_gradient())
    print(f"TRL's quick start at its defaults, float32: relative difference of the gradients {difference:.1e}")
    logs = [(more, log_keys(trl, more), log_keys(ours, more)) for more in RUNS]
    other = [
        (more, [theirs ^ mine for theirs, mine in zip(*both, strict=True)])
        for more, *both in logs
        if both[0] != both[1]
    ]
    print("\n".join(f"{more}: keys of one log alone: {keys}" for more, keys in other))
    print(f"logs of {len(RUNS)} runs: {len(other)} with other keys than TRL's")
    return int(difference > LIMIT or bool(other))


if __name__ == "__main__":
    sys.exit(main())
