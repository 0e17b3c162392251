"""The numbers and the texts of a step's tokens, which its updates add to the groups: `step-000012.tokens`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

TOKEN_NUMBERS = ("before", "after", "entropy", "kl")
"""The numbers of each token that a step adds to its groups once its updates are made."""


_HALF, _LONGEST_CHARACTER = "\ufffd", 4
"""The text of a part of a character; the most bytes, and so tokens, of a whole one."""

_PART = 1 << 18
"""Tokens that are looked at together: a step may have 64 million."""


class Pieces:
    """The texts of tokens, decoded once per run and written with every step, so that a reader needs no tokenizer.

    `decode` is that of a transformers tokenizer. A text is taken after the same tokens, where a tokenizer that marks a
    word's start has the space before it.
    """

    def __init__(self, decode: Callable[..., Any]) -> None:
        self._decode = decode
        self._known: dict[tuple[int, ...], str | None] = {}

    def of(self, completions: Iterable[Sequence[int]]) -> dict[str, str]:
        """Return the texts of the tokens in `completions`, as `texts_of` reads them."""
        found: dict[tuple[int, ...], str] = {}
        for ids in completions:
            texts: dict[tuple[int, ...], str | None] = {(token,): self._text((token,)) for token in set(ids)}
            if None in texts.values():  # only tokens next to parts of characters depend on their neighbours
                waiting: tuple[int, ...] = ()
                for token in ids:
                    waiting += (token,)
                    text = texts[waiting] = self._text(waiting)
                    waiting = waiting if text is None else ()
            found |= {key: text for key, text in texts.items() if text is not None}
        return {",".join(map(str, key)): found[key] for key in sorted(found)}

    def _text(self, ids: tuple[int, ...]) -> str | None:
        """Return the text of tokens; None where it ends with a part of a character that the next one may complete."""
        if ids not in self._known:
            alone = self._decoded(ids, True)
            text = self._decoded(ids + ids, True)[len(alone) :] or self._decoded(ids, False)  # a special token: by name
            cut = text.endswith(_HALF) and len(ids) < _LONGEST_CHARACTER
            self._known[ids] = None if cut else text
        return self._known[ids]

    def _decoded(self, ids: tuple[int, ...], skip: bool) -> str:
        return str(self._decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def packed_tokens(ends: Sequence[int], pieces: Mapping[str, str], numbers: Mapping[str, Any]) -> bytes:
    """Return the bytes of a `TokenFile`; `numbers` are arrays `(tokens,)` of float32 by name."""
    text = json.dumps(pieces, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
    content: bytes = save({"ends": np.array(ends, dtype="i8"), **numbers}, {"pieces": text})
    return content


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
                own = item.get("trained") or [True] * len(item["ids"])
                item.setdefault("advantages", [item["advantage"] if each else 0.0 for each in own])
            if pieces:
                item["pieces"] = texts_of(item["ids"], pieces)
            start = end
        return record

    def changed(self, count: int) -> list[int] | None:
        """Return the groups of the `count` tokens whose probability changed most, each once; None: not measured."""
        best: list[tuple[float, int]] = []
        try:
            with safe_open(self._path, "np") as file:
                ends, total = file.get_tensor("ends"), file.get_slice("after").get_shape()[0]
            for start, size in ((place, min(_PART, total - place)) for place in range(0, total, _PART)):
                with safe_open(self._path, "np") as file:  # per part: read pages count as memory until it closes
                    old, new = (np.exp(file.get_slice(key)[start : start + size]) for key in ("before", "after"))
                change = -np.nan_to_num(np.abs(new - old))
                places = np.argpartition(change, min(count, len(change)) - 1)[:count]
                best = sorted([*best, *zip(change[places].tolist(), (places + start).tolist(), strict=True)])[:count]
        except (OSError, SafetensorError):
            return None
        return list(dict.fromkeys(np.searchsorted(ends, [place for _, place in best], "right").tolist()))

    def _of(self, number: int) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Return the numbers of a group's tokens by name, and texts by ids."""
        try:
            with safe_open(self._path, "np") as file:
                start, end = [0, *file.get_slice("ends")[max(0, number - 1) : number + 1].tolist()][-2:]
                pieces = json.loads((file.metadata() or {}).get("pieces", "{}"))
                return {key: file.get_slice(key)[start:end] for key in TOKEN_NUMBERS if key in set(file.keys())}, pieces
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
