"""The numbers and the texts of a step's tokens, which its updates add to the groups: `step-000012.tokens`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

TOKEN_NUMBERS = ("before", "after", "entropy", "kl")
"""The numbers of each token that a step adds to its groups once its updates are made."""


class TokenFile:
    """The tokens of a step's groups. Of a file that is missing or damaged there are no numbers and no texts.

    It is a safetensors file. `ends (groups,)` has where the tokens of each group end in the other tensors, which have
    one float32 per token, in the order of `rollouts/`. In its metadata `pieces` is a JSON object, the text of tokens by
    their ids; where a character is spread over tokens, its key has the ids of all of them, with commas between.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def join(self, record: dict[str, Any], number: int) -> dict[str, Any]:
        """Return the record of the group of this number with its tokens' numbers and texts, changed in place."""
        columns, pieces = self._of(number)
        start = 0
        for item in record["completions"]:
            end = start + len(item["ids"])
            for name, values in columns.items():
                item[name] = [value if math.isfinite(value) else None for value in values[start:end].tolist()]
            if item.get("advantage") is not None:
                item.setdefault("advantages", [item["advantage"]] * len(item["ids"]))
            if pieces:
                item["pieces"] = texts_of(item["ids"], pieces)
            start = end
        return record

    def _of(self, number: int) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Return the numbers of a group's tokens by name, and texts by ids."""
        try:
            with safe_open(self._path, "np") as file:
                start, end = [0, *file.get_slice("ends")[: number + 1].tolist()][number : number + 2]
                names = [name for name in TOKEN_NUMBERS if name in file.keys()]  # noqa: SIM118 - it is no mapping
                pieces = json.loads((file.metadata() or {}).get("pieces", "{}"))
                return {name: file.get_slice(name)[start:end] for name in names}, pieces
        except (OSError, SafetensorError, ValueError):
            return {}, {}


def texts_of(ids: Sequence[int], pieces: Mapping[str, str]) -> list[str]:
    """Return the text of each token. A character that is spread over tokens belongs to the last of them."""
    texts, waiting = [], ""
    for token in ids:
        waiting = f"{waiting},{token}" if waiting else str(token)
        texts.append(pieces.get(waiting, ""))
        if waiting in pieces:
            waiting = ""
    return texts
