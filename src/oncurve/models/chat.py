"""Prompts as token ids: plain text as the tokenizer reads it, chat messages through the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncurve.errors import ModelError

__all__ = ["has_template", "render"]


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer knows how to lay out a chat."""
    return bool(getattr(tokenizer, "chat_template", None))


def render(tokenizer: Any, prompt: str | Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The token ids the model is asked with.

    A string is tokenised as it is, with the tokens the tokenizer puts at the start of a text (BOS, where it has the
    habit). An empty string is the BOS token alone. Messages `[{"role": ..., "content": ...}, ...]` go through the chat
    template, with the opening of the assistant's turn at the end; the template brings its own special tokens.

    Raises:
        ModelError: messages without a chat template, messages the template refuses, or a prompt of no tokens.
    """
    if isinstance(prompt, str):
        ids = list(tokenizer(prompt, return_attention_mask=False)["input_ids"])
        bos = getattr(tokenizer, "bos_token_id", None)
        if not ids and bos is not None:
            ids = [bos]
    else:
        ids = _chat(tokenizer, prompt)
    if not ids:
        raise ModelError("an empty prompt: the tokenizer makes no token of it and has no BOS token to begin with")
    return tuple(int(token) for token in ids)


def _chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    if not has_template(tokenizer):
        raise ModelError(
            "the prompt is a list of chat messages, but the model's tokenizer has no chat template; "
            "use an instruction-tuned model, or prompts that are plain strings"
        )
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception as error:  # templates are programs: they raise what they like (jinja2, KeyError, TypeError)
        raise ModelError(f"the model's chat template refuses these messages: {error}") from error
    return ids
