"""The settings of a rollout: the number, length and randomness of completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from oncurve.components import Component
from oncurve.types import Prompt


class Sampling(Component):
    """The number of completions per prompt, their length, their randomness, and what ends them."""

    group_size: int = Field(8, ge=1, le=10**5)
    """G, completions of each prompt."""

    max_new_tokens: int = Field(512, ge=1, le=10**7)
    """A completion of this many tokens is truncated: it ended by "length"."""

    temperature: float = Field(1.0, ge=0, le=1e4)
    """Logits are divided by it, in the learner too; 0 takes the likeliest token (evaluation)."""

    top_k: int = Field(default=0, ge=0, le=10**7)
    """Sample from this many of the likeliest tokens only; 0: from all."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the fewest of the likeliest tokens that together have this probability, after `top_k`; 1: from all.
    The learner trains on the same kept sets, as they were recorded."""

    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample from tokens that are at least this share as likely as the likeliest one, after `top_p`; 0: from all."""

    stop: tuple[str, ...] = ()
    """Strings that end a completion. The text ends before the string, the token ids after the token that completed it.
    """

    eos_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Token ids that end a completion, in addition to the model's own."""

    max_concurrent: int | None = Field(None, ge=1, le=10**6)
    """Completions decoded at the same time, which bounds memory; not set: 1024 on CUDA, or as many as fit, and 256
    elsewhere. The others wait, and start as completions end."""

    def rows_at_once(self, device_type: str) -> int:
        """Return `max_concurrent`, or where it is not set what stands for it on a type of device."""
        return self.max_concurrent or (1024 if device_type == "cuda" else 256)

    @property
    def truncation(self) -> str:
        """The settings that leave tokens out before one is drawn, like "top_k 20, top_p 0.9"; "" for none."""
        given = {"top_k": self.top_k, "top_p": self.top_p % 1, "min_p": self.min_p}
        return ", ".join(f"{name} {value:g}" for name, value in given.items() if value and self.temperature)

    def of(self, prompt: Prompt) -> Sampling:
        """Return these settings with the prompt's own `limit`, where that is lower."""
        if prompt.limit is None or prompt.limit >= self.max_new_tokens:
            return self
        return self.model_copy(update={"max_new_tokens": prompt.limit})

    @field_validator("temperature")
    @classmethod
    def _finite_logits(cls, temperature: float) -> float:
        if 0 < temperature < 1e-4:
            raise ValueError("should be 0 (the likeliest token) or 0.0001 at least, or logits overflow")
        return temperature

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("an empty stop string would end every completion at once: leave it out")
        return stop
