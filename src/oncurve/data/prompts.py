"""From a row to a prompt: its column or template, the chat around it, its tokens.

Rows stay rows: a prompt is made, and tokenised, each time it is taken, so a million rows cost a million rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from oncurve.data.settings import DataSettings, Rows
from oncurve.data.template import fill, template_columns
from oncurve.errors import DataError, ModelError
from oncurve.models.chat import has_template, render
from oncurve.spec import suggest
from oncurve.types import Prompt

__all__ = ["Prompts", "check_row", "open_prompts"]


GENERATED_SAMPLE = 64  # so many generated prompts speak for a hundred thousand, which would take half a minute


def check_row(row: Mapping[str, Any], settings: DataSettings, place: str) -> None:
    """Raises DataError, beginning with `place`, where this row can make no prompt. Needs no tokenizer."""
    wanted = template_columns(settings.template) if settings.template is not None else (settings.prompt_column,)
    for column in wanted:
        if column not in row:
            has = ", ".join(str(name) for name in row) or "no columns"
            mend = "data.template" if settings.template is not None else "data.prompt_column or data.template"
            near = suggest(column, [name for name in row if isinstance(name, str)])
            raise DataError(f"{place}: column {column!r} is missing; it has: {has}; set {mend}{near}")
        if row[column] is None:
            raise DataError(f"{place}: column {column!r} is empty (null); a prompt needs a value")
        if not _is_unicode(row[column]):
            raise DataError(f"{place}: column {column!r} holds half a character, one surrogate of a pair; take it out")
    if settings.template is None:
        _check_prompt(row[settings.prompt_column], settings, f"{place}: column {settings.prompt_column!r}")


def _check_prompt(prompt: Any, settings: DataSettings, place: str) -> None:
    if isinstance(prompt, str):
        if not prompt:
            raise DataError(f"{place} is an empty string; there is nothing to ask")
    elif _is_token_ids(prompt):
        if settings.system is not None:
            raise DataError(f"{place} holds token ids, which no data.system can be put before; leave data.system out")
    elif isinstance(prompt, (list, tuple)) and prompt:
        for index, message in enumerate(prompt):
            _check_message(message, f"{place}, message {index}")
        if settings.system is not None and prompt[0]["role"] == "system":
            raise DataError(f"{place} has a system message of its own; leave data.system out, or the message")
    else:
        raise DataError(f"{place}: expected a string or a list of {{role, content}} messages, got {prompt!r:.60}")


def _is_unicode(value: Any) -> bool:
    """Whether UTF-8 can write what `value` says: JSON can hold one half of a surrogate pair, tokenizers cannot."""
    if isinstance(value, (list, tuple)):
        return all(_is_unicode(item.get("content") if isinstance(item, Mapping) else item) for item in value)
    try:
        return not isinstance(value, str) or value.encode() is not None
    except UnicodeEncodeError:
        return False


def _check_message(message: Any, place: str) -> None:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(f'{place}: expected {{"role": ..., "content": ...}}, got {message!r:.60}')
    if not isinstance(message.get("content"), str):
        raise DataError(f"{place}: 'content' must be a string, got {message.get('content')!r:.60}")


def _is_token_ids(prompt: Any) -> bool:
    if isinstance(prompt, Tensor):
        return prompt.dim() == 1 and len(prompt) > 0 and not prompt.is_floating_point()
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and all(type(item) is int for item in prompt)


@dataclass(frozen=True)
class Prompts:
    """Rows as prompts: `prompts[i]` is made when asked for. `dropped` rows were too long and are not among them.

    `tokenizer` may be absent where every row's prompt is token ids already.
    """

    rows: Rows
    settings: DataSettings
    tokenizer: Any = None
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Prompt:
        """Row `index` as a prompt; its id is the row's number. Raises DataError, with the row's place."""
        row, number = self.rows.items[index], self.rows.numbers[index]
        template, column = self.settings.template, self.settings.prompt_column
        asked = row[column] if template is None else fill(template, row)
        columns = {name: value for name, value in row.items() if template is not None or name != column}
        try:
            return self._asked(number, asked, columns)
        except ModelError as error:
            raise DataError(f"{self.rows.place(number)}: {error}") from error

    @property
    def as_chat(self) -> bool:
        """Whether a prompt that is a string is put to the model as a user's message."""
        if self.settings.chat == "auto":
            return self.settings.system is not None or has_template(self.tokenizer)
        return self.settings.chat == "always"

    def _asked(self, number: int, asked: Any, columns: dict[str, Any]) -> Prompt:
        """The prompt for what a row asks: a string, messages, or token ids."""
        if _is_token_ids(asked):
            ids = tuple(int(item) for item in asked)
            return Prompt(number, "" if self.tokenizer is None else self.tokenizer.decode(ids), ids, columns)
        if self.tokenizer is None:
            raise ModelError("a prompt in words needs a tokenizer; give one, or token ids")
        if isinstance(asked, str) and not self.as_chat:
            return Prompt(number, asked, render(self.tokenizer, asked), columns)
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        if self.settings.system is not None:
            messages = [{"role": "system", "content": self.settings.system}, *messages]
        text = asked if isinstance(asked, str) else "\n".join(message["content"] for message in messages)
        return Prompt(number, text, render(self.tokenizer, messages), columns, tuple(messages))


def open_prompts(rows: Rows, settings: DataSettings, tokenizer: Any = None, fits: int | None = None) -> Prompts:
    """The prompts of `rows`, with those longer than `data.max_prompt_tokens` (else `fits`, what the model can take)
    refused or dropped now, not in the middle of a run.

    Raises DataError: a prompt is too long and `data.overlong` is "error"; all of them are.
    """
    prompts = Prompts(rows, settings, tokenizer)
    if len(rows):
        prompts[0]  # a tokenizer that cannot do what is asked fails now
    room = math.inf if fits is None else fits
    longest = min(room, math.inf if settings.max_prompt_tokens is None else settings.max_prompt_tokens)
    if longest == math.inf:
        return prompts
    refuse = settings.overlong == "error"
    knob = "raise data.max_prompt_tokens" if longest < room else "lower rollout.max_new_tokens"
    some = range(min(len(rows), GENERATED_SAMPLE) if rows.generated else 0)
    if len(some) and all(_fits(prompts, index, longest, knob, refuse) for index in some):
        return prompts
    short = [index for index in range(len(prompts)) if _fits(prompts, index, longest, knob, refuse)]
    if not short and len(rows):
        raise DataError(f"data: every one of the {len(rows)} prompts has more than {longest} tokens")
    if len(short) == len(rows):
        return prompts
    return Prompts(rows.select(short), settings, tokenizer, dropped=len(rows) - len(short))


def _fits(prompts: Prompts, index: int, longest: float, knob: str, refuse: bool) -> bool:
    count = len(prompts[index].ids)
    if count > longest and refuse:
        place = prompts.rows.place(prompts.rows.numbers[index])
        mend = f"shorten it, {knob}, or set data.overlong = 'drop'"
        raise DataError(f"{place}: the prompt has {count} tokens, more than {longest}; {mend}")
    return count <= longest
