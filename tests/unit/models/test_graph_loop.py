"""The loop that reads the state of its rows once in many steps gives what the loop on the host gives."""

import pytest
import torch

from fakes.architectures import VOCABULARY, fast_model
from fakes.decoding import request
from fakes.recorder import record
from oncurve.models.decode.cuda_graphs import GraphBuffers, capture_on
from oncurve.models.decode.graph_loop import GraphLoop
from oncurve.models.decode.host_loop import HostLoop
from oncurve.randomness import row_keys
from oncurve.rollout.stopping import StopSearch, StopTable

COPIES, LONGEST, ENDS = 3, 21, [5, 9]
GENERATOR = torch.Generator().manual_seed(3)
PROMPTS = [torch.randint(0, VOCABULARY, (length,), generator=GENERATOR) for length in (4, 9, 1, 6, 3)]
KEYS = row_keys(1, 2, torch.arange(5).repeat_interleave(COPIES), torch.arange(COPIES).repeat(5))
LIMITS = torch.randint(1, LONGEST + 1, (15,), generator=GENERATOR)
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def loop_of(model, capture=None, device="cpu"):
    return GraphLoop(GraphBuffers(model._run, model.module, torch.device(device), capture), model.raw_logits)


def on_the_host(model):
    return HostLoop(model.decoder, next(model.module.parameters()).device)


def same(ours, theirs, close=1e-12):
    assert [row.ids for row in ours] == [row.ids for row in theirs]
    assert [(row.ended, row.text) for row in ours] == [(row.ended, row.text) for row in theirs]
    for left, right in zip(ours, theirs, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=close)


@pytest.mark.parametrize("capture", [None, record], ids=["called", "captured"])
@pytest.mark.parametrize("rows", [None, 6], ids=["all at once", "two groups"])
@pytest.mark.parametrize("steps", [1, 5, 16])
def test_the_same_completions_however_seldom_it_polls(steps, rows, capture, monkeypatch):
    monkeypatch.setattr("oncurve.models.decode.graph_loop.STEPS_AT_ONCE", steps)
    model = fast_model("mistral")
    wanted = on_the_host(model)(request(PROMPTS, KEYS, ENDS, LONGEST, limits=LIMITS))
    assert {row.ended for row in wanted} == {"eos", "length"}
    loop = loop_of(model, capture)
    for _ in range(2):  # the second rollout finds buffers and graphs of the first
        order = {}
        got = loop(request(PROMPTS, KEYS, ENDS, LONGEST, limits=LIMITS, rows=rows), order.__setitem__)
        same(got, wanted)
        assert [row for group in range(5) for row in order[group]] == got


class Letters:
    """A tokenizer whose text is a letter a token."""

    def decode(self, ids, **_):
        return "".join(chr(97 + token % 7) for token in ids)

    def encode(self, text, **_):
        return [0] * len(text)


@pytest.mark.parametrize("steps", [1, 4, 16])
def test_stop_strings_end_rows_where_they_would_have_ended(steps, monkeypatch):
    monkeypatch.setattr("oncurve.models.decode.graph_loop.STEPS_AT_ONCE", steps)
    model = fast_model()

    def asked():
        texts = [tuple(prompt.tolist()) for prompt in PROMPTS for _ in range(COPIES)]
        stop = StopSearch(StopTable(Letters(), ["ab", "cc", "ga"]), texts)
        return request(PROMPTS, KEYS, ENDS, LONGEST, stop=stop, limits=LIMITS)

    wanted = on_the_host(model)(asked())
    assert {row.ended for row in wanted} == {"eos", "length", "stop"}
    same(loop_of(model)(asked()), wanted)


def test_a_model_with_buffers_is_decoded_in_them():
    model = fast_model()
    asked = request(PROMPTS, KEYS, ENDS, LONGEST, limits=LIMITS, rows=9)
    wanted = model.token_loop()(asked)
    model._buffers = GraphBuffers(model._run, model.module, torch.device("cpu"), record)
    order = {}
    got = model.token_loop()(asked, order.__setitem__)
    same(got, wanted)
    assert model._buffers.shape.groups == 3
    assert sorted(order) == list(range(5))


@NEEDS_CUDA
def test_cuda_graphs_give_the_completions_of_the_other_loop():
    model = fast_model("qwen2", torch.float32, device="cuda")
    loop = loop_of(model, capture_on(torch.device("cuda")), "cuda")
    asked = request(PROMPTS, KEYS, ENDS, LONGEST, limits=LIMITS)
    wanted = on_the_host(model)(asked)
    for _ in range(2):
        equal = [left.ids == right.ids for left, right in zip(loop(asked), wanted, strict=True)]
        assert sum(equal) >= len(equal) - 1  # products of other shapes round otherwise, and a draw may fall between
