"""Steps end where the splitter says, in characters and in tokens."""

import pytest
from hypothesis import given, strategies as st

from fakes.solutions import solution
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.steps import lines, pieces, splitter_of, token_ends
from oncurve.tasks.arithmetic import check_steps, problem

TEXT = "First this.\n\nThen that.\nSo: 4\n"

SPLITTERS = """
def words(text):
    return text.split()

def halves(text):
    return [len(text) // 2, len(text)]

def nonsense(text):
    return ["not in it"]

def backwards(text):
    return [5, 3]
"""


def texts(split, text=TEXT, base=None):
    return pieces(text, splitter_of(split, base)(text))


def test_a_line_is_a_step_and_blank_ones_belong_to_the_one_before():
    assert texts("newline") == ["First this.\n\n", "Then that.\n", "So: 4\n"]
    assert lines("7*8=56\n\n56+31=87") == [8, 16]
    assert lines("") == lines(" \n ") == []
    assert texts("newline", "\n a") == ["\n a"]
    assert "".join(texts("newline", "a\r\nb\rc")) == "a\r\nb\rc"


def test_the_last_step_needs_no_end_of_line_and_the_working_of_the_task_is_split_as_its_checker_does():
    for index in range(20):
        asked = problem("train", index)
        written = solution(asked)
        assert lines(written) == [end for end, _ in check_steps(written, asked.question)]


def test_patterns_end_steps_behind_their_matches():
    assert texts(r"/\n\n+/") == ["First this.\n\n", "Then that.\nSo: 4\n"]
    assert texts(r"/(?<=[.:])\s*/") == ["First this.\n\n", "Then that.\n", "So: ", "4\n"]
    assert texts("/never/") == [TEXT]


def test_functions_return_texts_or_offsets(tmp_path):
    (tmp_path / "mine.py").write_text(SPLITTERS)
    assert texts("mine.py:words", "a bc  d", tmp_path) == ["a", " bc", "  d"]
    assert texts("mine.py:halves", "abcd", tmp_path) == ["ab", "cd"]
    with pytest.raises(ValueError, match="does not follow"):
        texts("mine.py:nonsense", TEXT, tmp_path)
    with pytest.raises(ValueError, match="offsets"):
        texts("mine.py:backwards", TEXT, tmp_path)


@pytest.mark.parametrize(("split", "words"), table("steps", "no_splitter"))
def test_what_is_no_splitter_is_refused(split, words):
    with pytest.raises(ConfigError, match=words):
        splitter_of(split)


def located(tokens, ends, text=None):
    """Where steps end in tokens that are given as their bytes."""
    data = [token.encode() if isinstance(token, str) else token for token in tokens]

    def text_of(indices):
        return b"".join(data[index] for index in indices).decode("utf-8", "replace")

    whole = range(len(tokens))
    return token_ends(ends, text_of(whole) if text is None else text, whole, text_of)


def test_a_step_ends_with_the_token_that_writes_its_last_character():
    tokens = ["7*8", "=", "56\n", "56", "+31=", "87", "\n#### ", "87"]
    assert located(tokens, lines("".join(tokens))) == (2, 6, 7)
    assert located(tokens, [1, 3, 4]) == (0, 0, 1)  # a token may hold two steps


PIECES = st.lists(
    st.sampled_from(["a", "\n", " ", "\n\n", "1+1", "日", "é\n", "", b"\xff"]).map(
        lambda piece: piece if isinstance(piece, bytes) else piece.encode()
    ),
    min_size=1,
    max_size=40,
)


@given(PIECES, st.integers(1, 5))
def test_steps_are_found_where_reading_every_prefix_finds_them(pieces, split):
    data = b"".join(pieces)
    tokens = [data[start : start + split] for start in range(0, len(data), split)] or [b""]
    text = b"".join(tokens).decode("utf-8", "replace")
    lengths = [len(b"".join(tokens[: count + 1]).decode("utf-8", "replace")) for count in range(len(tokens))]
    ends = lines(text)
    slow = [
        next(i for i, n in enumerate(lengths) if n >= end) if text[end:].strip() else len(tokens) - 1 for end in ends
    ]
    if "\ufffd" not in text:  # where prefixes of a half character are longer than what follows, there is no one answer
        assert located(tokens, ends) == tuple(slow)
    assert located(tokens, ends)[-1:] == ((len(tokens) - 1,) if ends else ())


def test_as_many_steps_as_there_are_lines_take_linear_time():
    def read(count):
        tokens = ["x", "\n"] * count
        asked = []

        def text_of(ids):
            asked.append(len(ids))
            return "".join(tokens[i] for i in ids)

        text = "".join(tokens)
        assert token_ends(lines(text), text, range(2 * count), text_of)[:3] == (1, 3, 5)
        return sum(asked)

    assert read(4000) < 3 * read(2000)
