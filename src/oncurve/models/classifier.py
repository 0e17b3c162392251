"""Networks that judge text: a transformers classifier with its own tokenizer, as an outcome or a process reward model.

outcome   a sequence classifier: one reward a text, read where transformers reads it, at the last token
process   a token classifier: at the last token of every step, how likely the step is right

A text is prompt and completion as the model was taught them: a chat through the classifier's own template, any other
text as it is, with the end-of-text token behind it. Batches are padded on the right, so no row depends on another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from oncurve.errors import ModelError
from oncurve.models.chat import apply_template, has_template
from oncurve.types import Messages

__all__ = ["Classifier", "Encoded", "HeadKind", "OverlongError", "batches_by_length", "log_odds"]

HeadKind = Literal["outcome", "process"]
MARK = "the-completion-stands-here"


class OverlongError(ModelError):
    """A text is longer than the classifier can read."""


@dataclass(frozen=True)
class Encoded:
    """A text as the classifier reads it. `ends[j]` is the index of the token that ends step j (process models)."""

    ids: tuple[int, ...]
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Classifier:
    """A network that judges text.

    module          a transformers sequence classifier ("outcome") or token classifier ("process")
    tokenizer       its own; one that says where in the text its tokens are
    head            which of the two it is
    label           the label whose log-odds are the verdict; None: the network has a single logit, which is it
    pad_id          what rows are filled up with
    max_length      the longest text it can read, in tokens; None: any
    name            what people call it
    """

    module: Any
    tokenizer: Any
    head: HeadKind
    label: int | None
    pad_id: int
    max_length: int | None
    name: str

    def encode(self, prompt: Messages, completion: Messages, step_offsets: Sequence[int] = ()) -> Encoded:
        """Prompt and completion as tokens; `step_offsets` are characters of the completion just behind each step.

        A step is judged at the token that writes its last visible character, so that white space between steps, and
        how a tokenizer joins it to its neighbours, changes nothing.

        Raises OverlongError; ModelError where the chat template refuses the messages, or changes a completion whose
        steps are to be judged.
        """
        text, start, bare = self._laid_out(prompt, completion, bool(step_offsets))
        encoding = self.tokenizer(text, add_special_tokens=bare, return_offsets_mapping=True)
        ids, spans = list(encoding["input_ids"]), list(encoding["offset_mapping"])
        end_token = getattr(self.tokenizer, "eos_token_id", None)
        if bare and end_token is not None and (not ids or ids[-1] != end_token):
            ids.append(end_token)
        if self.max_length is not None and len(ids) > self.max_length:
            raise OverlongError(f"{self.name} reads {self.max_length} tokens, and the text has {len(ids)}")
        if not ids:
            raise ModelError(f"{self.name}: the tokenizer makes no token of an empty text")
        written = completion if isinstance(completion, str) else str(completion[-1].get("content", ""))
        visible = [start + len(written[:end].rstrip()) for end in step_offsets]
        return Encoded(tuple(ids), tuple(_token_at(spans, end) for end in visible))

    def _laid_out(self, prompt: Messages, completion: Messages, placed: bool) -> tuple[str, int, bool]:
        """The whole text, where in it the completion begins, and whether the tokenizer is to add its own tokens.

        Of a chat the place is looked for only where it is asked for (`placed`).
        """
        if isinstance(prompt, str) and isinstance(completion, str):
            return prompt + completion, len(prompt), True
        asked = [dict(m) for m in prompt] if not isinstance(prompt, str) else [{"role": "user", "content": prompt}]
        said = (
            [dict(m) for m in completion]
            if not isinstance(completion, str)
            else [{"role": "assistant", "content": completion}]
        )
        if not has_template(self.tokenizer):
            raise ModelError(
                f"{self.name} has no chat template, and the prompt is a chat; use a reward model that was taught chats "
                'or, with data.chat = "never", prompts that are plain strings'
            )
        text = self._chat([*asked, *said])
        return text, self._place([*asked, *said], text) if placed else 0, False

    def _chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return str(apply_template(self.tokenizer, messages, f"{self.name}: the", tokenize=False))

    def _place(self, messages: Sequence[Mapping[str, Any]], text: str) -> int:
        """Where in a chat's text its last message begins; templates like to strip white space from it.

        Another message in its place shows what the template writes behind it, which may hold the same characters.
        """
        written = str(messages[-1].get("content", ""))
        behind = self._chat([*messages[:-1], {**messages[-1], "content": MARK}]).rpartition(MARK)[2]
        before, visible = text.removesuffix(behind).rstrip(), written.strip()
        if not text.endswith(behind) or not before.endswith(visible):
            raise ModelError(
                f"{self.name}: the chat template changes what a completion says, so where its steps end is not known; "
                "use a process model whose template writes completions as they are"
            )
        return len(before) - len(visible) - (len(written) - len(written.lstrip()))

    def verdicts(self, texts: Sequence[Encoded]) -> Tensor:
        """The rewards `(b,)` of texts, or the log-odds `(s,)` of all their steps, text after text; differentiable.

        One forward pass: who has many texts takes them in `batches_by_length`.
        """
        device = next(self.module.parameters()).device
        width = max(len(text.ids) for text in texts)
        ids = torch.full((len(texts), width), self.pad_id, dtype=torch.int64)
        mask = torch.zeros((len(texts), width), dtype=torch.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)] = torch.tensor(text.ids)
            mask[row, : len(text.ids)] = 1
        cached = {"use_cache": False} if getattr(self.module.config, "use_cache", None) else {}
        logits: Tensor = self.module(input_ids=ids.to(device), attention_mask=mask.to(device), **cached).logits
        if self.head == "process":
            rows = [row for row, text in enumerate(texts) for _ in text.ends]
            ends = [end for text in texts for end in text.ends]
            logits = logits[torch.tensor(rows, dtype=torch.int64), torch.tensor(ends, dtype=torch.int64)]
        return log_odds(logits.float(), self.label)

    @torch.no_grad()
    def judge(self, texts: Sequence[Encoded], tokens_per_batch: int = 16384) -> list[list[float]]:
        """For each text its reward alone, or for each of its steps how likely it is right, in 0 ... 1."""
        found: list[list[float]] = [[] for _ in texts]
        for indices in batches_by_length([len(text.ids) for text in texts], tokens_per_batch):
            verdicts = self.verdicts([texts[index] for index in indices])
            if self.head == "outcome":
                for index, value in zip(indices, verdicts.tolist(), strict=True):
                    found[index] = [value]
            else:
                pieces = torch.split(torch.sigmoid(verdicts), [len(texts[index].ends) for index in indices])
                for index, piece in zip(indices, pieces, strict=True):
                    found[index] = piece.tolist()
        return found


def log_odds(logits: Tensor, label: int | None) -> Tensor:
    """`ln p / (1 - p)` of one label, `z_k - ln Σ_{l≠k} exp z_l`, of logits `(..., L)`; the only logit where L = 1."""
    if label is None:
        return logits.squeeze(-1)
    others = [other for other in range(logits.shape[-1]) if other != label]
    return logits[..., label] - torch.logsumexp(logits[..., others], dim=-1)


def batches_by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices by falling length, in batches whose rows, each as long as the longest, have at most `tokens` tokens."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _token_at(spans: Sequence[Sequence[int]], end: int) -> int:
    """The token that writes the last character before `end`; the last one of those that write it together."""
    for token in reversed(range(len(spans))):
        start, stop = spans[token]
        if start < end <= stop:
            return token
    return max((token for token, (start, stop) in enumerate(spans) if start < stop <= end), default=len(spans) - 1)
