"""Tokens of an environment's messages, to follow the tokens that the policy has sampled.

Sampled tokens stay as they are: nothing is tokenised again. The chat template renders the history, a mark in the place
of the policy's turn, and the new messages. The text after the mark becomes tokens:

    "...<|im_start|>assistant\\nMARK<|im_end|>\\n<|im_start|>tool\\n4<|im_end|>\\n<|im_start|>assistant\\n"
                       sampled:  ^^^^^^^^^^^^^^  context: the rest

This holds for templates that append: the text of the history must not change when messages follow it. A template
that changes it ends the episode. Thoughts that a template drops from the history stay, as they were
sampled. A tokenizer without a chat template gets the text of the messages as it is.

Covered: text that spells a special token never becomes one. Not covered: images.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from oncurve.base.errors import ModelError
from oncurve.models.loading import chat_text, encode
from oncurve.types import Prompt

_MARK = "oncurve0marks0this"
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)

Message = Mapping[str, Any]


class Dialogue:
    """Tokens and tool calls of one tokenizer.

    ends        ids of the tokens that end a turn
    variables   of the chat template
    forms       of calls in plain text: `{"calculate": "<<{}>>"}`
    """

    def __init__(
        self, tokenizer: Any, ends: Sequence[int], variables: Mapping[str, Any], forms: Mapping[str, str] | None = None
    ) -> None:
        self._tokenizer, self._variables, self._forms = tokenizer, dict(variables), dict(forms or {})
        self._ends = [text for text in (tokenizer.decode([end]) for end in ends) if text]
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *ends, *added}  # also <think>, which is added and not special
        self._names = [tokenizer.decode([token]) or "<eos>" for token in sorted(self._special)]

    def opened(self, prompt: Prompt, said: str | Sequence[Message] | None, tools: Sequence[Any]) -> Prompt:
        """Return the prompt with what the environment says at the start, and with its tools.

        Text goes to the end of the last user message, messages to the end of all. Raises ModelError.
        """
        if prompt.messages is None:
            text = _text_of(said) if said else ""
            ids = prompt.ids + self._plain(text)
            return replace(prompt, text=prompt.text + text, ids=ids, row_ids=prompt.ids) if text else prompt
        messages = [dict(message) for message in prompt.messages]
        if not said and not tools:
            return prompt
        parts = [] if not said or isinstance(said, str) else said
        added = [kept(each) for each in parts] if all("role" in each for each in parts) else []
        contents = [_text_of(each["content"]) for each in added] if added or not said else [_text_of(said)]

        def put(texts: Sequence[str]) -> list[dict[str, Any]]:
            if added or not said:
                return [*messages, *_filled(added, texts)]
            at = max((n for n, each in enumerate(messages) if each["role"] == "user"), default=None)
            if at is None:
                return [*messages, {"role": "user", "content": texts[0]}]
            changed = {**messages[at], "content": messages[at]["content"] + texts[0]}
            return [*messages[:at], changed, *messages[at + 1 :]]

        ids = self._safe(lambda texts: self._rendered(put(texts), tools), contents)
        return replace(prompt, ids=ids, messages=tuple(put(contents)), row_ids=prompt.ids)

    def asked(self, messages: Sequence[Message], tools: Sequence[Any]) -> tuple[int, ...]:
        """Return the tokens of a chat, up to where the policy's turn begins. Raises ModelError."""
        others = json.dumps([tools, *(each.get("tool_calls") for each in messages)])
        if any(self._tokenizer.convert_ids_to_tokens(token) in others for token in self._special):
            raise ModelError("a tool or a tool call holds the text of a special token")
        contents = [each["content"] for each in messages]
        return self._safe(lambda texts: self._rendered(_filled(messages, texts), tools), contents)

    def reply(
        self, history: Sequence[Message], written: Message, said: Sequence[Message], tools: Sequence[Any], ended: bool
    ) -> tuple[int, ...]:
        """Return the tokens between a turn of the policy and its next one.

        history   the messages before the turn, `written` the turn itself, `said` what follows it, `kept`; empty where
                  the prompt was no chat
        ended     the turn ended by an end token

        Raises ModelError: the chat template does not go on from what was sampled.
        """
        contents = [_text_of(each["content"]) for each in said]
        if not history:
            return self._plain("".join(contents))
        before, turn = self._neutral(history, written, _filled(said, contents), tools)
        prefix = self._prefix(before, turn, _filled(said, _marks(contents)), tools, ended)

        def tail(texts: Sequence[str]) -> str:
            whole = self._rendered([*before, turn, *_filled(said, texts)], tools)
            if not whole.startswith(prefix):
                raise ModelError("the chat template changes earlier messages by what follows them")
            return whole[len(prefix) :]

        return self._safe(tail, contents)

    def _neutral(
        self, history: Sequence[Message], written: Message, after: Sequence[Message], tools: Sequence[Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the history and the turn without the policy's own words, which may be anything.

        Of several calls in one turn the first alone is left where the chat template allows no more.
        """
        if after and after[0]["role"] == "tool" and not written.get("tool_calls"):
            written = {**written, "tool_calls": [_NO_CALL]}  # a call that cannot be read has an answer, too
        for most in (None, 1):
            before, turn = [_without_words(each, most) for each in history], _without_words(written, most)
            with suppress(ModelError):
                self._rendered([*before, turn, *after], tools)
                break
        return before, turn

    def _prefix(
        self, before: Sequence[Message], turn: Message, marked: Sequence[Message], tools: Sequence[Any], ended: bool
    ) -> str:
        """Return the text of a chat up to what follows the turn, which is a mark, or calls without words."""
        whole = self._rendered([*before, turn, *marked], tools)
        starts = (self._rendered(before, tools, begun) for begun in (False, True))
        start = next((len(text) for text in starts if whole.startswith(text)), None)
        if start is None:
            raise ModelError("the chat template changes earlier messages when others follow")
        if not all(message["content"] in whole for message in marked):
            raise ModelError(f"the chat template leaves out messages of the role {marked[0]['role']!r}")
        end = whole.find(marked[0]["content"], start) if marked else len(whole)
        calls = bool(turn.get("tool_calls"))  # whose text is empty: some templates put it elsewhere, or leave it out
        at = start if calls else whole.find(_MARK, start)
        if at < 0:
            raise ModelError("the chat template leaves out messages of the role 'assistant'")
        begin = start if calls else at + len(_MARK)
        for tokens in (self._ends, [] if calls else self._names):  # <|end|> for <|return|>
            found = [(place, len(each)) for each in tokens if (place := whole.find(each, begin, end)) >= 0]
            if found:
                return whole[: min(found)[0] + min(found)[1] * ended]
        if calls:
            raise ModelError("no end token of the model's ends a turn with tool calls in the chat template")
        return whole[:begin]

    def check_tools(self) -> None:
        """Refuse a chat template that does not show tool calls and their results. Raises ModelError."""
        signs = ("oncurve0tool", "oncurve0key", "oncurve0value", "oncurve0result")
        function = {"name": signs[0], "arguments": {signs[1]: signs[2]}}
        call = {"type": "function", "id": "call00000", "function": function}
        chat: list[Message] = [
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": signs[0], "content": signs[3], "tool_call_id": "call00000"},
        ]
        shown = self._rendered(chat, [])
        if any(sign not in shown for sign in signs):
            raise ModelError("the model's chat template does not show tool calls and their results")

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any], opened: bool = True) -> str:
        variables = {**self._variables, **({"tools": list(tools)} if tools else {})}
        return chat_text(self._tokenizer, messages, variables, opened)

    def _plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text, none of them special.

        Some tokenizers have their special tokens in the vocabulary of the text, too: there each is cut in two.
        """
        options = {"add_special_tokens": False, "split_special_tokens": True}
        ids = encode(self._tokenizer, text, **options) if text else []
        if self._special.isdisjoint(ids):
            return tuple(ids)
        names = "|".join(re.escape(self._tokenizer.convert_ids_to_tokens(token)) for token in self._special)
        starts = [match.start() + 1 for match in re.finditer(names, text)]
        pieces = [text[start:end] for start, end in pairwise([0, *starts, len(text)])]
        found = [token for piece in pieces if piece for token in encode(self._tokenizer, piece, **options)]
        return tuple(token for token in found if token not in self._special)

    def _safe(self, render: Callable[[Sequence[str]], str], contents: Sequence[str]) -> tuple[int, ...]:
        """Return the tokens of `render(contents)`; no content becomes a special one."""
        ids = encode(self._tokenizer, render(contents), add_special_tokens=False)
        harmless = encode(self._tokenizer, render(["-"] * len(contents)), add_special_tokens=False)
        if [each for each in ids if each in self._special] == [each for each in harmless if each in self._special]:
            return tuple(ids)
        marks = _marks(contents)
        text, found = render(marks), dict(zip(marks, contents, strict=True))
        pieces = re.split(f"({'|'.join(marks)})", text)
        parts = (
            self._plain(found[piece]) if piece in found else encode(self._tokenizer, piece, add_special_tokens=False)
            for piece in pieces
        )
        return tuple(token for part in parts for token in part)

    def parsed(
        self, prompt_ids: Sequence[int], ids: Sequence[int], text: str, tools: Sequence[Any]
    ) -> tuple[dict[str, Any], list[Any]]:
        """Return a turn as a chat message without its tool calls, and these: each `{"name", "arguments"}`, or a string,
        which says why it cannot be read.

        They are read in their `forms`; without any as the tokenizer's response template has them; without one as
        `<tool_call>{...}</tool_call>`, or as one JSON object alone.
        """
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if not tools:
            return message, []
        if self._forms:
            return message, self._written_out(self._tokenizer.decode(list(ids), skip_special_tokens=True), tools)
        if getattr(self._tokenizer, "response_template", None) is None:
            found, rest = _HERMES.findall(text), _HERMES.sub("", text)
            if not found and text.lstrip().startswith("{") and '"name"' in text:
                found, rest = [text], ""
            return {**message, "content": rest.strip() if found else text}, list(map(_call, found))
        try:
            read = self._tokenizer.parse_response(list(ids), prefix=list(prompt_ids), tools=list(tools))
            found = [json.dumps(each.get("function", each)) for each in read.get("tool_calls") or ()]
        except Exception as error:  # a template's own code
            return message, [f"the call cannot be read: {error}"]
        words = {name: value for name, value in read.items() if isinstance(value, str)}
        return {**message, "content": "", **words}, list(map(_call, found))

    def _written_out(self, text: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        found: list[tuple[int, dict[str, Any]]] = []
        for name, form in self._forms.items():
            parameter = next(iter(schemas.get(name, {}).get("properties", ())), "")
            opening, closing = form.split("{}")
            at = 0
            for piece in text.split(closing)[:-1]:
                _, opened, argument = piece.rpartition(opening or "\n")
                at += len(piece) + len(closing)
                found += [(at, {"name": name, "arguments": {parameter: argument}})] if opened or not opening else []
        return [call for _, call in sorted(found, key=lambda each: each[0])]


_NO_CALL: Message = {"function": {"name": "unknown"}}


def _without_words(message: Message, most: int | None) -> dict[str, Any]:
    """Return a message of the chat; one of the policy's without its text and the arguments of its calls."""
    if message["role"] != "assistant":
        return dict(message)
    calls = []
    for each in (message.get("tool_calls") or ())[:most]:
        function = {"name": _name(each.get("function", each).get("name")), "arguments": {}}
        calls.append({"type": "function", "id": each.get("id", "call00000"), "function": function})
    return {"role": "assistant", **({"content": "", "tool_calls": calls} if calls else {"content": _MARK})}


def _filled(messages: Sequence[Message], texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]


def _name(name: object) -> str:
    return str(name) if _NAME.fullmatch(str(name)) else "unknown"


def kept(message: Message) -> dict[str, Any]:
    """Return a message of an environment with what chat templates may read of it.

    Raises ModelError: its role is none, or its content no text. Half characters become question marks.
    """
    _text_of(message["content"])
    if not _NAME.fullmatch(str(message["role"])):
        raise ModelError(f"an environment's message has the role {message['role']!r:.60}")
    named = {"name": _name(message["name"])} if "name" in message else {}
    content = json.dumps(message["content"], ensure_ascii=False).encode("utf-8", "replace")
    return {"role": message["role"], **named, "content": json.loads(content)}


def _marks(contents: Sequence[str]) -> list[str]:
    return [f"oncurve0says{number}z" for number in range(len(contents))]


def _call(text: str) -> dict[str, Any] | str:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return f"the call is not JSON: {error}"
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(name, str):
        return "the call has no name"
    arguments = found.get("arguments", found.get("parameters", {}))
    if not isinstance(arguments, dict):
        return f"the arguments of {name} are not an object"
    return {"name": name, "arguments": arguments}


def _text_of(content: Any) -> str:
    """Return the text of a content. Raises ModelError: it has parts that are no text."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode()  # no half characters
    parts = content if isinstance(content, (list, tuple)) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if any(text is None for text in texts):
        raise ModelError("an environment says text, or parts of type text; images are not supported")
    return _text_of("".join(map(str, texts)))
