"""What the loop on CUDA does with rows, pages and memory, whatever the model: on a CPU, where steps are only called."""

import math
import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from fakes.architectures import fast_model, prompts_of
from fakes.decoding import graphs_of, request
from fakes.recorder import record
from oncurve.base.errors import ModelError
from oncurve.models import DecodeRequest
from oncurve.models.decode import graph_loop
from oncurve.models.decode.graph_buffers import GraphBuffers, free_bytes, graph_rows
from oncurve.models.decode.graph_loop import GraphLoop
from oncurve.models.decode.host_loop import HostLoop
from oncurve.models.decode.paged_attention import PagedContext
from oncurve.randomness import row_keys, uniform_at
from oncurve.rollout.sampler import Sampler, TruncatedSampler

CPU = torch.device("cpu")
KEYS = row_keys(1, 2, torch.arange(6).repeat_interleave(4), torch.arange(4).repeat(6))
PROMPTS = prompts_of(40, 3, 65, 33, 32, 1)
LIMITS = torch.randint(16, 32, (24,), generator=torch.Generator().manual_seed(4))


class UntilLength:
    """A sampler that ends each row after a length which the loop cannot know: token 1 ends it."""

    def __init__(self, keys, lengths):
        self._last = uniform_at(keys, lengths - 1).sort().values

    def __call__(self, logits, uniforms):
        nearest = torch.searchsorted(self._last, uniforms).clamp(max=len(self._last) - 1)
        return (self._last[nearest] == uniforms).long(), torch.zeros(len(uniforms))


def lognormal(count, mean, most):
    rng = random.Random(0)
    mu = math.log(mean) - 0.745**2 / 2
    return torch.tensor([min(most, max(1, int(rng.lognormvariate(mu, 0.745)))) for _ in range(count)])


def test_kept_sets_come_from_the_loop_on_the_host():
    model = fast_model()
    _, model._buffers = in_graphs(model)
    loop = model.token_loop(truncated=True)
    assert isinstance(loop, HostLoop)
    got = loop(replace(ASKED, draw=TruncatedSampler(0.8, top_p=0.7)))
    assert all(len(row.kept_sizes) == len(row.ids) for row in got)


@pytest.mark.parametrize(
    ("prompts", "copies", "most", "mean", "rows"),
    [(64, 8, 512, 200, 256), (96, 16, 1024, 300, 1024)],
)
def test_most_of_what_is_computed_is_part_of_a_completion(prompts, copies, most, mean, rows):
    keys = row_keys(0, 0, torch.arange(prompts).repeat_interleave(copies), torch.arange(copies).repeat(prompts))
    lengths, computed = lognormal(len(keys), mean, most), []

    def run(ids, positions, context):
        computed.append(len(ids) if isinstance(context, PagedContext) else 0)
        return torch.zeros(len(ids), 1)

    shape, texts = (prompts, copies), [torch.zeros(160, dtype=torch.int64)] * prompts
    loop = GraphLoop(GraphBuffers(CPU, None), run, nn.Identity(), lambda hidden: hidden)
    limits, draw = torch.full(shape, most), UntilLength(keys, lengths)
    ended = loop(DecodeRequest(texts, keys.view(shape), limits, most, (1,), draw, None, rows))
    assert [len(row.ids) for row in ended] == lengths.tolist()
    assert int(lengths.sum()) / sum(computed) >= 0.85


def test_graphs_are_for_few_numbers_of_rows_and_waste_few_rows():
    sizes = [graph_rows(rows) for rows in range(1, 1025)]
    assert all(rows <= size <= (2 * rows if rows < 16 else 1.25 * rows) for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) <= 30
    assert all(graph_rows(size) == size for size in sizes)


ASKED = request(PROMPTS, KEYS, [5], 32, limits=LIMITS)


@cache
def ids_on_the_host(name):
    """Return what the loop on the host decodes."""
    return [row.ids for row in HostLoop(fast_model(name).decoder, CPU)(ASKED)]


def in_graphs(model):
    buffers = GraphBuffers(CPU, record)
    return GraphLoop(buffers, model._run, model.module, model.raw_logits), buffers


def test_rows_that_find_no_page_wait_and_are_sampled_again_to_the_same_tokens(monkeypatch):
    loop, buffers = in_graphs(fast_model("qwen2"))
    wanted = ids_on_the_host("qwen2")
    page = 4 * 2 * 2 * 2 * 8 * 8  # tokens, layers, keys and values, heads, their size, bytes
    put_back = []
    for part in ("graph_buffers", "paged_attention"):
        monkeypatch.setattr(f"oncurve.models.decode.{part}.PAGE", 4)
    monkeypatch.setattr("oncurve.models.decode.graph_buffers.free_bytes", lambda device: 2 * 80 * page)
    original = graph_loop._GraphDecoding._put_back

    def seen(self, row):
        put_back.append(row.number)
        original(self, row)

    monkeypatch.setattr(graph_loop._GraphDecoding, "_put_back", seen)
    got = loop(ASKED)
    assert len(buffers.free) == 79
    assert len(put_back) > 3
    assert [row.ids for row in got] == wanted
    assert free_bytes(CPU) == float("inf")


@pytest.mark.parametrize("fails", ["prefill", "step", "pages"])
def test_a_rollout_without_memory_goes_on_with_half_the_rows(fails, monkeypatch):
    loop, buffers = in_graphs(fast_model("qwen2"))
    wanted, groups = ids_on_the_host("qwen2"), []

    def refuse(rows):
        if rows > 7:
            raise torch.OutOfMemoryError("refused")

    for part, name, size in (("prefill", "insert", lambda prompts, pages: len(prompts) + 5),
                             ("step", "_step", lambda rows, *_: rows),
                             ("pages", "allocate", lambda rows, *_: rows)):  # fmt: skip
        if part == fails:
            original = getattr(GraphBuffers, name)

            def limited(self, *given, size=size, original=original):
                refuse(size(*given))
                return original(self, *given)

            monkeypatch.setattr(GraphBuffers, name, limited)
    with pytest.warns(UserWarning, match="sampling 24 rows at a time: it is [36] from here on"):
        got = loop(ASKED, lambda group, rows: groups.append((group, len(rows))))
    assert [row.ids for row in got] == wanted
    assert sorted(groups) == [(group, 4) for group in range(6)]
    assert buffers.most_rows <= 6
    assert [row.ids for row in loop(ASKED)] == wanted  # and no warning: it begins with as many


def test_one_row_that_does_not_fit_is_an_error(monkeypatch):
    loop, _ = in_graphs(fast_model("qwen2"))

    def refuse(self, *given):
        raise torch.OutOfMemoryError("refused")

    monkeypatch.setattr(GraphBuffers, "_step", refuse)
    with pytest.raises(torch.OutOfMemoryError, match="refused"):
        loop(ASKED)


def test_nothing_is_captured_after_the_first_rollouts_of_each_kind():
    loop, buffers = in_graphs(fast_model())
    greedy = request(PROMPTS[:2], KEYS[:2], [5, 7], 20, temperature=0.0)
    for each in (ASKED, greedy):
        loop(each)
    captured = graphs_of(buffers)
    for each in (greedy, ASKED):
        loop(each)
    assert graphs_of(buffers) == captured


def test_logits_that_are_not_finite_are_an_error():
    model = fast_model()
    loop, _ = in_graphs(model)
    model.module.lm_head.weight.data[3, 3] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        loop(ASKED)


class NoStops:
    """Stop strings that never occur, and how often they were looked for."""

    def __init__(self):
        self.looked_at = []

    def candidates(self, ids):
        self.looked_at.append(len(ids))
        return torch.zeros(len(ids), dtype=torch.bool)

    def finished(self, row, written):
        raise AssertionError("no token is a candidate")


def test_every_token_is_looked_at_once_for_stop_strings_and_many_at_a_time():
    loop, stop = in_graphs(fast_model())[0], NoStops()
    got = loop(DecodeRequest(ASKED.prompts, ASKED.keys, ASKED.limits, 32, ASKED.eos_ids, Sampler(0.8), stop))
    assert [row.ids for row in got] == ids_on_the_host("llama")
    assert sum(stop.looked_at) == sum(len(row.ids) - (row.ended == "eos") for row in got)
    assert len(stop.looked_at) <= 32 / 8 + 2
