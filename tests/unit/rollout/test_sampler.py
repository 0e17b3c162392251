from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fakes.scripted import ByteTokenizer
from fakes.tolerance import assert_close
from oncurve.base.errors import ConfigError
from oncurve.randomness import uniform
from oncurve.rollout.sampler import greedy, sample
from oncurve.rollout.stopping import StopSearch, StopTable
from oracles import plain_sampler

SMALLEST, LARGEST = 2.0**-53, 1 - 2.0**-53  # the least and greatest uniform there is


def uniforms(n, draw=0):
    return uniform(5, draw, torch.arange(n), torch.zeros(n, dtype=torch.long), 0)


def normal(n, vocabulary, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, vocabulary, generator=generator, dtype=torch.float64).mul(3).to(dtype)


@pytest.mark.parametrize("vocabulary", [1, 2, 63, 128, 129, 192, 300, 1000])
@pytest.mark.parametrize("temperature", [0, 0.7, 1.0, 2.5])
def test_sample_equals_the_plain_one(vocabulary, temperature):
    logits, u = normal(12, vocabulary), uniforms(12)
    ids, logprobs = sample(logits, u, temperature)
    expected = [
        plain_sampler.sample(row.tolist(), u_row.item(), temperature) for row, u_row in zip(logits, u, strict=True)
    ]
    assert ids.tolist() == [token for token, _ in expected]
    assert_close(logprobs, torch.tensor([logprob for _, logprob in expected]), torch.float32)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), vocabulary=st.sampled_from([3, 128, 129, 140, 256, 333]))
def test_impossible_tokens_are_never_drawn(data, vocabulary):
    possible = data.draw(st.sets(st.integers(0, vocabulary - 1), min_size=1, max_size=5))
    logits = torch.full((1, vocabulary), -torch.inf)
    logits[0, sorted(possible)] = torch.tensor([data.draw(st.floats(-30, 30)) for _ in possible])
    for u in (SMALLEST, data.draw(st.floats(SMALLEST, LARGEST)), LARGEST):
        ids, logprobs = sample(logits, torch.tensor([u], dtype=torch.float64))
        assert ids.item() in possible
        assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("vocabulary", [100, 1000])
def test_uniforms_next_to_0_and_1_give_the_first_and_last_possible_token(vocabulary):
    logits = normal(1, vocabulary, torch.float32)
    logits[0, :10] = logits[0, -10:] = -1e9  # their probability underflows to exactly 0
    ends = torch.tensor([SMALLEST, LARGEST], dtype=torch.float64)
    assert sample(logits.expand(2, -1), ends)[0].tolist() == [10, vocabulary - 11]


def test_greedy_takes_the_maximum_and_records_the_logprob_at_temperature_1():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    for ids, logprobs in (greedy(logits), sample(logits, uniforms(2), 0)):
        assert ids.tolist() == [0, 2]
        torch.testing.assert_close(logprobs, torch.tensor([-0.40760596, -0.40760596]))


@pytest.mark.parametrize("vocabulary", [7, 300])
def test_a_nan_shows_in_the_logprob_and_the_id_stays_in_range(vocabulary):
    logits = normal(2, vocabulary, torch.float32)
    logits[1, 3] = torch.nan
    ids, logprobs = sample(logits, uniforms(2))
    assert torch.isfinite(logprobs[0])
    assert torch.isnan(logprobs[1])
    assert 0 <= ids[1] < vocabulary


def finished(search, row, ids):
    """The text that a search finds in a row whose newest token is the last of `ids`; None: nothing."""
    candidate = bool(search.candidates(torch.tensor(ids[-1:]))[0])
    return search.finished(row, lambda start: ids[start:]) if candidate else None


def run(tokenizer, stop, ids, prompt=()):
    """Feed one completion token by token: (tokens used, text), or None where no stop string came."""
    search = StopSearch(StopTable(tokenizer, stop), [tuple(prompt)])
    for used in range(1, len(ids) + 1):
        text = finished(search, 0, list(ids[:used]))
        if text is not None:
            return used, text
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


@pytest.mark.parametrize("vocabulary", [100, 300])
@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
def test_half_precision_logits_are_widened_first(vocabulary, temperature):
    logits, u = normal(50, vocabulary).bfloat16(), uniforms(50)
    ids, logprobs = sample(logits, u, temperature)
    assert logprobs.dtype == torch.float32
    expected = torch.log_softmax(logits.float() / (temperature or 1.0), -1).gather(1, ids[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
    assert torch.equal(ids, sample(logits.float(), u, temperature)[0])


def test_rows_are_searched_apart():
    search = StopSearch(StopTable(ByteTokenizer(), ("ab",)), [(), (), ()])
    rows = [list(b"ab"), list(b"xab"), list(b"ab")]
    found = [[finished(search, row, ids[: 1 + step]) for row, ids in enumerate(rows)] for step in range(3)]
    assert found[:2] == [[None, None, None], ["", None, ""]]
    assert found[2][1] == "x"


def test_only_tokens_that_can_complete_a_stop_string_are_candidates():
    tokenizer = ByteTokenizer(["yes>", "no"])
    table = StopTable(tokenizer, ("</a>", "end"))
    ids = torch.tensor([ord(">"), ord("a"), ord("d"), 256, 257, 0xE6])
    assert table.candidates(ids).tolist() == [True, False, True, True, False, True]
    assert table.candidates(ids.flip(0)).tolist() == [True, False, True, True, False, True]
