"""The arguments of a reward function, as a worker tells them. Workers import this, so it needs nothing but Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """The arguments that a reward function takes.

    batch        one call with lists for the whole batch (TRL's signature), instead of one call per completion
    needs        names that must exist; each entry lists alternatives, of which one suffices
    takes        names that are passed where they exist
    everything   all columns are passed (`**kwargs`)
    """

    batch: bool = False
    needs: tuple[tuple[str, ...], ...] = ()
    takes: tuple[str, ...] = ()
    everything: bool = False

    def wants(self, name: str) -> bool:
        """Return whether the function is given what has this name."""
        return self.everything or name in self.takes or any(name in names for names in self.needs)

    def as_json(self) -> dict[str, Any]:
        """As a worker sends it; `told` reads it."""
        return asdict(self)

    @classmethod
    def told(cls, about: Accepts | Mapping[str, Any]) -> Accepts:
        """Return what a runner is `about`: in this process the object, from a worker JSON."""
        if isinstance(about, Accepts):
            return about
        needs = tuple(tuple(names) for names in about.get("needs", ()))
        return cls(**{**about, "needs": needs, "takes": tuple(about.get("takes", ()))})
