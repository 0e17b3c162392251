"""The loop that looks at its rows once in many steps gives what the loop that looks at every token gives."""

from functools import partial

import pytest
import torch

from fakes.architectures import VOCABULARY, architecture
from fakes.recorder import record
from oncurve.errors import ModelError
from oncurve.models import TransformersModel
from oncurve.models.graphs import Room, capture_on
from oncurve.models.leaves import replace_norms
from oncurve.models.stepping import GraphRows
from oncurve.randomness import row_keys
from oncurve.rollout.decoding import decode_rows
from oncurve.rollout.graphed import decode_graphed, engine_in
from oncurve.rollout.sampler import sample
from oncurve.rollout.stopping import StopSearch, StopTable

COPIES, LONGEST, ENDS = 3, 21, [5, 9]
GENERATOR = torch.Generator().manual_seed(3)
PROMPTS = [torch.randint(0, VOCABULARY, (length,), generator=GENERATOR) for length in (4, 9, 1, 6, 3)]
KEYS = row_keys(1, 2, torch.arange(5).repeat_interleave(COPIES), torch.arange(COPIES).repeat(5))
LIMITS = torch.randint(1, LONGEST + 1, (15,), generator=GENERATOR)
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def model_of(name="llama", dtype=torch.float64, device="cpu"):
    module = architecture(name, dtype)
    replace_norms(module)
    return TransformersModel(module.to(device))


def rows_of(model, capture=None, temperature=0.8, ends=ENDS, device="cpu"):
    room = Room(model._run, model.module, torch.device(device), capture)
    return GraphRows(room, COPIES, model.raw_logits, partial(sample, temperature=temperature), ends)


def same(ours, theirs, close=1e-12):
    assert [row.ids for row in ours] == [row.ids for row in theirs]
    assert [(row.ended, row.text) for row in ours] == [(row.ended, row.text) for row in theirs]
    for left, right in zip(ours, theirs, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=close)


@pytest.mark.parametrize("capture", [None, record], ids=["called", "captured"])
@pytest.mark.parametrize("rows", [None, 6], ids=["all at once", "two groups"])
@pytest.mark.parametrize("steps", [1, 5, 16])
def test_the_same_completions_however_seldom_it_looks(steps, rows, capture, monkeypatch):
    monkeypatch.setattr("oncurve.rollout.graphed.STEPS_AT_ONCE", steps)
    model = model_of("mistral")
    wanted = decode_rows(model, PROMPTS, KEYS, ENDS, LONGEST, 0.8, limits=LIMITS)
    assert {row.ended for row in wanted} == {"eos", "length"}
    engine = rows_of(model, capture)
    for _ in range(2):  # the second rollout finds room and graphs of the first
        order = {}
        got = decode_graphed(engine, PROMPTS, KEYS, LONGEST, limits=LIMITS, rows=rows, on_group=order.__setitem__)
        same(got, wanted)
        assert [row for group in range(5) for row in order[group]] == got


def test_greedy_and_without_an_end_every_row_goes_to_its_limit():
    model = model_of()
    got = decode_graphed(rows_of(model, record, temperature=0.0, ends=[]), PROMPTS, KEYS, LONGEST)
    same(got, decode_rows(model, PROMPTS, KEYS, [], LONGEST, 0.0))
    assert {len(row.ids) for row in got} == {LONGEST}


class Letters:
    """A tokenizer whose text is a letter a token."""

    def decode(self, ids, **_):
        return "".join(chr(97 + token % 7) for token in ids)

    def encode(self, text, **_):
        return [0] * len(text)


@pytest.mark.parametrize("steps", [1, 4, 16])
def test_stop_strings_end_rows_where_they_would_have_ended(steps, monkeypatch):
    monkeypatch.setattr("oncurve.rollout.graphed.STEPS_AT_ONCE", steps)
    model = model_of()

    def search():
        texts = [tuple(prompt.tolist()) for prompt in PROMPTS for _ in range(COPIES)]
        return StopSearch(StopTable(Letters(), ["ab", "cc", "ga"]), texts)

    wanted = decode_rows(model, PROMPTS, KEYS, ENDS, LONGEST, 0.8, search(), LIMITS)
    assert {row.ended for row in wanted} == {"eos", "length", "stop"}
    same(decode_graphed(rows_of(model), PROMPTS, KEYS, LONGEST, search(), LIMITS), wanted)


def test_a_model_with_a_room_is_decoded_in_it():
    model = model_of()
    wanted = decode_rows(model, PROMPTS, KEYS, ENDS, LONGEST, 0.8, limits=LIMITS, rows=9)
    model._room = Room(model._run, model.module, torch.device("cpu"), record)
    order = {}
    got = decode_rows(model, PROMPTS, KEYS, ENDS, LONGEST, 0.8, limits=LIMITS, on_group=order.__setitem__, rows=9)
    same(got, wanted)
    assert model._room.grid.groups == 3
    assert sorted(order) == list(range(5))


def test_numbers_that_are_none_are_refused():
    model = model_of()
    with torch.no_grad():
        model.module.lm_head.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        decode_graphed(rows_of(model), PROMPTS, KEYS, LONGEST)


def test_a_rooms_rows_are_those_of_the_last_rollout_unless_something_is_otherwise():
    model = model_of()
    room = Room(model._run, model.module, torch.device("cpu"), record)
    engine = engine_in(room, model.raw_logits, COPIES, 0.8, ENDS)
    assert engine_in(room, model.raw_logits, COPIES, 0.8, ENDS[::-1]) is engine
    same(
        decode_graphed(engine, PROMPTS, KEYS, LONGEST, limits=LIMITS),
        decode_rows(model, PROMPTS, KEYS, ENDS, LONGEST, 0.8, limits=LIMITS),
    )
    greedy = engine_in(room, model.raw_logits, COPIES, 0.0, ENDS)
    assert greedy is not engine
    same(decode_graphed(greedy, PROMPTS, KEYS, LONGEST), decode_rows(model, PROMPTS, KEYS, ENDS, LONGEST, 0.0))


@NEEDS_CUDA
def test_cuda_graphs_give_the_completions_of_the_other_loop():
    model = model_of("qwen2", torch.float32, "cuda")
    engine = rows_of(model, capture_on(torch.device("cuda")), device="cuda")
    model.decoding_room = lambda: None
    wanted = decode_rows(model, PROMPTS, KEYS, ENDS, LONGEST, 0.8, limits=LIMITS)
    for _ in range(2):
        got = decode_graphed(engine, PROMPTS, KEYS, LONGEST, limits=LIMITS)
        equal = [left.ids == right.ids for left, right in zip(got, wanted, strict=True)]
        assert sum(equal) >= len(equal) - 1  # products of other shapes round otherwise, and a draw may fall between
