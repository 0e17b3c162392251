"""Prompts as token ids: plain text as the tokenizer reads it, chat messages through the model's own chat template."""

import contextlib
import ctypes
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ModelError, suggest
from oncurve.base.posix import resource

TEMPLATE_SECONDS = 10.0
"""For one prompt, which takes less than a millisecond: a template that takes longer loops."""

TEMPLATE_BYTES = 2 << 30
"""Memory for one prompt, which takes some times its text. It is this large because threads of training may allocate
at the same time, and the limit is the process's."""

TEMPLATE_CHARACTERS = 1 << 24
"""In one prompt, more than any model reads: a tokenizer takes a hundred bytes and more for each of them."""

_limited = threading.Lock()

RENDERING = frozenset({"conversation", "messages", "chat_template", "add_generation_prompt", "continue_final_message"})
RENDERING |= {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}
"""Names of arguments that decide how a template is applied."""


def has_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer has a chat template."""
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
    """Return the token ids of a prompt.

    A string is tokenised as it is, with the tokens that the tokenizer puts at the start of a text (BOS, where it does
    so). An empty string is the BOS token alone. Messages `[{"role": ..., "content": ...}, ...]` go through the chat
    template with these `variables`, with the opening of the assistant's turn at the end; the template brings its own
    special tokens.

    Raises:
        ModelError: messages without a chat template, messages the template refuses, or a prompt of no tokens.
    """
    if isinstance(prompt, str):
        ids = encode(tokenizer, prompt)
        bos = getattr(tokenizer, "bos_token_id", None)
        if not ids and bos is not None:
            ids = [bos]
    else:
        ids = encode(tokenizer, chat_text(tokenizer, prompt, variables or {}), add_special_tokens=False)
    if not ids:
        raise ModelError("an empty prompt: the tokenizer makes no token of it and has no BOS token to begin with")
    return tuple(int(token) for token in ids)


def encode(tokenizer: Any, text: str, **options: Any) -> list[int]:
    """Return the token ids of a text."""
    # not verbose: the check of prompts reports a text that is too long
    return list(tokenizer(text, return_attention_mask=False, verbose=False, **options)["input_ids"])


def chat_text(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], opened: bool = True
) -> str:
    """Return the text of a chat, with the opening of the assistant's turn at its end where it is `opened`."""
    if not has_template(tokenizer):
        raise ModelError(
            "the prompt is a list of chat messages, but the model's tokenizer has no chat template; "
            "use an instruction-tuned model, or prompts that are plain strings"
        )
    return apply_template(tokenizer, messages, "the model's", add_generation_prompt=opened, **variables)


def apply_template(tokenizer: Any, messages: Sequence[Mapping[str, Any]], whose: str, **options: Any) -> str:
    """Return the text that the tokenizer's chat template makes of messages; `whose` is its owner in error messages.

    A thread can end a template that loops, but not a single operation that takes hours. In jinja's sandbox only powers
    can be so large, and no chat needs them: they are refused.

    Raises ModelError: it refuses the messages, has powers, is not done within `TEMPLATE_SECONDS`, or takes more than
    `TEMPLATE_BYTES` or `TEMPLATE_CHARACTERS`.
    """
    if _has_powers(tokenizer.chat_template):
        raise ModelError(f"{whose} chat template computes powers (**), which could take for ever; take them out of it")
    made: list[str] = []
    errors: list[BaseException] = []

    def apply() -> None:
        try:
            chat = [dict(message) for message in messages]
            made.append(tokenizer.apply_chat_template(chat, tokenize=False, **options))
        except BaseException as error:  # templates are programs, which may raise anything (jinja2, KeyError, TypeError)
            errors.append(error)

    thread = threading.Thread(target=apply, daemon=True)
    instead = 'correct the template, or use data.chat = "never" and prompts that are plain strings'
    with _limited_memory():
        thread.start()
        thread.join(TEMPLATE_SECONDS)
        if thread.is_alive():
            _end(thread)
            raise ModelError(
                f"{whose} chat template took longer for one prompt than {TEMPLATE_SECONDS:g} seconds: it loops; "
                + instead
            )
    if any(isinstance(error, MemoryError) for error in errors) or any(len(text) > TEMPLATE_CHARACTERS for text in made):
        raise ModelError(
            f"{whose} chat template made more of one prompt than {TEMPLATE_BYTES >> 20} MiB of memory or "
            f"{TEMPLATE_CHARACTERS} characters: it repeats something far too often; {instead}"
        )
    if errors:
        raise ModelError(f"{whose} chat template refuses these messages: {errors[0]}") from errors[0]
    return made[0]


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    """Allow this process `TEMPLATE_BYTES` more memory than it has: what needs more is refused, whatever asks for it.

    The limit does not count mapped files. Only Linux has it and says how much the process has.
    """
    with _limited:
        old, hard = resource.getrlimit(resource.RLIMIT_DATA)
        new = old
        with contextlib.suppress(OSError):
            taken = int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()
            new = taken + TEMPLATE_BYTES if old == resource.RLIM_INFINITY else min(old, taken + TEMPLATE_BYTES)
        resource.setrlimit(resource.RLIMIT_DATA, (new, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (old, hard))


def _has_powers(template: Any) -> bool:
    """Return whether one of a tokenizer's templates, a text or texts by name, has the operator `**`."""
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
