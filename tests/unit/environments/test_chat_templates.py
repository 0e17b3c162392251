"""After a turn of the policy an episode goes on as the whole chat would be rendered, or its template is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

import oncurve.models.tiny
from fakes.tables import table
from fakes.trl_trainers import END, NO_TRL, RESPONSE, TEMPLATE, call, tokenizer as chat_tokenizer
from oncurve.base.errors import ModelError
from oncurve.environments import Dialogue
from oncurve.models.loading import apply_template, encode, load_tokenizer, render

MARKUP = re.compile(
    r"<\|[^|<>]{1,40}\|>|<｜[^｜]{1,40}｜>|<(?:start|end)_of_turn>|<end_of_utterance>|</?s>|\[/?[A-Z_]{4,}\]"
    r"|<\|[a-z_]+>|<[a-z_]+\|>|<eos>|<bos>"
)
TURN_ENDS = table("chat_templates", "turn_ends")
TOOLS = table("chat_templates", "tools")
CALL = {"type": "function", "id": "call00000", "function": {"name": "add", "arguments": {"x": 3}}}
MISTRAL = table("chat_templates", "mistral")
"""In the style of Mistral's."""


def with_template(template):
    made = load_tokenizer(str(Path(oncurve.models.tiny.__file__).parent), local=True)
    made.add_special_tokens({"additional_special_tokens": sorted({*MARKUP.findall(template), "<s>", "</s>"})})
    made.bos_token, made.eos_token, made.chat_template = "<s>", "</s>", template
    return made


def outcome(tokenizer, kind, rounds=2):
    """How an episode of some turns goes: "equal", "equal but for thoughts", "refused: why", or what differs."""
    vocabulary = tokenizer.get_vocab()
    ends = [vocabulary[end] for end in TURN_ENDS if end in vocabulary]
    dialogue = Dialogue(tokenizer, ends, {})
    tools = TOOLS if kind == "tool" else []
    variables = {"tools": tools} if tools else {}
    turn = (
        {"role": "assistant", "content": "so 4"}
        if not tools
        else {"role": "assistant", "content": "", "tool_calls": [CALL]}
    )
    said = {"role": "user", "content": "and now?"} if not tools else {"role": "tool", "name": "add", "content": "7 ok"}
    said |= {"tool_call_id": "call00000"} if tools else {}
    history = [{"role": "user", "content": "hi there"}]

    def text(messages, opened):
        return apply_template(tokenizer, messages, "the", add_generation_prompt=opened, **variables)

    try:
        if tools:
            dialogue.check_tools()
        ids = list(render(tokenizer, history, variables))
        for _ in range(rounds):
            ids += encode(tokenizer, _written(text, history, turn, tokenizer, ends), add_special_tokens=False)
            ids += dialogue.reply(history, turn, [said], tools, ids[-1] in ends)
            history += [turn, said]
    except ModelError as error:
        return f"refused: {error}"
    whole = text(history, True)
    if ids == encode(tokenizer, whole, add_special_tokens=False):
        return "equal"

    def bare(words):  # a final turn ends by <|return|>, which is <|end|> in the history
        return re.sub(r"<think>.*?</think>\s*", "", words.replace("<|return|>", "<|end|>"), flags=re.DOTALL)

    made = tokenizer.decode(ids)
    return "equal but for thoughts" if bare(made) == bare(whole) else f"{made!r} is not {whole!r}"


def _written(text, history, turn, tokenizer, ends):
    """What a policy writes: the turn as the template has it, behind a thought where it has to think."""
    closed, opened, plain = text([*history, turn], False), text(history, True), text(history, False)
    shared = next(number for number, (a, b) in enumerate(zip(f"{closed}\0", f"{opened}\1", strict=False)) if a != b)
    words = closed[shared:] if turn.get("tool_calls") or closed.startswith(opened) else turn["content"]
    if not turn.get("tool_calls"):
        words = words[: words.find(turn["content"]) + len(turn["content"])] if turn["content"] in words else words
        rest = closed[closed.rfind(turn["content"]) + len(turn["content"]) :]
        names = [tokenizer.decode([end]) for end in ends]
        end = "<|user|>" if "<|user|>" in tokenizer.get_vocab() else ""
        words += min((name for name in names if name in rest), key=rest.index, default=end)
    thinks = opened[len(plain) :].rstrip().endswith("<think>") and "</think>" not in words
    return "hm</think>" * thinks + words.rstrip()


def trl_templates():
    if NO_TRL is not None:
        return []
    import trl

    return sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))


NO_TOOLS = table("chat_templates", "no_tools")
"""Templates of TRL's that do not show calls and results as they are."""
NO_CHANGES = ("deepseekv3_training",)
"""Those that change what was said when a second result follows."""
IMAGES = ("idefics3", "llava_next", "smolvlm")
"""Those that take contents with images, and no text alone."""


@pytest.mark.skipif(NO_TRL is not None, reason=str(NO_TRL))
@pytest.mark.parametrize("kind", ["user", "tool"])
def test_every_template_of_trl_goes_on_or_is_refused(kind):
    found = {file.stem: outcome(with_template(file.read_text("utf-8")), kind) for file in trl_templates()}
    assert len(found) >= 72
    wrong = {name: how for name, how in found.items() if not how.startswith(("equal", "refused: "))}
    assert not wrong
    refused = {name for name, how in found.items() if how.startswith("refused: ")}
    expected = {name for name in found if name.removesuffix("_training") in IMAGES}
    assert refused == (expected if kind == "user" else {*NO_TOOLS, *NO_CHANGES})
    texts = {file.stem: file.read_text("utf-8") for file in trl_templates()}
    thinking = {name for name, text in texts.items() if "think" in text or "gptoss" in name}
    assert {name for name, how in found.items() if how == "equal but for thoughts"} <= thinking


@pytest.mark.parametrize("kind", ["user", "tool"])
@pytest.mark.parametrize("template", [TEMPLATE, MISTRAL], ids=["chatml", "mistral"])
def test_templates_of_our_own(template, kind):
    assert outcome(with_template(template), kind) == "equal"


@pytest.mark.parametrize("file", ["tokenizer_config.json", "qwen3_tokenizer_config.json"])
def test_templates_of_qwen(test_data, tmp_path, file):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(test_data / "tokenizers" / "qwen2" / name, tmp_path)
    shutil.copy(test_data / "tokenizers" / "qwen2" / file, tmp_path / "tokenizer_config.json")
    tokenizer = load_tokenizer(str(tmp_path), local=True)
    if "template ends here" in tokenizer.chat_template:  # as it stands it writes behind the last message
        assert outcome(tokenizer, "user") == "refused: the chat template changes earlier messages when others follow"
        tokenizer.chat_template = tokenizer.chat_template.removesuffix("template ends here")
    assert outcome(tokenizer, "user").startswith("equal")
    how = outcome(tokenizer, "tool")
    assert how.startswith("equal" if "qwen3" in file else "refused: the model's chat template does not show tool calls")


def test_one_of_several_calls_stands_for_all_where_the_template_allows_one():
    refusal = "{%- if message.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    one = TEMPLATE.replace("{%- for call", refusal + "{%- for call")
    written = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
    said = [{"role": "tool", "name": "add", "content": f"{number}"} for number in (1, 2)]
    history, (some, all_) = [{"role": "user", "content": "hi"}], map(with_template, (one, TEMPLATE))
    replies = [Dialogue(t, [t.get_vocab()[END]], {}).reply(history, written, said, TOOLS, True) for t in (some, all_)]
    assert replies[0] == replies[1]


@pytest.mark.parametrize("response", [RESPONSE, None])
@pytest.mark.parametrize(
    ("text", "calls", "wrong"),
    [
        *table("chat_templates", "calls"),
        (call("add", x=1), [["add", {"x": 1}]], 0),
        ("so " + call("add", x=1) + "\n" + call("add", x="é\u2028"), [["add", {"x": 1}], ["add", {"x": "é\u2028"}]], 0),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", [], 1),
    ],
)
def test_calls(response, text, calls, wrong):
    tokenizer = chat_tokenizer(response)
    dialogue = Dialogue(tokenizer, [tokenizer.eos_token_id], {})
    prompt = render(tokenizer, [{"role": "user", "content": "go"}], {"tools": TOOLS})
    ids = encode(tokenizer, text + END, add_special_tokens=False)
    message, found = dialogue.parsed(prompt, ids, text, TOOLS)
    assert [[each["name"], each["arguments"]] for each in found if isinstance(each, dict)] == calls
    assert sum(isinstance(each, str) for each in found) == wrong
    assert json.dumps([message, found], ensure_ascii=False).encode()
