"""The results: one JSON file. Each part is saved when it is done, so an interrupted run resumes there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bench import machine

__all__ = ["FOLDER", "MISMATCH_LIMITS", "Results", "default_path", "void_reasons"]

MISMATCH_LIMITS = {"float32": 1e-5, "bfloat16": 2e-3}
"""The largest difference allowed between sampler and learner, mean |log-prob - log-prob|."""

DEEP_LIMITS = {"38M": 3.0e-3, "494M": 7.6e-3}
"""In bf16 with 12 and 24 layers: the difference of transformers' own cached decoding and whole forward
(`bench.single.mismatch 494M`). The goal stays 2e-3 and is shown as missed; a run is void only where ours are further
apart than the module's own."""

FOLDER = Path(__file__).parent / "results"


def default_path(quick: bool) -> Path:
    """Return the results file of this machine. A quick run has a file of its own, which is not committed."""
    return FOLDER / (machine.kind() + ("-quick" if quick else "") + ".json")


def void_reasons(table: dict[str, Any]) -> list[str]:
    """Return why the run is void: the gates that failed, and the timed runs whose log-probs do not match."""
    reasons = [f"gate {name}: {g['value']:.3g}, not within {g['limit']:.3g}" for name, g in _failed_gates(table)]
    for name, cell in table.get("cells", {}).items():
        for pair, found in cell.items():
            for system, measured in found.get("systems", {}).items():
                limit = _limit(name, measured["dtype"]) if system.startswith("oncurve") else None
                if limit is not None and not (measured["mismatch"] or 0.0) <= limit:
                    value = measured["mismatch"]
                    reasons.append(f"{name}, {pair}: {system}'s log-probs differ by {value:.3g}, limit {limit:.3g}")
    return reasons


def _limit(cell: str, dtype: str) -> float:
    deep = DEEP_LIMITS.get(cell.partition(" ")[0]) if dtype == "bfloat16" else None
    return deep if deep is not None else MISMATCH_LIMITS[dtype]


def _failed_gates(table: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, gate) for name, gate in table.get("gate", {}).get("gates", {}).items() if not gate["passed"]]


class Results:
    """What has been measured, as a nested table. Every change is written to disk at once.

    The `code` of an entry is the hash of the code that measured it. Entries of the present code are not measured again.
    """

    def __init__(self, path: Path, quick: bool, fresh: bool = False) -> None:
        self.path = path
        self.codes: dict[str, str] = {}
        self.table = {} if fresh else self.read(path)
        self.table |= {"quick": quick, "machine": machine.describe()}

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """Return the content of a results file; empty where there is none."""
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return table

    def code(self, part: str) -> str:
        """Return the hash of the code that measures this part, computed once per process."""
        if part not in self.codes:
            self.codes[part] = machine.code_hash(part)
        return self.codes[part]

    def has(self, *keys: str) -> bool:
        """Return whether the entry at `keys` is there, measured by the present code."""
        found: Any = self.table
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return isinstance(found, dict) and found.get("code") == self.code(keys[0]) and not found.get("skipped")

    def put(self, value: dict[str, Any], *keys: str) -> None:
        """Keep an entry, with code, commit, load and time."""
        holder = self.table
        for key in keys[:-1]:
            holder = holder.setdefault(key, {})
        about = {"code": self.code(keys[0]), "commit": self.table["machine"]["commit"], "load": machine.load()}
        holder[keys[-1]] = {**value, **about, "at": time.strftime("%Y-%m-%d %H:%M")}
        self.save()

    def save(self) -> None:
        """Replace the file as a whole."""
        self.table["void"] = void_reasons(self.table)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.table, indent=1) + "\n", encoding="utf-8")
        unfinished.rename(self.path)
