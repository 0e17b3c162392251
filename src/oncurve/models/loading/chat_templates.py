"""Prompts as token ids: plain text as the tokenizer reads it, chat messages through the model's own chat template."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from oncurve.errors import ModelError, suggest

TEMPLATE_SECONDS = 10.0
"""For one prompt, which takes less than a millisecond: a template that takes longer loops."""


RENDERING = frozenset({"conversation", "messages", "chat_template", "add_generation_prompt", "continue_final_message"})
RENDERING |= {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}
"""Names of arguments that decide how a template is applied."""


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def check_variables(tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Raises ModelError: the tokenizer has no chat template, or its template does not use one of the variables."""
    template = getattr(tokenizer, "chat_template", None) or ""
    texts = template.values() if isinstance(template, Mapping) else [template]
    words = {word for text in texts for word in re.findall(r"[A-Za-z_]\w*", str(text))}
    unknown = next((name for name in variables if name not in words), None)
    if unknown is not None:
        problem = f"does not use {unknown!r}{suggest(unknown, words)}" if words else "is missing"
        raise ModelError(f"data.chat_template_kwargs: the model's chat template {problem}")


def render(
    tokenizer: Any, prompt: str | Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
) -> tuple[int, ...]:
    """The token ids of a prompt.

    A string is tokenised as it is, with the tokens that the tokenizer puts at the start of a text (BOS, where it does
    so). An empty string is the BOS token alone. Messages `[{"role": ..., "content": ...}, ...]` go through the chat
    template with these `variables`, with the opening of the assistant's turn at the end; the template brings its own
    special tokens.

    Raises:
        ModelError: messages without a chat template, messages the template refuses, or a prompt of no tokens.
    """
    if isinstance(prompt, str):
        # not verbose: the check of prompts reports a text that is too long
        ids = list(tokenizer(prompt, return_attention_mask=False, verbose=False)["input_ids"])
        bos = getattr(tokenizer, "bos_token_id", None)
        if not ids and bos is not None:
            ids = [bos]
    else:
        ids = _chat(tokenizer, prompt, variables or {})
    if not ids:
        raise ModelError("an empty prompt: the tokenizer makes no token of it and has no BOS token to begin with")
    return tuple(int(token) for token in ids)


def _chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> list[int]:
    if not has_template(tokenizer):
        raise ModelError(
            "the prompt is a list of chat messages, but the model's tokenizer has no chat template; "
            "use an instruction-tuned model, or prompts that are plain strings"
        )
    ids: list[int] = apply_template(
        tokenizer, messages, "the model's", add_generation_prompt=True, tokenize=True, return_dict=False, **variables
    )
    return ids


def apply_template(tokenizer: Any, messages: Sequence[Mapping[str, Any]], whose: str, **options: Any) -> Any:
    """The tokenizer's chat template applied to messages; `whose` is its owner in error messages.

    A thread can end a template that loops, but not a single operation that takes hours. In jinja's sandbox only powers
    can be so large, and no chat needs them: they are refused.

    Raises ModelError: it refuses the messages, has powers, or is not done within `TEMPLATE_SECONDS`.
    """
    if _has_powers(tokenizer.chat_template):
        raise ModelError(f"{whose} chat template computes powers (**), which could take for ever; take them out of it")
    made: list[Any] = []
    errors: list[BaseException] = []

    def apply() -> None:
        try:
            made.append(tokenizer.apply_chat_template([dict(message) for message in messages], **options))
        except BaseException as error:  # templates are programs, which may raise anything (jinja2, KeyError, TypeError)
            errors.append(error)

    thread = threading.Thread(target=apply, daemon=True)
    thread.start()
    thread.join(TEMPLATE_SECONDS)
    if thread.is_alive():
        _end(thread)
        raise ModelError(
            f"{whose} chat template took longer for one prompt than {TEMPLATE_SECONDS:g} seconds: it loops; "
            'correct the template, or use data.chat = "never" and prompts that are plain strings'
        )
    if errors:
        raise ModelError(f"{whose} chat template refuses these messages: {errors[0]}") from errors[0]
    return made[0]


def _has_powers(template: Any) -> bool:
    """Whether one of a tokenizer's templates, a text or texts by name, has the operator `**`."""
    texts = template.values() if isinstance(template, Mapping) else [template]
    return any("**" in text and _lexed_power(text) for text in texts if isinstance(text, str))


def _lexed_power(text: str) -> bool:
    from jinja2 import Environment, TemplateSyntaxError

    try:
        return any(kind == "operator" and word == "**" for _, kind, word in Environment().lex(text))
    except TemplateSyntaxError:
        return False  # rendering says what is wrong with it


def _end(thread: threading.Thread) -> None:
    """End a thread that runs Python code, by the exception of which threads print nothing wherever it is raised.

    It is repeated, because an exception in an object's finaliser is lost.
    """
    identity = ctypes.c_ulong(thread.ident or 0)
    for _ in range(50):
        if thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
            thread.join(0.05)
