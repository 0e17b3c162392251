"""Metrics of made steps by short names."""

from collections.abc import Mapping
from typing import Any

SHORT = {
    "reward": "reward/mean",
    "length": "completions/length",
    "truncated": "completions/truncated",
    "constant": "groups/constant",
    "invalid": "completions/invalid",
    "kl": "policy/kl",
    "kl_old": "policy/kl_old",
    "kl_coef": "policy/kl_coef",
    "entropy": "policy/entropy",
    "mismatch": "policy/mismatch",
    "learning_rate": "optim/learning_rate",
    "skipped": "optim/updates_skipped",
    "moved": "reference/moved",
}


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {SHORT.get(name, name): value for name, value in values.items()}
