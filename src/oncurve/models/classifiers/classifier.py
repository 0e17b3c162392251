"""Networks that score text: a transformers classifier with its tokenizer, as an outcome or a process reward model.

outcome   a sequence classifier: one reward per text, at the last token, as in transformers
process   a token classifier: at the last token of every step the probability that the step is right

A text is prompt and completion in the form of the model's training: a chat through the classifier's own template, any
other text as it is, followed by the end-of-text token. Batches are padded on the right, so no row depends on another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from oncurve.base.errors import ModelError
from oncurve.models.adapters.adapter import Adapter
from oncurve.models.layers.lengths import batches_by_length
from oncurve.models.loading.chat_templates import apply_template, has_template
from oncurve.types import Messages

HeadKind = Literal["outcome", "process"]
MARK = "the-completion-stands-here"


class OverlongError(ModelError):
    """A text is longer than the classifier's limit."""


@dataclass(frozen=True)
class Encoded:
    """A text as token ids. `ends[j]` is the index of the token that ends step j (process models)."""

    ids: tuple[int, ...]
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Classifier:
    """A network that scores text.

    module          a transformers sequence classifier ("outcome") or token classifier ("process")
    tokenizer       its own, which gives the positions of tokens in the text
    head            which of the two it is
    label           the label whose log-odds are the score; None: the score is the network's single logit
    pad_id          the token id that fills up rows
    max_length      the longest text, in tokens; None: any
    name            for messages
    adapter         the adapter in its backbone, which is trained together with the head; None: all of it is trained
    """

    module: Any
    tokenizer: Any
    head: HeadKind
    label: int | None
    pad_id: int
    max_length: int | None
    name: str
    adapter: Adapter | None = None

    def encode(self, prompt: Messages, completion: Messages, step_offsets: Sequence[int] = ()) -> Encoded:
        """Return prompt and completion as tokens; `step_offsets` are the offsets in the completion just after each
        step.

        A step is scored at the token that writes its last visible character, so that white space between steps, and
        how a tokenizer joins it to its neighbours, changes nothing.

        Raises OverlongError; ModelError where the chat template refuses the messages, or changes a completion whose
        steps are to be scored.
        """
        text, start, bare = self._layout(prompt, completion, bool(step_offsets))
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

    def _layout(self, prompt: Messages, completion: Messages, placed: bool) -> tuple[str, int, bool]:
        """Return the whole text, the offset of the completion in it, and whether the tokenizer is to add its own
        tokens.

        Of a chat the offset is found only with `placed`; it is 0 otherwise.
        """
        if isinstance(prompt, str) and isinstance(completion, str):
            return prompt + completion, len(prompt), True
        messages = [*_as_messages(prompt, "user"), *_as_messages(completion, "assistant")]
        if not has_template(self.tokenizer):
            raise ModelError(
                f"{self.name} has no chat template, and the prompt is a chat; use a reward model for chats "
                'or prompts that are plain strings (of a run: data.chat = "never")'
            )
        text = self._chat(messages)
        return text, self._place(messages, text) if placed else 0, False

    def _chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return apply_template(self.tokenizer, messages, f"{self.name}: the")

    def _place(self, messages: Sequence[Mapping[str, Any]], text: str) -> int:
        """Return the offset in a chat's text at which its last message begins; templates may strip white space from it.

        Another message in its place shows the text that the template writes after it.
        """
        written = str(messages[-1].get("content", ""))
        after = self._chat([*messages[:-1], {**messages[-1], "content": MARK}]).rpartition(MARK)[2]
        before, visible = text.removesuffix(after).rstrip(), written.strip()
        if not text.endswith(after) or not before.endswith(visible):
            raise ModelError(
                f"{self.name}: the chat template changes a completion, so the ends of its steps are not known; "
                "use a process model whose template writes completions as they are"
            )
        return len(before) - len(visible) - (len(written) - len(written.lstrip()))

    def scores(self, texts: Sequence[Encoded]) -> Tensor:
        """Return the rewards `(b,)` of texts, or the log-odds `(s,)` of all their steps, text after text;
        differentiable.

        All texts take one forward pass; `batches_by_length` divides many texts into batches.
        """
        device = next(self.module.parameters()).device
        written = [torch.tensor(text.ids) for text in texts]
        ids = pad_sequence(written, batch_first=True, padding_value=self.pad_id)
        mask = pad_sequence([torch.ones_like(row) for row in written], batch_first=True)
        cached = {"use_cache": False} if getattr(self.module.config, "use_cache", None) else {}
        logits: Tensor = self.module(input_ids=ids.to(device), attention_mask=mask.to(device), **cached).logits
        if self.head == "process":
            rows = [row for row, text in enumerate(texts) for _ in text.ends]
            ends = [end for text in texts for end in text.ends]
            logits = logits[torch.tensor(rows, dtype=torch.int64), torch.tensor(ends, dtype=torch.int64)]
        return log_odds(logits.float(), self.label)

    @torch.no_grad()
    def score(self, texts: Sequence[Encoded], tokens_per_batch: int = 16384) -> list[list[float]]:
        """For each text a list: its reward alone, or for each of its steps the probability that it is right."""
        found: list[list[float]] = [[] for _ in texts]
        for indices in batches_by_length([len(text.ids) for text in texts], tokens_per_batch):
            scores = self.scores([texts[index] for index in indices])
            if self.head == "outcome":
                for index, value in zip(indices, scores.tolist(), strict=True):
                    found[index] = [value]
            else:
                pieces = torch.split(torch.sigmoid(scores), [len(texts[index].ends) for index in indices])
                for index, piece in zip(indices, pieces, strict=True):
                    found[index] = piece.tolist()
        return found


def _as_messages(text: Messages, role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": text}] if isinstance(text, str) else [dict(message) for message in text]


def log_odds(logits: Tensor, label: int | None) -> Tensor:
    """Return `ln p / (1 - p)` of one label, `z_k - ln Σ_{l≠k} exp z_l`, of logits `(..., L)`; the only logit where L =
    1.
    """
    if label is None:
        return logits.squeeze(-1)
    others = [other for other in range(logits.shape[-1]) if other != label]
    return logits[..., label] - torch.logsumexp(logits[..., others], dim=-1)


def _token_at(spans: Sequence[Sequence[int]], end: int) -> int:
    """Return the token that writes the last character before `end`; of several that write it together the last one."""
    for token in reversed(range(len(spans))):
        start, stop = spans[token]
        if start < end <= stop:
            return token
    return max((token for token, (start, stop) in enumerate(spans) if start < stop <= end), default=len(spans) - 1)
