from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes.scripted import ByteTokenizer
from oncurve.errors import ConfigError
from oncurve.rollout.stopping import Detokenizer, StopSearch, StopTable


def written(tokens, rows):
    """How a search reads the rows of `tokens (t, n)`."""
    return lambda index, start: tokens[start:, rows[index]].tolist()


def run(tokenizer, stop, ids, prompt=()):
    """Feed one completion token by token: (tokens used, text), or None where no stop string came."""
    search = StopSearch(StopTable(tokenizer, stop), [tuple(prompt)])
    tokens = torch.tensor(ids)[:, None]
    for position in range(len(ids)):
        found = search.finished(torch.tensor([0]), tokens[position], written(tokens[: position + 1], [0]))
        if found:
            return position + 1, found[0]
    return None


def plain_run(tokenizer, stop, ids, prompt=()):
    """The same by decoding everything at every token."""
    before = tokenizer.decode(list(prompt), skip_special_tokens=True)
    for used in range(1, len(ids) + 1):
        text = tokenizer.decode([*prompt, *ids[:used]], skip_special_tokens=True)[len(before) :]
        starts = [text.find(string) for string in stop if string in text]
        if starts:
            return used, text[: min(starts)]
    return None


def test_a_stop_string_may_span_tokens_and_end_inside_one():
    tokenizer = ByteTokenizer(["Quest", "ion: what"])
    ids = [*b"4\n", 256, 257]
    assert run(tokenizer, ("Question:",), ids) == (4, "4\n")
    assert run(tokenizer, ("4\nQ",), ids) == (3, "")
    assert run(tokenizer, ("Answer:",), ids) is None


def test_the_prompt_is_not_searched_but_its_end_gives_the_completion_its_spaces():
    assert run(ByteTokenizer(), ("ab",), list(b"bab"), prompt=b"a") == (3, "b")


def test_rows_are_searched_apart_and_finished_ones_are_no_longer_asked_for():
    search = StopSearch(StopTable(ByteTokenizer(), ("ab",)), [(), (), ()])
    tokens = torch.tensor([list(b"axa"), list(b"bab"), list(b"bbb")])
    assert search.finished(torch.arange(3), tokens[0], written(tokens[:1], range(3))) == {}
    assert search.finished(torch.arange(3), tokens[1], written(tokens[:2], range(3))) == {0: "", 2: ""}
    assert search.finished(torch.tensor([1]), tokens[2, 1:2], written(tokens, [1])) == {1: "x"}
    assert search.finished(torch.tensor([], dtype=torch.long), tokens[2, :0], written(tokens, [])) == {}


def test_only_tokens_that_can_complete_a_stop_string_are_candidates():
    tokenizer = ByteTokenizer(["yes>", "no"])
    table = StopTable(tokenizer, ("</a>", "end"))
    ids = torch.tensor([ord(">"), ord("a"), ord("d"), 256, 257, 0xE6])
    assert table.candidates(ids).tolist() == [True, False, True, True, False, True]
    assert table.candidates(ids.flip(0)).tolist() == [True, False, True, True, False, True]


def test_a_special_token_as_a_stop_string_is_refused_with_the_mend():
    with pytest.raises(ConfigError, match=r"'<eos>' is a special token.*eos_ids = \[256\]"):
        StopTable(ByteTokenizer(), ("x", "<eos>"))


PIECES = st.lists(st.sampled_from(["a", "b", "ab", " ", "é", "日", "本日", "🙂", "</s", "s>", "\n", "ba "]), min_size=1)


@settings(max_examples=200, deadline=None)
@given(
    pieces=PIECES,
    cuts=st.sets(st.integers(1, 60)),
    prompt=st.sampled_from([b"", b"ab", b"q: "]),
    stop=st.sets(st.sampled_from(["ab", "日", "🙂a", "</s>", "\n", "é", "a b", " "]), min_size=1),
)
def test_any_split_of_any_text_stops_where_whole_decoding_does(pieces, cuts, prompt, stop):
    data = "".join(pieces).encode()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    chunks = [data[a:b] for a, b in pairwise(bounds)]
    tokenizer = ByteTokenizer(chunks)
    ids = [256 + index for index in range(len(chunks))]
    assert run(tokenizer, sorted(stop), ids, prompt) == plain_run(tokenizer, sorted(stop), ids, prompt)


@settings(max_examples=100)
@given(
    pieces=st.lists(
        st.sampled_from([b"ab", "日".encode(), "🙂".encode(), b"\xff" * 40, b"\xf0\x9f" * 20, b"\xe6", b"\n"])
    ),
    stop=st.sets(st.sampled_from(["ab", "日", "🙂a", "日ab", "b\n", "\n"]), min_size=1),
)
def test_bytes_that_are_no_characters_hide_no_stop_string(pieces, stop):
    ids = list(b"".join(pieces))
    assert run(ByteTokenizer(), sorted(stop), ids) == plain_run(ByteTokenizer(), sorted(stop), ids)


@pytest.mark.parametrize("byte", [b"\xff", b"\xe6", b"a", b"\n"])
def test_a_growing_text_is_decoded_in_linear_time_whatever_is_written(byte):
    def decoded(count):
        tokenizer = ByteTokenizer()
        counted = []
        decode = tokenizer.decode
        tokenizer.decode = lambda ids, **options: counted.append(len(ids)) or decode(ids, **options)
        assert run(tokenizer, ("\n\n\n!",), list(byte * count)) is None
        return sum(counted)

    assert decoded(1600) < 3 * decoded(800)


@pytest.fixture(scope="session")
def stories_tokenizer(test_data):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(test_data / "models" / "stories260k")


@pytest.mark.parametrize("stop", [("Lily",), (" big",), ("dog.\n", "cat "), ("é",), ("🙂!", "世界"), (" ",)])
def test_a_real_tokenizer_with_word_marks_and_byte_fallback(stories_tokenizer, stop):
    prompt = stories_tokenizer.encode("Once upon a time")
    text = " there was a big dog.\nLily saw the café 世界 🙂! and the cat ran."
    ids = stories_tokenizer.encode("time" + text, add_special_tokens=False)[len(stories_tokenizer.encode("time")) :]
    expected = plain_run(stories_tokenizer, stop, ids, prompt)
    assert run(stories_tokenizer, stop, ids, prompt) == expected
    assert expected[1] == text[: min(text.find(string) for string in stop if string in text)]


def test_text_behind_a_prompt_keeps_the_space_that_joins_them(stories_tokenizer):
    whole = stories_tokenizer.encode("Once upon a time there was")
    text = Detokenizer(stories_tokenizer).after(whole[:-3])
    assert (
        stories_tokenizer.decode(whole[:-3], skip_special_tokens=True) + text(whole[-3:])
        == "Once upon a time there was"
    )
    assert Detokenizer(stories_tokenizer).after([1])(whole) == "Once upon a time there was"
