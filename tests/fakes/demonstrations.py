"""Demonstrations by a tokenizer of words, with a chat template whose assistant's turns transformers can mask, too."""

from collections.abc import Sequence
from typing import Any

from fakes.project import words_tokenizer
from fakes.tables import table
from oncurve.data import Demonstrations, InMemory, Prompts, load_demonstrations, open_demonstrations

TEMPLATE = table("demonstrations", "template")
CHATS = table("demonstrations", "chats")


def chat_tokenizer() -> Any:
    tokenizer = words_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def demonstrations(
    rows: Sequence[Any],
    chat: bool = False,
    train_on_prompts: bool = False,
    longest: int | None = None,
    drop: bool = False,
    **settings: Any,
) -> Demonstrations:
    """The rows as a model of 61 words reads them, whose completions end with `</s>`."""
    found = load_demonstrations(InMemory(rows=tuple(rows), **settings))
    tokenizer = chat_tokenizer() if chat else words_tokenizer()
    prompts = Prompts(found.train, found.settings, tokenizer)
    made = Demonstrations(prompts, (tokenizer.eos_token_id,), found.whole or train_on_prompts)
    return open_demonstrations(made, longest, drop, 61)
