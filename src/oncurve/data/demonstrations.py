"""Demonstrations: prompts with the completions that a policy learns from, from TRL's and verl's rows as they are.

    {"prompt": "2+2=", "completion": "4"}         strings, or lists of messages; verl: `response`, `extra_info.answer`
    {"messages": [{"role": "user", ...}, {"role": "assistant", ...}, ...]}      every turn of the assistant is trained
    {"text": "..."}                                                             every token but the first is trained

A column `tools` of a row in chats has JSON schemas, which the chat template shows as it shows an environment's tools.
A prompt is made as every other prompt of a run, so the policy reads the same tokens in its rollouts. What follows is
tokenised as the continuation of it, up to the end token with which a sampled completion ends, too.

Not covered: chat templates that render earlier turns differently once another follows; such rows are refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from oncurve.base.errors import DataError, ModelError
from oncurve.data.columns import MISSING, value_at
from oncurve.data.prompts import Prompts, check_row, check_vocabulary, is_token_ids
from oncurve.data.settings import DataSettings, Rows
from oncurve.data.sources import NO_ROWS, read_rows
from oncurve.models.loading import chat_text, encode, render
from oncurve.types import Completion, Prompt

COMPLETION, MESSAGES, TEXT, TOOLS = "completion", "messages", "text", "tools"
COMPLETIONS = (COMPLETION, "response", "extra_info.answer")
"""Where a completion is looked for, in this order."""


class DemonstrationRows(NamedTuple):
    """Rows to train on and held-out rows, each with a prompt and a column `completion`.

    settings   what makes prompts of them
    whole      the rows are of `text`, and every token of them is trained
    """

    train: Rows
    held_out: Rows
    settings: DataSettings
    whole: bool


def load_demonstrations(settings: DataSettings, base: Path | None = None) -> DemonstrationRows:
    """Return the rows of demonstrations. The first row says which form all have.

    Raises DataError, with its place, for a row that is no demonstration. Needs no tokenizer.
    """
    train, held_out = read_rows(settings, base)
    if not len(train):
        raise DataError(NO_ROWS.format(len(held_out)))
    form = _form(train.items[0], settings)
    if form != COMPLETION:
        update: dict[str, Any] = {"template": None, "prompt_column": "prompt"}
        update |= {"chat": "never", "system": None, "chat_template_kwargs": {}} if form == TEXT else {}
        settings = settings.model_copy(update=update)
    made = [_rows(rows, form, settings) for rows in (train.first(settings.limit), held_out)]
    return DemonstrationRows(made[0], made[1], settings, form == TEXT)


def _form(row: Mapping[str, Any], settings: DataSettings) -> str:
    asks = settings.template is not None or settings.prompt_column in row
    if (asks and _completion(row) is not MISSING) or not {MESSAGES, TEXT} & row.keys():
        return COMPLETION
    return MESSAGES if MESSAGES in row else TEXT


def _completion(row: Mapping[str, Any]) -> Any:
    return next((found for column in COMPLETIONS if (found := value_at(row, column)) is not MISSING), MISSING)


def _rows(rows: Rows, form: str, settings: DataSettings) -> Rows:
    items = []
    for row, number in zip(rows.items, rows.numbers, strict=True):
        place = rows.place(number)
        if form != COMPLETION and form not in row:
            raise DataError(f"{place}: column {form!r} is missing, which the first row has; give all rows one form")
        made = {**row, "prompt": row[TEXT], COMPLETION: ""} if form == TEXT else row
        made = _from_messages(row, place) if form == MESSAGES else made
        completion = _completion(made)
        if completion is MISSING:
            raise DataError(
                f"{place}: no demonstration: expected columns prompt and completion, or messages, or text; it has: "
                f"{', '.join(map(str, row))}; name them, like sft.columns.completion=answer"
            )
        _check_completion(completion, f"{place}: the completion")
        made = {**{key: value for key, value in made.items() if key not in (MESSAGES, TEXT)}, COMPLETION: completion}
        check_row(made, settings, place)
        items.append(made)
    return replace(rows, items=items)


def _from_messages(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    messages = row[MESSAGES]
    if not isinstance(messages, list | tuple):
        raise DataError(f"{place}: column 'messages' must be a list of messages, got {messages!r:.60}")
    roles = [message.get("role") if isinstance(message, Mapping) else None for message in messages]
    first = roles.index("assistant") if "assistant" in roles else 0
    if not first:
        raise DataError(f"{place}: column 'messages' needs a turn of the assistant after another turn, to be trained")
    return {**row, "prompt": list(messages[:first]), COMPLETION: list(messages[first:])}


def _tools(row: Mapping[str, Any], place: str) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of a row's tools; none where it has no such column."""
    given = row.get(TOOLS) or []
    try:
        tools = (json.loads(given) if isinstance(given, str) else given) or []
    except ValueError:
        tools = None
    if not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools):
        raise DataError(f"{place}: column 'tools': expected a list of JSON schemas, or its text")
    return tools


def _check_completion(completion: Any, place: str) -> None:
    """Raise DataError: it is neither text, nor token ids, nor messages with a turn of the assistant."""
    if isinstance(completion, str) or is_token_ids(completion):
        return
    listed = completion if isinstance(completion, list | tuple) else [None]
    roles = [each.get("role") for each in listed if isinstance(each, Mapping) and isinstance(each.get("content"), str)]
    if len(roles) < len(listed) or "assistant" not in roles:
        raise DataError(f"{place} must be a text, or messages with a turn of the assistant, got {completion!r:.60}")


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations as a model reads them, made on access: a sequence of prompts, and `completion` of each.

    eos_ids            what ends a completion
    train_on_prompts   the prompt's tokens are trained, too: all but the first stand in the completion
    dropped            rows that were too long and are left out
    """

    prompts: Prompts
    eos_ids: tuple[int, ...] = ()
    train_on_prompts: bool = False
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self._both(index)[0]

    def completion(self, prompt: Prompt) -> Completion:
        """Return the completion of one of these prompts."""
        return self._both(self._places[prompt.id])[1]

    def lengths(self) -> list[int]:
        """Return the tokens of each row, prompt and completion together. Raises DataError: a row cannot be made."""
        both = map(self._both, range(len(self)))
        return [len(prompt.ids) + len(completion.ids) for prompt, completion in both]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {number: index for index, number in enumerate(self.prompts.rows.numbers)}

    def _both(self, index: int) -> tuple[Prompt, Completion]:
        rows, prompt = self.prompts.rows, self.prompts[index]
        place, row = rows.place(rows.numbers[index]), rows.items[index]
        tools = _tools(row, place) if prompt.messages else []
        variables = {**self.prompts.settings.chat_template_kwargs, **({TOOLS: tools} if tools else {})}
        try:
            if tools:
                prompt = replace(prompt, ids=render(self.prompts.tokenizer, prompt.messages or (), variables))
            ids, trained = self._tokens(prompt, row[COMPLETION], variables)
        except (ModelError, DataError) as error:
            raise DataError(f"{place}: {error}") from error
        if self.train_on_prompts:
            ids, trained = [*prompt.ids[1:], *ids], [True] * (len(prompt.ids) - 1 + len(ids))
            prompt = replace(prompt, ids=prompt.ids[:1])
        if not any(trained):
            raise DataError(f"{place}: there is no token to train")
        tokenizer = self.prompts.tokenizer
        text = "" if tokenizer is None else tokenizer.decode(ids, skip_special_tokens=True)
        mask = None if all(trained) else tuple(trained)
        return prompt, Completion(tuple(ids), text, (), "given", 0, 0, mask)

    def _tokens(self, prompt: Prompt, given: Any, variables: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
        """Return the tokens that follow the prompt, and which of them are trained."""
        if is_token_ids(given):
            return [int(token) for token in given], [True] * len(given)
        tokenizer = self.prompts.tokenizer
        if tokenizer is None:
            raise ModelError("a completion that is text needs a tokenizer; give one, or token ids")
        pieces = iter(self._pieces(prompt, given, variables))
        before, ids, trained = next(pieces)[0], list(prompt.ids), [False] * len(prompt.ids)
        for text, learned in pieces:
            found = _following(tokenizer, before, text, ids, prompt.messages is None)
            ends = [place for place, token in enumerate(found, start=1) if token in self.eos_ids]
            kept = ends[-1] if ends else len(found)  # a sampled completion has nothing after its end token
            ids, before = [*ids, *found], before + text
            trained += [learned and place < kept for place in range(len(found))]
        count = max((place for place, each in enumerate(trained, start=1) if each), default=len(ids))
        ids, trained = ids[:count], trained[:count]
        own = getattr(tokenizer, "eos_token_id", None)
        if self.eos_ids and ids[-1] not in self.eos_ids:
            ids, trained = [*ids, own if own in self.eos_ids else self.eos_ids[0]], [*trained, True]
        return ids[len(prompt.ids) :], trained[len(prompt.ids) :]

    def _pieces(self, prompt: Prompt, given: Any, variables: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        """Yield the texts of a row one after the other, and whether each is trained; the prompt's is the first."""
        if prompt.messages is None and isinstance(given, str):
            yield prompt.text, False
            yield given, True
            return
        messages = list(prompt.messages or ())
        if not messages:
            raise ModelError("the completion is a list of messages, and the prompt is none; give both one form")
        rendered = partial(chat_text, self.prompts.tokenizer, variables=variables)
        before = rendered(messages, opened=True)
        yield before, False
        for message in [{"role": "assistant", "content": given}] if isinstance(given, str) else given:
            learned = message["role"] == "assistant"
            whole = rendered(messages, opened=True) if learned else before
            yield _after(before, whole), False
            messages.append(message)
            before = rendered(messages, opened=False)
            yield _after(whole, before), learned


def _after(before: str, whole: str) -> str:
    """Return what `whole` has after `before`. Raises DataError: it begins in another way."""
    if not whole.startswith(before):
        raise DataError(
            "the chat template renders earlier turns in another way once a turn follows (some leave out reasoning); "
            "write a row for each answer, with what precedes it as its prompt"
        )
    return whole[len(before) :]


def _following(tokenizer: Any, before: str, text: str, ids: Sequence[int], special: bool) -> list[int]:
    """Return the tokens of `text` after `before`, whose tokens are `ids`: in its context where that leaves these as
    they are, else alone, as the policy would continue them.
    """
    whole = encode(tokenizer, before + text, **({} if special else {"add_special_tokens": False}))
    if whole[: len(ids)] == list(ids):
        return whole[len(ids) :]
    return encode(tokenizer, text, add_special_tokens=False)


def open_demonstrations(
    found: Demonstrations, longest: int | None = None, drop: bool = False, vocabulary: int | None = None
) -> Demonstrations:
    """Return the demonstrations that a model takes, which are all made once now, not in the middle of a run. Those of
    more than `longest` tokens are refused, or left out with `drop`.

    Raises DataError, with its place: a row that cannot be made, that is too long, or has token ids that the model, with
    its `vocabulary`, does not have; all are too long.
    """
    rows, lengths = found.prompts.rows, found.lengths()
    if vocabulary is not None:
        for row, number in zip(rows.items, rows.numbers, strict=True):
            for value in (row[COMPLETION], row.get(found.prompts.settings.prompt_column)):
                check_vocabulary(value, vocabulary, f"{rows.place(number)}: the demonstration")
    fitting = [index for index, length in enumerate(lengths) if longest is None or length <= longest]
    if len(fitting) == len(rows):
        return found
    worst = max(range(len(rows)), key=lambda index: lengths[index])
    says = (
        f"{len(rows) - len(fitting):,} of {len(rows):,} demonstrations have more than the {longest:,} tokens allowed "
        f"(sft.max_length, or the model's context), at most {lengths[worst]:,} ({rows.place(rows.numbers[worst])})"
    )
    if not drop:
        raise DataError(f"sft: {says}; raise sft.max_length, or leave them out (data.overlong=drop)")
    if not fitting:
        raise DataError(f"sft: {says}: no demonstration is left")
    return replace(found, prompts=replace(found.prompts, rows=rows.select(fitting)), dropped=len(rows) - len(fitting))
