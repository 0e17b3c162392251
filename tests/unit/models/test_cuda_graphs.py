"""Captured steps: what they decode, and that a graph can hold them.

`fakes.recorder` captures as CUDA does, on a CPU: operations on fixed tensors, repeated without their Python. What only
a GPU can show is tested where there is one.
"""

import copy

import pytest
import torch

from fakes.architectures import ARCHITECTURES, VOCABULARY, fast_model, prompts_of
from fakes.decoding import graphs_of, request
from fakes.recorder import record
from oncurve.models.decode.graph_buffers import GraphBuffers, capture_on
from oncurve.models.decode.graph_loop import GraphLoop
from oncurve.models.decode.host_loop import HostLoop
from oncurve.models.probe import forced_logits
from oncurve.randomness import row_keys
from oncurve.rollout.stopping import StopSearch, StopTable

CAPTURES = pytest.mark.parametrize("capture", [None, record], ids=["called", "captured"])
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CPU = torch.device("cpu")


def in_graphs(model, capture=None, device=CPU):
    return loop_in(GraphBuffers(device, capture), model)


def loop_in(buffers, model):
    model._buffers = buffers
    return model.token_loop()


def worst_difference(ours, theirs, prompts, ids, lengths=None, at_once=None):
    """Two token loops over the same completions `(M, G, T)`: the largest relative difference of a logit."""
    left, right = (forced_logits(loop, prompts, ids, lengths, at_once) for loop in (ours, theirs))
    there = torch.arange(ids.shape[2], device=left.device) < (ids.shape[2] if lengths is None else lengths[..., None])
    there = there.expand(ids.shape)
    return float(((left - right).abs().amax(-1) / right.abs().amax(-1))[there].max())


def completions(*shape, device=CPU):
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(8)).to(device)


def on_the_host(model, device=CPU):
    return HostLoop(model.decoder, device)


LENGTHS = torch.tensor([[20, 1, 4], [3, 3, 16], [0, 20, 2]])


@pytest.mark.parametrize("lengths", [(4, 4, 4), (2, 9, 1)])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_logits_are_those_of_the_cached_decoder_while_rows_end(name, lengths):
    model = fast_model(name)
    ours = in_graphs(model, record)
    asked = prompts_of(*lengths), completions(3, 3, 20), LENGTHS
    assert worst_difference(ours, on_the_host(model), *asked) <= 1e-12


@CAPTURES
@pytest.mark.parametrize("at_once", [2, 4])
def test_groups_that_waited_join_others_and_follow_in_their_slots(at_once, capture):
    model = fast_model("mistral")
    buffers = GraphBuffers(CPU, capture)
    prompts, ids = prompts_of(5, 8, 3, 90, 2, 6), completions(6, 2, 8)
    lengths = torch.tensor([[8, 2], [1, 1], [3, 8], [8, 8], [2, 5], [0, 8]])
    loops = loop_in(buffers, model), on_the_host(model)
    assert worst_difference(*loops, prompts, ids, lengths, at_once) <= 1e-12
    assert buffers.rows == at_once


def test_graphs_outlive_a_rollout_and_not_weights_that_moved():
    model = fast_model()
    buffers = GraphBuffers(CPU, record)
    loop = loop_in(buffers, model)
    keys = torch.arange(4)
    asked = request(prompts_of(4, 6), keys, [], 6)
    assert [row.ids for row in loop(asked)] == [row.ids for row in on_the_host(model)(asked)]
    captured = graphs_of(buffers)
    with torch.no_grad():  # a step of the optimizer: other numbers in the same place
        for parameter in model.module.parameters():
            parameter.mul_(1.01)
    other = request(prompts_of(3, 60, seed=5), keys, [], 7)
    assert [row.ids for row in loop(other)] == [row.ids for row in on_the_host(model)(other)]
    assert len(captured) > 0
    assert captured.items() <= graphs_of(buffers).items()
    weight = model.module.lm_head.weight
    weight.data = weight.data.clone()
    captured = graphs_of(buffers)
    assert [row.ids for row in loop(other)] == [row.ids for row in on_the_host(model)(other)]
    assert len(graphs_of(buffers)) == 2 * len(captured)


def test_a_model_with_buffers_decodes_in_them_and_keeps_them_until_they_are_freed():
    model = fast_model()
    model._buffers = buffers = GraphBuffers(CPU, record)
    loop = model.token_loop()
    assert isinstance(loop, GraphLoop)
    asked = prompts_of(4, 2), completions(2, 2, 5)
    assert worst_difference(loop, on_the_host(model), *asked) <= 1e-12
    assert model._buffers is buffers
    assert copy.deepcopy(model)._buffers is buffers
    kind, given = buffers.__reduce__()
    assert kind(*given) is None  # in another process
    assert [model.free_decoding(), buffers.rows, model.free_decoding()] == [True, 0, False]
    assert worst_difference(loop, on_the_host(model), *asked) <= 1e-12


@NEEDS_CUDA
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_graphs_decode_what_the_cached_decoder_decodes(name, dtype):
    device = torch.device("cuda")
    model = fast_model(name, dtype, device=device)
    buffers = GraphBuffers(device, capture_on(device))
    loops = loop_in(buffers, model), on_the_host(model, device)
    asked = prompts_of(2, 9, 1), completions(3, 3, 20, device=device), LENGTHS.to(device)
    close = 1e-4 if dtype == torch.float32 else 5e-2
    for _ in range(2):
        assert worst_difference(*loops, *asked) <= close
        assert len(graphs_of(buffers)) > 0
        assert buffers.capture is not None  # nothing was given up
        buffers.release()
    assert isinstance(model.token_loop(), GraphLoop)


COPIES, LONGEST, ENDS = 3, 21, [5, 9]
GENERATOR = torch.Generator().manual_seed(3)
PROMPTS = [torch.randint(0, VOCABULARY, (length,), generator=GENERATOR) for length in (4, 9, 1, 6, 3)]
KEYS = row_keys(1, 2, torch.arange(5).repeat_interleave(COPIES), torch.arange(COPIES).repeat(5))
LIMITS = torch.randint(1, LONGEST + 1, (15,), generator=GENERATOR)


def same(ours, theirs, close=1e-12):
    assert [row.ids for row in ours] == [row.ids for row in theirs]
    assert [(row.ended, row.text) for row in ours] == [(row.ended, row.text) for row in theirs]
    for left, right in zip(ours, theirs, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=close)


@pytest.mark.parametrize(
    ("steps", "rows", "capture"), [(4, None, record), (16, 6, record), (16, None, None), (4, 6, None)]
)
def test_the_same_completions_however_seldom_it_polls(steps, rows, capture, monkeypatch):
    for part in ("graph_buffers", "graph_loop"):
        monkeypatch.setattr(f"oncurve.models.decode.{part}.STEPS_AT_ONCE", steps)
    model = fast_model("mistral")
    wanted = on_the_host(model)(request(PROMPTS, KEYS, ENDS, LONGEST, limits=LIMITS))
    assert {row.ended for row in wanted} == {"eos", "length"}
    loop = in_graphs(model, capture)
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


@pytest.mark.parametrize("steps", [1, 16])
def test_stop_strings_end_rows_where_they_would_have_ended(steps, monkeypatch):
    for part in ("graph_buffers", "graph_loop"):
        monkeypatch.setattr(f"oncurve.models.decode.{part}.STEPS_AT_ONCE", steps)
    model = fast_model()

    def asked():
        texts = [tuple(prompt.tolist()) for prompt in PROMPTS for _ in range(COPIES)]
        stop = StopSearch(StopTable(Letters(), ["ab", "cc", "ga"]), texts)
        return request(PROMPTS, KEYS, ENDS, LONGEST, stop=stop, limits=LIMITS)

    wanted = on_the_host(model)(asked())
    assert {row.ended for row in wanted} == {"eos", "length", "stop"}
    same(in_graphs(model)(asked()), wanted)


@NEEDS_CUDA
def test_cuda_graphs_give_the_completions_of_the_other_loop():
    device = torch.device("cuda")
    model = fast_model("qwen2", torch.float32, device=device)
    loop = in_graphs(model, capture_on(device), device)
    asked = request(PROMPTS, KEYS, ENDS, LONGEST, limits=LIMITS)
    wanted = on_the_host(model, device)(asked)
    for _ in range(2):
        equal = [left.ids == right.ids for left, right in zip(loop(asked), wanted, strict=True)]
        assert sum(equal) >= len(equal) - 1  # products of other shapes round otherwise, and a draw may fall between
