"""From token ids to text, and where a stop string ends it.

Text is decoded after the last tokens of the prompt, so that `prompt text + completion text` is the text of both (a
tokenizer that marks a word's start drops the mark at the start of a text). Special tokens are not text.

A stop string may span tokens, end inside one, or hold characters whose bytes are spread over tokens. Text is therefore
searched only after decoding with what came before, and half a character (U+FFFD at the end) waits for its other half.
Only a token that can hold a stop string's last character needs a search: a table over the vocabulary, filled as tokens
come, selects those rows, so that the others cost one gather per step for all of them.

Covered: byte-level BPE, byte fallback, word-start marks; several stop strings; a hit is confirmed on the whole text.
Not covered: stop strings that hold U+FFFD or are special tokens (those are refused: `eos_ids` is for them).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from oncurve.base.errors import ConfigError

_HALF = "\ufffd"
# Enough tokens of the prompt to decode a completion's first token as it reads after it.
_TAIL = 6
_LONGEST_CHARACTER = 4  # bytes, and so tokens at most
_MOST_PENDING = 16


class Tokenizer(Protocol):
    """The methods of a transformers tokenizer that rollout uses."""

    def decode(self, *ids: Any, **options: Any) -> Any:
        """`decode(ids, skip_special_tokens=..., clean_up_tokenization_spaces=...) -> str`."""

    def encode(self, *text: Any, **options: Any) -> Any:
        """`encode(text, add_special_tokens=...) -> list[int]`."""


class Detokenizer:
    """Token ids to text: special tokens left out, spaces as they are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode

    def __call__(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` by themselves."""
        return str(self._decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def after(self, prompt_ids: Sequence[int]) -> Callable[[Sequence[int]], str]:
        """Return a function from a completion's ids to its text after this prompt."""
        tail = tuple(prompt_ids[-_TAIL:])
        before = self(tail)

        def text(ids: Sequence[int]) -> str:
            whole = self((*tail, *ids))
            # A tail that ends in half a character reads otherwise once the completion has brought the rest.
            return whole[len(before) :] if whole.startswith(before) else self(ids)

        return text


class GrowingText:
    """The text of one growing completion, decoding each token about twice however often it is read.

    A piece is decoded after the piece before it, and kept once it does not end in half a character.
    """

    def __init__(self, detokenizer: Detokenizer, prompt_ids: Sequence[int]) -> None:
        self._detokenizer = detokenizer
        self._context = tuple(prompt_ids[-_TAIL:])
        self._pending: tuple[int, ...] = ()
        self.settled = ""
        self.tokens = 0

    def extend(self, ids: Sequence[int]) -> str:
        """Take in the next tokens; returns the text so far, half a character at its end included."""
        self.tokens += len(ids)
        self._pending += tuple(ids)
        while len(self._pending) > 2 * _MOST_PENDING:  # bytes that never become a character wait no longer
            self._settle_some()
        return self._read()

    def _settle_some(self) -> None:
        """Settle the first pending tokens, up to where no character is cut, if there is such a position."""
        waiting = self._pending
        for count in range(_MOST_PENDING, _MOST_PENDING - _LONGEST_CHARACTER, -1):
            self._pending = waiting[:count]
            text = self._read()
            if not self._pending:  # settled
                break
        else:
            self.settled, self._context = text, self._pending[-_TAIL:]
        self._pending = waiting[count:]

    def _read(self) -> str:
        before = self._detokenizer(self._context)
        whole = self._detokenizer(self._context + self._pending)
        piece = whole.removeprefix(before)
        text = self.settled + piece
        if not piece.endswith(_HALF):
            self.settled = text
            # A piece without text (special tokens only) is no context: a word's space would be dropped after it.
            self._context = self._pending if piece else self._context + self._pending
            self._pending = ()
        return text


class StopTable:
    """The stop strings, and which tokens can complete one.

    Raises ConfigError for a stop string that is a special token: it is never part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.stop = tuple(stop)
        self.longest = max(map(len, stop))
        self.detokenizer = Detokenizer(tokenizer)
        self._states = torch.empty(0, dtype=torch.int8)  # by token id: 1 can, 0 cannot, -1 not known yet
        for text in stop:
            ids = tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1 and not self.detokenizer(ids):
                raise ConfigError(
                    f"rollout.stop: {text!r} is a special token and never part of the text, so it would stop nothing; "
                    f"set rollout.eos_ids = [{ids[0]}] instead"
                )

    def candidates(self, ids: Tensor) -> Tensor:
        """Return `(n,)` bool: the tokens `ids (n,)` (on the CPU, n > 0) that may complete a stop string."""
        missing = int(ids.max()) + 1 - len(self._states)
        if missing > 0:
            self._states = torch.cat([self._states, torch.full((missing,), -1, dtype=torch.int8)])
        for token in set(ids[self._states[ids] < 0].tolist()):
            self._states[token] = self._may_complete(token)
        return self._states[ids] > 0

    def _may_complete(self, token: int) -> bool:
        # After itself a token shows the space that a decoder puts between words; half a character may become any.
        text = self.detokenizer((token, token))
        return _HALF in text or any(stop[-1] in text for stop in self.stop)

    def cut(self, text: str) -> str | None:
        """Return the text before the first stop string in it; None where there is none."""
        starts = [start for start in map(text.find, self.stop) if start >= 0]
        return text[: min(starts)] if starts else None


class StopSearch:
    """Finds stop strings in the rows of one rollout; `prompts` are the prompt ids of each row, by its number."""

    def __init__(self, table: StopTable, prompts: Sequence[tuple[int, ...]]) -> None:
        self._table = table
        self._prompts = prompts
        self._texts: dict[int, GrowingText] = {}
        self.candidates = table.candidates

    def finished(self, row: int, written: Callable[[int], list[int]]) -> str | None:
        """Return the text before the stop string that a row's newest token completed; None: it completed none.

        row      the row's number
        written  start -> its tokens from `start` to the newest, which is one of the `candidates`
        """
        if row not in self._texts:
            self._texts[row] = GrowingText(self._table.detokenizer, self._prompts[row])
        growing = self._texts[row]
        start = max(0, len(growing.settled) - self._table.longest + 1)
        text = growing.extend(written(growing.tokens))
        if self._table.cut(text[start:]) is None:
            return None
        whole = self._table.cut(self._table.detokenizer.after(self._prompts[row])(written(0)))
        if whole is not None:
            del self._texts[row]
        return whole
