"""From a row to a prompt: its column or template, the chat around it, its tokens.

A prompt is made, and tokenised, each time it is taken, so a million rows take the memory of their rows alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from oncurve.base.errors import DataError, ModelError, suggest
from oncurve.data.columns import fill, template_columns
from oncurve.data.containers import DEEPEST
from oncurve.data.settings import DataSettings, Rows
from oncurve.models.loading import check_variables, has_template, render
from oncurve.types import Prompt

GENERATED_SAMPLE = 64  # generated prompts that are checked; all hundred thousand would take half a minute


def check_row(row: Mapping[str, Any], settings: DataSettings, place: str) -> None:
    """Raises DataError, beginning with `place`, where this row can make no prompt. Needs no tokenizer."""
    wanted = template_columns(settings.template) if settings.template is not None else (settings.prompt_column,)
    for column in wanted:
        if column not in row:
            has = ", ".join(str(name) for name in row) or "no columns"
            fix = "correct data.template"
            if settings.template is None:
                text = next((name for name, value in row.items() if isinstance(value, str)), "COLUMN")
                fix = f'set data.prompt_column={text} or data.template (data.template = "" where an environment asks)'
            near = suggest(column, [name for name in row if isinstance(name, str)])
            raise DataError(f"{place}: column {column!r} is missing; it has: {has}; {fix}{near}")
        if row[column] is None:
            raise DataError(f"{place}: column {column!r} is empty (null); a prompt needs a value")
    for column, value in row.items():
        wrong = _unwritable([column, value])
        if wrong is not None:
            raise DataError(f"{place}: column {column!r:.60} {wrong}")
    if settings.template is None:
        _check_prompt(row[settings.prompt_column], settings, f"{place}: column {settings.prompt_column!r}")


def _check_prompt(prompt: Any, settings: DataSettings, place: str) -> None:
    if isinstance(prompt, str):
        if not prompt:
            raise DataError(f"{place} is an empty string; there is nothing to ask")
    elif is_token_ids(prompt):
        if min(int(token) for token in prompt) < 0:
            raise DataError(f"{place} holds a negative token id; ids count from 0")
        if settings.system is not None:
            raise DataError(f"{place} holds token ids, which no data.system can be put before; leave data.system out")
    elif isinstance(prompt, (list, tuple)) and prompt:
        for index, message in enumerate(prompt):
            _check_message(message, f"{place}, message {index}")
        if settings.system is not None and prompt[0]["role"] == "system":
            raise DataError(f"{place} has a system message of its own; leave data.system out, or the message")
    else:
        raise DataError(f"{place}: expected a string or a list of {{role, content}} messages, got {prompt!r:.60}")


def _unwritable(value: Any, depth: int = 0) -> str | None:
    """Return why a column's value cannot be written as JSON in UTF-8, or sent to a worker, or None if it can.

    JSON can hold one half of a surrogate pair, UTF-8 and tokenizers cannot.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "holds half a character, one surrogate of a pair; take it out"
    parts = value if isinstance(value, (list, tuple)) else ()
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    if parts and depth == DEEPEST:
        return f"is nested too deeply, {DEEPEST} levels or more; write it flat"
    parts = [part for part in parts if type(part) is not int]  # token ids may be many
    return next((wrong for part in parts if (wrong := _unwritable(part, depth + 1)) is not None), None)


def _check_message(message: Any, place: str) -> None:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(f'{place}: expected {{"role": ..., "content": ...}}, got {message!r:.60}')
    if not isinstance(message.get("content"), str):
        raise DataError(f"{place}: 'content' must be a string, got {message.get('content')!r:.60}")


def is_token_ids(prompt: Any) -> bool:
    """Return whether a prompt or a completion is token ids."""
    if isinstance(prompt, Tensor):
        return prompt.dim() == 1 and len(prompt) > 0 and not prompt.is_floating_point()
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and all(type(item) is int for item in prompt)


def prompt_columns(row: Mapping[str, Any], settings: DataSettings) -> dict[str, Any]:
    """Return the columns of a row that its prompt carries: all except a column "prompt", which rewards receive as text,
    and except token ids that are the prompt.
    """
    if settings.template is not None:
        return dict(row)
    own = settings.prompt_column
    left_out = own in row and (own == "prompt" or is_token_ids(row[own]))
    return {name: value for name, value in row.items() if name != own or not left_out}


def filled_prompt(row: Mapping[str, Any], settings: DataSettings) -> Any:
    """Return the prompt of a row as its column holds it, or as the template makes it."""
    return row[settings.prompt_column] if settings.template is None else fill(settings.template, row)


def distinct_prompts(rows: Rows, settings: DataSettings, played: bool = False) -> int:
    """Count the different prompts among `rows`; generated ones are taken to be different.

    `played`: an environment asks, too, by what the whole row says.
    """
    if rows.generated:
        return len(rows)
    asked = (dict(row) if played else filled_prompt(row, settings) for row in rows.items)
    return len({hash(repr(each.tolist() if isinstance(each, Tensor) else each)) for each in asked})


@dataclass(frozen=True)
class Prompts:
    """Rows as prompts: `prompts[i]` is made on access. `dropped` is the number of rows that were too long and left out.

    `truncated` rows are too long too: the last `longest` tokens of their prompts are kept (None: all are).
    `tokenizer` may be None where every row's prompt is token ids. `teacher` is the template of the prompt as a teacher
    reads it; None: as the policy does.
    """

    rows: Rows
    settings: DataSettings
    tokenizer: Any = None
    dropped: int = 0
    teacher: str | None = None
    longest: int | None = None
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Prompt:
        """Return row `index` as a prompt; its id is the row's number. Raises DataError, with the row's place."""
        row, number = self.rows.items[index], self.rows.numbers[index]
        asked = filled_prompt(row, self.settings)
        try:
            prompt = self._asked(number, asked, prompt_columns(row, self.settings))
            if self.longest is not None and len(prompt.ids) > self.longest:
                prompt = replace(prompt, ids=prompt.ids[-self.longest :])
            if self.teacher is None:
                return prompt
            return replace(prompt, teacher_ids=self._asked(number, fill(self.teacher, row), {}).ids)
        except ModelError as error:
            raise DataError(f"{self.rows.place(number)}: {error}") from error

    def first(self, count: int | None) -> Prompts:
        """Return the first `count` prompts; all of them for None."""
        return self if count is None else replace(self, rows=self.rows.first(count))

    @property
    def mixture(self) -> list[tuple[list[int], float]]:
        """For each source the indices of its prompts and its weight; none where prompts are not drawn by weights."""
        starts = [start for start, _ in self.rows.mixture]
        members: list[list[int]] = [[] for _ in starts]
        for index, number in enumerate(self.rows.numbers if starts else ()):
            members[bisect_right(starts, number) - 1].append(index)
        return list(zip(members, [weight for _, weight in self.rows.mixture], strict=True))

    @property
    def as_chat(self) -> bool:
        """Return whether a prompt that is a string becomes a user's message."""
        if self.settings.chat == "auto":
            return self.settings.system is not None or has_template(self.tokenizer)
        return self.settings.chat == "always"

    def _asked(self, number: int, asked: Any, columns: dict[str, Any]) -> Prompt:
        """Return the prompt of a row: a string, messages, or token ids."""
        if is_token_ids(asked):
            ids = tuple(int(item) for item in asked)
            return Prompt(number, "" if self.tokenizer is None else self.tokenizer.decode(ids), ids, columns)
        if self.tokenizer is None:
            raise ModelError("a prompt that is text needs a tokenizer; give one, or token ids")
        if isinstance(asked, str) and not self.as_chat:
            return Prompt(number, asked, render(self.tokenizer, asked), columns)
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        if self.settings.system is not None:
            messages = [{"role": "system", "content": self.settings.system}, *messages]
        text = asked if isinstance(asked, str) else "\n".join(message["content"] for message in messages)
        ids = render(self.tokenizer, messages, self.settings.chat_template_kwargs)
        return Prompt(number, text, ids, columns, tuple(messages))


def open_prompts(
    rows: Rows,
    settings: DataSettings,
    tokenizer: Any = None,
    fits: int | None = None,
    vocabulary: int | None = None,
    teacher: str | None = None,
) -> Prompts:
    """Return the prompts of `rows`. Those longer than `data.max_prompt_tokens` (else `fits`, the model's limit) are
    refused, dropped or found to be cut now, not in the middle of a run.

    vocabulary   the model's number of tokens; None: not known
    teacher      the template of the prompt as a teacher reads it, which must leave room for a completion too

    Raises DataError: token ids that the model does not have; a prompt is too long and `data.overlong` is "error"; all
    of them are; a row lacks a column of `teacher`, or makes too long a prompt for it.
    """
    prompts = Prompts(rows, settings, tokenizer, teacher=teacher)
    if len(rows) and settings.chat_template_kwargs:
        check_variables(tokenizer, settings.chat_template_kwargs)
    if teacher is not None:
        _check_teacher(prompts, teacher, fits)
    if vocabulary is not None and settings.template is None and not rows.generated:
        for row, number in zip(rows.items, rows.numbers, strict=True):
            check_vocabulary(row[settings.prompt_column], vocabulary, f"{rows.place(number)}: the prompt")
    room = math.inf if fits is None else fits
    longest = min(room, math.inf if settings.max_prompt_tokens is None else settings.max_prompt_tokens)
    lengths = [len(prompts[index].ids) for index in _checked(rows)]
    first = next((index for index, length in enumerate(lengths) if length > longest), None)
    if first is None:
        return prompts
    if settings.overlong == "error":
        place = rows.place(rows.numbers[first])
        raise DataError(f"{place}: the prompt has {lengths[first]} tokens; {_too_long(lengths, longest, room)}")
    if rows.generated:
        lengths = [len(prompts[index].ids) for index in range(len(rows))]
    short = [index for index, length in enumerate(lengths) if length <= longest]
    if settings.overlong == "truncate_left" and longest >= 1:
        return replace(prompts, longest=int(longest), truncated=len(lengths) - len(short))
    if not short:
        raise DataError(f"data: all {len(rows)} prompts are too long; {_too_long(lengths, longest, room)}")
    return Prompts(rows.select(short), settings, tokenizer, len(rows) - len(short), teacher)


def _checked(rows: Rows) -> range:
    """Return the indices of the rows whose prompts are made before a run: all, or some of generated ones."""
    return range(min(len(rows), GENERATED_SAMPLE) if rows.generated else len(rows))


def _check_teacher(prompts: Prompts, template: str, fits: int | None) -> None:
    """Raises DataError, with its place, at the first row of which a teacher's prompt cannot be made, or is too long."""
    rows, wanted = prompts.rows, template_columns(template)
    for index in _checked(rows):
        row, place = rows.items[index], rows.place(rows.numbers[index])
        empty = next((column for column in wanted if row.get(column) is None), None)
        if empty is not None:
            problem = "is empty (null)" if empty in row else f"is missing; it has: {', '.join(map(str, row))}"
            raise DataError(f"{place}: column {empty!r} {problem}; advantage.template needs it{suggest(empty, row)}")
        length = 0 if fits is None else len(prompts[index].teacher_ids or ())
        if fits is not None and length > fits:
            raise DataError(
                f"{place}: the teacher's prompt (advantage.template) has {length:,} tokens, and next to a completion "
                f"there is room for {fits:,}; shorten it, or lower rollout.max_new_tokens by {length - fits:,}"
            )


def _too_long(lengths: Sequence[int], longest: float, room: float) -> str:
    """Return the number of prompts with more than `longest` tokens, the lengths of all, and suggestions."""
    ranked = sorted(lengths)
    most, over = ranked[-1], sum(length > longest for length in ranked)
    at = {f"p{percent}": ranked[math.ceil(percent / 100 * len(ranked)) - 1] for percent in (50, 90, 99)} | {"max": most}
    says = ", ".join(f"{name} {length:,}" for name, length in at.items())
    fixes = [f"lower rollout.max_new_tokens by {most - room:,.0f}"] if most > room else []
    fixes += [f"raise the limit (data.max_prompt_tokens={most})"] if longest < most <= room else []
    fixes += ["leave them out (data.overlong=drop)"] if over < len(ranked) else []
    fixes += ["keep their last tokens (data.overlong=truncate_left)"] if longest >= 1 else []
    more = f"{over:,} of {len(ranked):,} prompts have more than the {longest:,.0f} allowed"
    return f"{more} (tokens: {says}); {', or '.join(fixes)}"


def check_vocabulary(prompt: Any, vocabulary: int, place: str) -> None:
    """Raise DataError: token ids that the model does not have."""
    if is_token_ids(prompt):
        ids = [int(token) for token in prompt]
        if max(ids) >= vocabulary:
            raise DataError(f"{place} holds the token id {max(ids)}; the model has ids from 0 to {vocabulary - 1}")
