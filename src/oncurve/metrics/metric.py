"""The declared metrics (metrics.toml), and how a key finds its declaration."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oncurve.base.errors import suggest

Reduction = Literal["mean", "sum", "max", "last"]


@dataclass(frozen=True)
class Metric:
    """One declared number.

    name        its key in `metrics.jsonl`: a folder and a word. `<…>` at the end declares a family: all keys that begin
                with the part before the `<`
    reduction   makes one number of a step's observations; `formula` is that number
    meaning     in words; `advice`: what to do when it looks wrong
    trl, verl   the name of the nearest quantity in TRL and in verl, if there is one
    on_policy   the number is meaningful only while the weights are those that sampled the rollout: only a step's first
                update is observed
    """

    name: str
    reduction: Reduction
    unit: str
    formula: str
    meaning: str
    advice: str
    trl: str = ""
    verl: str = ""
    on_policy: bool = False

    @property
    def prefix(self) -> str | None:
        """The beginning of a family's keys (`"rewards/"`); None for a single metric."""
        return self.name.partition("<")[0] if self.name.endswith(">") else None


METRICS: dict[str, Metric] = {
    name: Metric(name, **words)
    for name, words in tomllib.loads(Path(__file__).with_name("metrics.toml").read_text("utf-8")).items()
}

_FAMILIES: dict[str, Metric] = {metric.prefix: metric for metric in METRICS.values() if metric.prefix is not None}


def declared(key: str) -> Metric:
    """Return the declaration of `key`: its own, or that of the family whose prefix it has.

    Raises KeyError: `key` is not declared; the message has the nearest declared name.
    """
    if key in METRICS and METRICS[key].prefix is None:
        return METRICS[key]
    for prefix, family in _FAMILIES.items():
        if key.startswith(prefix) and len(key) > len(prefix) and key != family.name:
            return family
    raise KeyError(f"metric {key!r} is not declared{suggest(key, METRICS)}; a metric of your own is own/NAME")
