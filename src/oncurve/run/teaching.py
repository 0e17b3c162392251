"""The teacher of a distillation: loaded as the policy is, and compared with it before anything is sampled."""

from __future__ import annotations

from typing import Any

from oncurve.advantages import teacher_of
from oncurve.base.errors import ConfigError
from oncurve.config import RunConfig
from oncurve.models import LoadedModel


def load_teacher(config: RunConfig, policy: LoadedModel) -> LoadedModel | None:
    """Return the teacher of `config.advantage`, in the policy's dtype; the policy itself where it teaches itself.

    None: the advantage needs no teacher. Raises ConfigError: its tokens are not the policy's. ModelError: it cannot be
    loaded.
    """
    teacher = teacher_of(config.advantage)
    if teacher is None:
        return None
    if teacher.path is None:
        return policy
    dtype = str(policy.dtype).removeprefix("torch.")
    loaded = config.model.model_copy(update={"path": teacher.path, "dtype": dtype, "revision": None}).build()
    problem = _other_tokens(policy, loaded)
    if problem is not None:
        raise ConfigError(f"advantage.teacher: {loaded.name} {problem}; choose a model of the policy's family")
    return loaded


def _other_tokens(policy: LoadedModel, teacher: LoadedModel) -> str | None:
    """Return how the teacher's tokens differ from the policy's; None: it has all of them, by the same names."""
    mine, theirs = _names(policy.tokenizer), _names(teacher.tokenizer)
    for name, number in sorted(mine.items(), key=lambda token: token[1]) if mine and theirs else ():
        if theirs.get(name) != number:
            other = theirs.get(name)
            has = "has no such token" if other is None else f"has it as {other}"
            return f"has another tokenizer than the policy: token {number} of the policy is {name!r}, and it {has}"
    least, rows = policy.vocabulary, teacher.vocabulary
    if least is not None and rows is not None and rows < least:
        return f"has {rows:,} tokens, and the policy can sample {least:,}"
    return None


def _names(tokenizer: Any) -> dict[str, int]:
    """Return a tokenizer's tokens by name, the added ones too; empty where there is none."""
    found: dict[str, int] = {} if tokenizer is None else tokenizer.get_vocab()
    return found
