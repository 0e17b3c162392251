"""The groups of a run: listed by an index, read one at a time, joined with the numbers of their tokens.

Nothing here imports torch, so a process that only reads stays small.

A step's updates add the numbers and the texts of its tokens to the groups: `step-000012.tokens`.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from oncurve import durable
from oncurve.base.output import complain
from oncurve.report.rollouts import (
    INDEX,
    TOKENS,
    Columns,
    CutFileError,
    RolloutFiles,
    members,
    packed,
    parsed,
    record_at,
    rows_of,
    texts_in,
)

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


_MOST_CACHED_GROUPS = 200_000


class RolloutIndex:
    """The groups of a run, by step and by their number in the step, from 0. Everything that reads groups does it here.

    Every step has a small index next to its groups. One that is missing, damaged or of another file is made again from
    the groups, and written if the folder can be written to. So nothing here raises for what a killed run or a bad disk
    has left: what cannot be read is not listed.
    """

    def __init__(self, run: Path) -> None:
        self._files = RolloutFiles(run)
        self._cached: dict[int, tuple[int, Columns, list[str]]] = {}

    def steps(self) -> tuple[int, ...]:
        """Return the steps whose groups are there, ascending."""
        return self._files.steps()

    def rows(self, step: int, places: Iterable[int] | None = None) -> list[dict[str, Any]]:
        """Return one JSON-able row per group of a step: of all groups in order, or of those at `places` in `columns`.

        group       its number in the step; damaged groups have none.
        prompt_id   of the prompt's row in the data     prompt     the first 120 characters of the prompt.
        mean        of the rewards                      spread     their standard deviation (n - 1).
        right       completions that the verifier finds right; null where no reward is a verifier.
        truncated   completions cut off at the limit    invalid    completions without a usable reward.
        largest     the largest |advantage|             length     mean tokens per completion.
        size        completions
        offset, bytes   the place of the gzip member that holds the group      line   its line there, from 0.

        `mean` and `spread` are null where nothing has a reward, `largest` where nothing has an advantage. Empty where
        the step is not there.
        """
        columns, prompts = self._index(step)
        chosen = range(len(prompts)) if places is None else list(places)
        found = {name: values[np.asarray(chosen, dtype="i8")].tolist() for name, values in columns.items()}
        found["prompt"] = [prompts[place] for place in chosen]
        rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
        for row in rows:
            row["right"] = None if row["right"] < 0 else row["right"]
            row |= {name: None for name in ("mean", "spread", "largest") if math.isnan(row[name])}
        return rows

    def row(self, step: int, number: int) -> dict[str, Any]:
        """Return the row of one group. Raises KeyError: there is no such group."""
        for place in np.flatnonzero(self.columns(step)["group"] == number).tolist():
            return self.rows(step, [place])[0]
        raise KeyError(f"step {step} has no group {number}")

    def columns(self, step: int) -> Columns:
        """Return the numbers of `rows` as arrays `(groups,)` by name, to sort and filter 100,000 groups quickly.

        NaN stands for null, in `right` -1.
        """
        return self._index(step)[0]

    def group(self, step: int, number: int) -> dict[str, Any]:
        """Return a group as `group_record` made it with its number, `group`, joined with the numbers of its tokens.

        Each completion has, one value per token, as far as they were recorded:

        logprobs     of the policy that sampled        before   of the policy that the updates began with; not there:
        after        of the policy after the step               it is the policy that sampled.
        entropy      of the next-token distribution of the policy that the updates began with, in nats.
        kl           the k3 estimate of that policy's distance from the reference, in nats.
        advantages   also where all tokens have the same.
        trained      false where the policy did not write the token; not there: it wrote all.
        pieces       the token's text, special tokens by name; a character that is spread over tokens belongs to the
                     last of them

        A number is null where it is not known. Raises KeyError: there is no such group, or it is damaged.
        """
        row = self.row(step, number)
        found = record_at(self._lines(step, row["offset"]), row["line"])
        if found is None:
            raise KeyError(f"group {number} of step {step} is damaged")
        return {**TokenFile(self._files.path(step, TOKENS)).join(found, number), "group": number}

    def groups(self, step: int) -> Iterator[dict[str, Any]]:
        """Return the groups of a step in order, as `group_record` made them with their number, `group`.

        Some 64 KiB of text are in memory at a time.
        """
        for number, line in zip(self.columns(step)["group"].tolist(), self._each(step), strict=True):
            found = record_at([line], 0)
            if found is not None:
                yield {**found, "group": number}

    def having(self, step: int, text: str) -> Iterator[bool]:
        """Return whether each group, in the order of `columns`, has `text` in its prompt, a completion or a turn.

        Upper and lower case are alike. A line is parsed only where its bytes have the text, in whichever field.
        """
        wanted = text.casefold()
        quoted = json.dumps(wanted, ensure_ascii=False)[1:-1]
        for line in self._each(step):
            near = quoted in line.decode("utf-8", "replace").casefold()
            yield near and any(wanted in each.casefold() for each in texts_in(record_at([line], 0) or {}))

    def prompt(self, prompt_id: int) -> list[tuple[int, int]]:
        """Return (step, group) of each group of this prompt, in order: the same prompt over time."""
        found = []
        for step in self.steps():
            columns = self.columns(step)
            found += [(step, number) for number in columns["group"][columns["prompt_id"] == prompt_id].tolist()]
        return found

    def changed(self, step: int, count: int) -> list[int] | None:
        """Return the groups of the `count` tokens whose probability the step changed most, each once, in that order;
        None where the step was not measured.
        """
        return TokenFile(self._files.path(step, TOKENS)).changed(count)

    def _index(self, step: int) -> tuple[Columns, list[str]]:
        """Return columns and prompts of a step; empty where it is not there."""
        path, index = self._files.path(step), self._files.path(step, INDEX)
        try:
            source = path.stat().st_size
        except OSError:
            return parsed(packed(0, []), 0)
        if step not in self._cached or self._cached[step][0] != source:
            try:
                found = parsed(index.read_bytes(), source)
            except (OSError, EOFError, KeyError, ValueError, zlib.error, SafetensorError) as error:
                content = packed(source, rows := rows_of(path))
                if isinstance(error, CutFileError):
                    complain(f"{path} is damaged, {error}: {len(rows)} groups can be read")
                else:
                    with suppress(durable.StorageError):  # a folder that cannot be written to is read all the same
                        durable.write_file(index, content, sync=False)
                found = parsed(content, source)
            while self._cached and sum(len(each[2]) for each in self._cached.values()) > _MOST_CACHED_GROUPS:
                del self._cached[next(iter(self._cached))]
            self._cached[step] = source, *found
        return self._cached[step][1:]

    def _each(self, step: int) -> Iterator[bytes]:
        """Return the line of each group in the order of `columns`; b"" for one that cannot be had."""
        columns = self.columns(step)
        before, lines = -1, list[bytes]()
        for offset, line in zip(columns["offset"].tolist(), columns["line"].tolist(), strict=True):
            if offset != before:
                before, lines = offset, self._lines(step, offset)
            yield lines[line] if line < len(lines) else b""

    def _lines(self, step: int, offset: int) -> list[bytes]:
        """Return the lines of the gzip member at a place; of a damaged one those that can be had."""
        return next((text.split(b"\n") for _, _, text in members(self._files.path(step), offset)), [])
