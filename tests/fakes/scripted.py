"""Models and a tokenizer whose every move is known: they obey the protocols and compute next to nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oncurve.models.decode.host_loop import HostLoop


class TableModel:
    """A bigram model: the last token alone decides the next one's logits, a row of `table (V, V)`.

    Looking up a row is exact, so results may not depend on batching by one bit. `prefilled` and `stepped` record the
    number of prompts and rows that each call worked on.
    """

    fast = True
    path_reason = "a table"

    def __init__(self, table: Tensor, longest_row: int | None = None) -> None:
        self.module = nn.Module()
        self.table = table
        self.longest_row = longest_row
        self.prefilled: list[int] = []
        self.stepped: list[int] = []

    def completion_hidden(
        self, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
    ) -> Tensor:
        rows = zip(group_ids.tolist(), completion_ids, lengths.tolist(), strict=True)
        return self.table[torch.cat([torch.cat([prompts[g][-1:], ids])[:length] for g, ids, length in rows])]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def raw_logits(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden)

    def head_matrix(self) -> None:
        return None

    def token_loop(self, truncated: bool = False) -> HostLoop:
        return HostLoop(self.decoder, torch.device("cpu"))

    def decoder(self, rows: int, max_new_tokens: int) -> "TableDecoder":
        return TableDecoder(self, max_new_tokens)


class TableDecoder:
    """Holds its caller to the protocol: ids of all live rows, and no row steps more often than it may."""

    def __init__(self, model: TableModel, max_new_tokens: int) -> None:
        self._model, self._limit = model, max_new_tokens
        self.logits = model.raw_logits
        self._steps = torch.empty(0, dtype=torch.long)

    def join(self, prompts: Sequence[Tensor], copies: int) -> Tensor:
        self._model.prefilled.append(len(prompts))
        self._steps = torch.cat([self._steps, torch.zeros(len(prompts) * copies, dtype=torch.long)])
        return self._model.table[torch.stack([prompt[-1] for prompt in prompts])]

    def step(self, ids: Tensor) -> Tensor:
        assert len(ids) == len(self._steps)
        self._steps += 1
        assert int(self._steps.max()) < self._limit
        self._model.stepped.append(len(ids))
        return self._model.table[ids]

    def keep(self, rows: Tensor) -> None:
        self._steps = self._steps[rows]


def letters_model(letters: bytes) -> TableModel:
    """A model of single bytes that writes these letters, each after each with a chance of its own."""
    table = torch.full((257, 257), -torch.inf)
    table[:, list(letters)] = torch.randn(257, len(letters), generator=torch.Generator().manual_seed(0))
    return TableModel(table)


class ScriptedModel(TableModel):
    """Says what it was told to: row r's token t is `scripts[r][t]`, whatever is sampled."""

    def __init__(self, scripts: Sequence[Sequence[int]], vocabulary: int) -> None:
        longest = max(map(len, scripts))
        super().__init__(torch.zeros(vocabulary, vocabulary))
        self.script = torch.tensor([[*script, *[0] * (longest - len(script))] for script in scripts])

    def logits(self, hidden: Tensor) -> Tensor:
        said = torch.zeros(len(hidden), len(self.table)).scatter_(1, hidden.long(), 1.0)
        return said.log()

    def decoder(self, rows: int, max_new_tokens: int) -> "ScriptedDecoder":
        assert rows == len(self.script)
        return ScriptedDecoder(self)


class ScriptedDecoder:
    def __init__(self, model: ScriptedModel) -> None:
        self._script, self._position = model.script, 0
        self.logits = model.raw_logits

    def join(self, prompts: Sequence[Tensor], copies: int) -> Tensor:
        assert copies == 1
        return self._script[:, :1].double()

    def step(self, ids: Tensor) -> Tensor:
        assert (ids == self._script[:, self._position]).all()
        self._position += 1
        return self._script[:, self._position, None].double()

    def keep(self, rows: Tensor) -> None:
        self._script = self._script[rows]


class ByteTokenizer:
    """Byte-level: token `i` is `pieces[i]`, the first 256 pieces are the bytes; then come `merges`, then `<eos>`."""

    def __init__(self, merges: Sequence[str | bytes] = ()) -> None:
        extra = [piece.encode() if isinstance(piece, str) else piece for piece in merges]
        self.pieces = [bytes([byte]) for byte in range(256)] + extra
        self.eos_id = len(self.pieces)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.eos_id] if text == "<eos>" else list(text.encode())

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> str:
        assert skip_special_tokens
        return b"".join(self.pieces[i] for i in ids if i != self.eos_id).decode(errors="replace")
