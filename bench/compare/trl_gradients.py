"""The gradient of one update, by TRL's `GRPOTrainer` and by oncurve's learner, at equal settings in float32.

    python -m bench.compare.trl_gradients [--losses grpo,dapo] [--out FILE.json]

TRL's trainer runs its own step: it is given completions (`rollout_func`), rewards, the reference's weights and the old
log-probs, and its gradient is read before its optimizer's step. The relative difference must be at most 1e-5. In the
cases of `KNOWN` TRL computes something else than the formula; there both are compared with the plain oracle in float64
and oncurve's difference to it must be at most 1e-5. Exit code 1 where a limit does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from bench import machine, models
from bench.compare import updates
from bench.compare.updates import CASE, KLS, LOSSES, Update, distance
from bench.report.tables import markdown

__all__ = ["KNOWN", "LIMIT", "known", "main", "planned", "trl_gradient"]

LIMIT = 1e-5
MICRO_BATCHES = 3
ROW_MEANS = ("grpo", "dr_grpo", "sapo", "gspo")

KNOWN: dict[str, tuple[Callable[[Update], bool], str]] = {
    "micro-batches": (
        lambda update: update.loss == "bnpo" and update.micro_batches > 1,
        "TRL takes the mean of the micro-batches' means: the gradient depends on how the batch was split. The formula "
        "has one mean over all tokens.",
    ),
    "masked row": (
        lambda update: update.mask_truncated and update.loss in ROW_MEANS,
        "TRL divides by all completions, also by those that are masked (truncated). The formula has the mean over "
        "those that are trained.",
    ),
    "sequence ratio in the KL": (
        lambda update: update.loss == "gspo" and update.kl == "ratio k3",
        "TRL multiplies each token's k3 by the ratio of the whole completion. It is the ratio of the token that makes "
        "k3 unbiased (arXiv:2512.02556).",
    ),
}
"""Where TRL 1.16 computes something else than the formula: which updates, and what it does."""


def known(update: Update) -> str | None:
    """Return the key in `KNOWN` of the reason why TRL's gradient is expected to differ; None: it must be equal."""
    return next((key for key, (matches, _) in KNOWN.items() if matches(update)), None)


def planned(losses: Iterable[str]) -> list[Update]:
    """Return every loss with every KL term, on-policy and off-policy, whole and in micro-batches; then with a masked
    row.
    """
    chosen = list(losses)
    regular = [
        Update(loss, kl, off_policy, micro_batches)
        for loss in chosen
        for kl in KLS
        for off_policy in (False, True)
        for micro_batches in (1, MICRO_BATCHES)
    ]
    return regular + [Update(loss, mask_truncated=True) for loss in chosen]


class _Gradient(TrainerCallback):  # type: ignore[misc]  # mypy does not follow transformers
    """Keeps the accumulated gradient."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The gradient, which is not clipped here."""
        self.found = {name: p.grad.detach().clone() for name, p in parts["model"].named_parameters()}


def trl_gradient(update: Update, **overrides: Any) -> dict[str, Tensor]:
    """TRL's gradient of the update by parameter. `overrides`: further keys of `GRPOConfig`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rewards = [reward for group in updates.REWARDS for reward in group]
    ids = [row for group in updates.completions() for row in group]
    kept = _Gradient()
    with tempfile.TemporaryDirectory(prefix="bench-trl-") as folder:
        trainer = GRPOTrainer(
            model=str(models.model_path(CASE.model)),
            reward_funcs=lambda completion_ids, **_: [rewards[ids.index(list(row))] for row in completion_ids],
            args=GRPOConfig(**{**_arguments(update, folder), **overrides}),
            train_dataset=Dataset.from_list([{"prompt": str(g)} for g in range(CASE.prompts)]),
            processing_class=models.load_tokenizer(),
            callbacks=[kept],
            rollout_func=_rollout,
        )
        if trainer.ref_model is not None:
            trainer.ref_model.load_state_dict(updates.module(torch.float32, disturbed=True).state_dict(), strict=False)
        if update.off_policy:
            _give_old_logprobs(trainer)
        with redirect_stdout(sys.stderr):
            trainer.train()
    return kept.found


def _arguments(update: Update, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": CASE.rows // update.micro_batches,
        "gradient_accumulation_steps": update.micro_batches,
        "gradient_checkpointing": False,
        "num_generations": CASE.group_size,
        "max_completion_length": CASE.completion,
        "mask_truncated_completions": update.mask_truncated,
        "max_steps": 1,
        "max_grad_norm": 0.0,
        "shuffle_dataset": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **LOSSES[update.loss].trl,
        **KLS[update.kl][0],
    }


def _rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Return the given completions; a prompt is the number of its group and occurs once for each."""
    groups = list(dict.fromkeys(map(int, prompts)))
    ids = [row for group in groups for row in updates.completions()[group]]
    own = updates.prompts()
    return {
        "prompt_ids": [own[int(prompt)] for prompt in prompts],
        "completion_ids": ids,
        "logprobs": [[0.0] * len(row) for row in ids],
    }


def _give_old_logprobs(trainer: Any) -> None:
    """TRL scores the old policy itself, as it is at sampling; here it was another one."""
    score = trainer._generate_and_score_completions
    rows = [row for group in updates.old_logprobs() for row in group]

    def scored(inputs: Any) -> Any:
        batch = score(inputs)
        old = torch.zeros(batch["completion_ids"].shape)
        for row, values in enumerate(rows):
            old[row, : len(values)] = torch.tensor(values)
        return {**batch, "old_per_token_logps": old}

    trainer._generate_and_score_completions = scored


def compare(update: Update) -> dict[str, Any]:
    """Return the differences of an update: of oncurve to TRL, and in a known case of both to the oracle."""
    ours, theirs, reason = updates.gradient(update), trl_gradient(update), known(update)
    found: dict[str, Any] = {"difference": distance(ours, theirs), "known": reason}
    if reason is None:
        return found | {"passed": found["difference"] <= LIMIT}
    right = updates.oracle(update)
    found |= {"trl_to_oracle": distance(theirs, right), "oncurve_to_oracle": distance(ours, right)}
    return found | {"passed": found["oncurve_to_oracle"] <= LIMIT}


def cispo_at_default() -> float:
    """Return what is left of CISPO's gradient, on-policy, at TRL's default `epsilon_high`, which bounds the weight by
    0.2.
    """
    update = Update("cispo", off_policy=False)
    whole, default = (_norm(trl_gradient(update, **more)) for more in ({}, {"epsilon_high": None}))
    return default / whole


def _norm(gradient: dict[str, Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in gradient.values()]).double().norm())


def name(update: Update) -> str:
    """Return the row of the table that an update is in."""
    special = ", a truncated row masked" if update.mask_truncated else ""
    return f"{update.loss}, KL {update.kl}{special}"


def table(found: list[tuple[Update, dict[str, Any]]]) -> str:
    """oncurve's relative difference to TRL by row and kind of update; a star leads to the second table."""
    columns = [(off, micro) for off in (False, True) for micro in (1, MICRO_BATCHES)]
    rows = {name(update): {} for update, _ in found}  # type: dict[str, dict[tuple[bool, int], str]]
    for update, figures in found:
        star = "*" if figures["known"] else ""
        rows[name(update)][update.off_policy, update.micro_batches] = f"{figures['difference']:.1e}{star}"
    heads = [f"{'off' if off else 'on'}-policy, {micro} micro-batch{'es' * (micro > 1)}" for off, micro in columns]
    return markdown(
        ["", *heads], [[row, *(cells.get(column, "") for column in columns)] for row, cells in rows.items()]
    )


def known_table(found: list[tuple[Update, dict[str, Any]]]) -> str:
    """Return the starred cases: both compared with the oracle in float64, which is the right figure."""
    rows = [
        [
            name(update),
            "off" if update.off_policy else "on",
            str(update.micro_batches),
            f"{figures['trl_to_oracle']:.1e}",
            f"{figures['oncurve_to_oracle']:.1e}",
            figures["known"],
        ]
        for update, figures in found
        if figures["known"]
    ]
    return markdown(["", "policy", "micro-batches", "TRL to the formula", "oncurve to the formula", "reason"], rows)


def report(found: list[tuple[Update, dict[str, Any]]], share: float | None) -> str:
    """Return both tables, and what TRL does in the starred cases. `share`: see `cispo_at_default`."""
    reasons = dict.fromkeys(figures["known"] for _, figures in found if figures["known"])
    notes = [f"* {reason}: {KNOWN[reason][1]}" for reason in reasons]
    if share is not None:
        notes.append(
            "* cispo: TRL's `epsilon_high` bounds the weight itself, and its default is `epsilon`, 0.2: on-policy it "
            f"leaves {share:.3f} of the formula's gradient. The rows above have 1.28."
        )
    return "\n\n".join(
        [
            table(found),
            known_table(found),
            "\n".join(textwrap.fill(note, 120, subsequent_indent="  ") for note in notes),
        ]
    )


def _read(record: dict[str, Any]) -> tuple[Update, dict[str, Any]]:
    """Return an update and its figures, as they are in the file."""
    names = [entry.name for entry in fields(Update)]
    given = {name: record.pop(name) for name in names}
    return Update(**given), record


def main() -> int:
    """Compare the updates and print the tables. Those of other losses stay in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=Path("bench/results/trl_gradients.json"))
    given = parser.parse_args()
    losses = given.losses.split(",")
    if unknown := set(losses) - set(LOSSES):
        parser.error(f"--losses: there is no {unknown.pop()!r}; there are: {', '.join(LOSSES)}")
    torch.set_num_threads(given.threads)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.filterwarnings("ignore")
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {"updates": []}
    found = [(update, figures) for update, figures in map(_read, kept["updates"]) if update.loss not in losses]
    for update in planned(losses):
        found.append((update, compare(update)))
        print(update, found[-1][1], file=sys.stderr, flush=True)
    share = cispo_at_default() if "cispo" in losses else kept.get("cispo_at_default")
    record = {"machine": machine.describe(), "updates": [vars(u) | f for u, f in found], "cispo_at_default": share}
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(report(found, share))
    failed = [name(update) for update, figures in found if not figures["passed"]]
    print(f"{len(found)} updates, {len(failed)} beyond {LIMIT:g}" + "".join(f"\n  {row}" for row in failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
