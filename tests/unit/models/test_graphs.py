"""Captured steps: the decoder they make, and that a graph can hold them.

`fakes.recorder` captures as CUDA does, on a CPU: operations on fixed tensors, repeated without their Python. What only
a GPU can show is tested where there is one.
"""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from fakes.architectures import ARCHITECTURES, VOCABULARY, architecture
from fakes.recorder import record
from oncurve.models import TransformersModel
from oncurve.models.decoding import CachedDecoder
from oncurve.models.device import decoding_room, packed_context
from oncurve.models.graphs import GraphDecoder, Graphs, Room, capture_on
from oncurve.models.leaves import replace_norms
from oncurve.models.packed import PackedContext
from oncurve.models.stepping import GraphRows
from oncurve.rollout.sampler import sample

CAPTURES = pytest.mark.parametrize("capture", [None, record], ids=["called", "captured"])
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CPU = torch.device("cpu")
KEPT = {1: [0, 2, 3, 4, 5, 6], 3: [0, 2, 3, 5], 4: [1, 2, 3], 6: [2]}


def model_of(name="llama", dtype=torch.float64, device="cpu"):
    module = architecture(name, dtype)
    replace_norms(module)
    return TransformersModel(module.to(device))


def room_of(model, capture=None, device=CPU):
    return Room(model._run, model.module, device, capture)


def prompts_of(*lengths, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in lengths]


@torch.no_grad()
def worst_difference(ours, theirs, steps, kept, joining=(), seed=0):
    """Two decoders of the same groups side by side: the largest relative difference of a hidden state."""
    generator = torch.Generator().manual_seed(seed)
    worst, device = 0.0, ours.first_hidden.device

    def compare(left, right):
        nonlocal worst
        worst = max(worst, float((left - right).abs().max() / right.abs().max()))

    compare(ours.first_hidden, theirs.first_hidden)
    for step in range(steps):
        for decoder in (ours, theirs) if step in kept else ():
            decoder.keep(torch.tensor(kept[step], dtype=torch.int64, device=device))
        for when, prompts, copies in joining:
            if when == step:
                compare(ours.join(prompts, copies), theirs.join(prompts, copies))
        assert torch.equal(ours.groups, theirs.groups)
        ids = torch.randint(0, VOCABULARY, (len(ours.groups),), generator=generator).to(device)
        compare(ours.step(ids), theirs.step(ids))
    return worst


@CAPTURES
@pytest.mark.parametrize("lengths", [(4, 4, 4), (2, 9, 1)], ids=["equal prompts", "ragged prompts"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_decoder_is_the_cached_one_while_rows_are_dropped(name, lengths, capture):
    model = model_of(name)
    asked = (prompts_of(*lengths), [3, 2, 3], 9)
    ours = GraphDecoder(room_of(model, capture), *asked)
    assert worst_difference(ours, model.decoder(*asked), 8, KEPT) <= 1e-12


@CAPTURES
def test_groups_join_beside_others_and_after_all_others(capture):
    model = model_of("mistral")
    room = room_of(model, capture)
    asked = (prompts_of(5, 8), [2, 2], 8)
    joining = [
        (2, prompts_of(3, seed=1), [2]),  # into a place that is free
        (4, prompts_of(90, 2, seed=2), [4, 1]),  # a longer prompt, a larger group, a place too few
        (6, prompts_of(6, seed=3), [1]),  # after everybody has left
    ]
    kept = {1: [2, 3], 6: []}
    assert worst_difference(GraphDecoder(room, *asked), model.decoder(*asked), 9, kept, joining) <= 1e-12
    assert room.grid.prompt_tokens >= 90
    assert room.grid.copies == 4


def test_few_groups_move_together_into_a_smaller_graph():
    model = model_of()
    room = room_of(model, record)
    asked = (prompts_of(3, 5, 4, 6, 2, 7, 3, 1), [1] * 8, 10)
    decoder = GraphDecoder(room, *asked)
    assert worst_difference(decoder, model.decoder(*asked), 6, {2: [1, 5, 7], 4: [1]}) <= 1e-12
    assert [key[1] for key in room.graphs._replays] == [8, 4, 1]


def test_more_slots_take_a_larger_graph(monkeypatch):
    monkeypatch.setattr("oncurve.models.graphs._FIRST_WIDTH", 4)
    model = model_of()
    room = room_of(model, record)
    asked = (prompts_of(3, 5), [2, 1], 20)
    assert worst_difference(GraphDecoder(room, *asked), model.decoder(*asked), 19, {}) <= 1e-12
    assert [key[2] for key in room.graphs._replays] == [4, 8, 16, 32]


def test_graphs_outlive_a_rollout_and_not_weights_that_moved():
    model = model_of()
    room = room_of(model, record)
    asked = (prompts_of(4, 6), [2, 2], 6)
    assert worst_difference(GraphDecoder(room, *asked), model.decoder(*asked), 5, {}) <= 1e-12
    captured = dict(room.graphs._replays)
    weight = model.module.lm_head.weight
    with torch.no_grad():  # a step of the optimizer: other numbers in the same place
        for parameter in model.module.parameters():
            parameter.mul_(1.01)
    other = (prompts_of(3, 60, seed=5), [2, 2], 7)
    assert worst_difference(GraphDecoder(room, *other), model.decoder(*other), 6, {}) <= 1e-12
    assert room.graphs._replays == captured
    weight.data = weight.data.clone()
    GraphDecoder(room, *asked)
    assert not len(room.graphs)
    room.release()
    assert room.grid.rows == 0


def test_a_step_that_asks_the_host_is_called_from_then_on_and_said_so_once():
    numbers, graphs = torch.arange(3.0), Graphs(record)

    def step():
        numbers.mul_(2 if bool(numbers.sum() > 1) else 1)

    with pytest.warns(UserWarning, match="without CUDA graphs, which is slower: _local_scalar_dense waits"):
        graphs.run("step", step, [numbers])
    graphs.run("step", step, [numbers])
    graphs.run("another", step, [numbers])
    assert numbers.tolist() == [0, 8, 16]


def test_a_copy_of_a_model_has_no_room():
    model = model_of()
    assert copy.deepcopy({"room": room_of(model, record)}) == {"room": None}


def test_runs_before_the_capture_leave_no_trace():
    count = torch.zeros((), dtype=torch.int64)
    graphs = Graphs(record)
    for _ in range(5):
        graphs.run("count", partial(count.add_, 1), [count])
    assert count.item() == 5
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_a_whole_step_makes_every_tensor_on_the_models_device(name):
    """The meta device refuses tensors of other devices and whoever asks it for a number, as a capture would."""
    meta = torch.device("meta")
    model = model_of(name, torch.float32, meta)
    config = model.module.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    pair = (torch.empty(4, kv_heads, 9, size, device=meta),) * 2
    layers = dict.fromkeys(range(config.num_hidden_layers), pair)
    prefixes = SimpleNamespace(longest=9, lengths=torch.empty(4, dtype=torch.int64, device=meta), layers=layers)
    room = room_of(model, None, meta)
    rows = GraphRows(room, 3, model.raw_logits, partial(sample, temperature=0.8), [5, 9])
    rows.begin(4, 9, 21)
    for place in range(4):
        room.seat(place, prefixes, place, torch.empty(config.hidden_size, device=meta))
        rows._ages[place] = 0
    rows.run(3)
    with pytest.raises((RuntimeError, NotImplementedError)):
        rows.look()
    assert capture_on(meta) is None


def test_a_cpu_gets_none_of_this():
    model = model_of()
    assert packed_context(CPU) is PackedContext
    assert decoding_room(model._run, model.module, CPU) is None
    assert packed_context(torch.device("cuda")).__name__ == "FlexContext"
    assert isinstance(model.decoder(prompts_of(3), [1], 4), CachedDecoder)


def test_a_model_with_a_room_decodes_in_it_and_keeps_it():
    model = model_of()
    model._room = room = room_of(model, record)
    asked = (prompts_of(4, 2), [2, 1], 6)
    decoder = model.decoder(*asked)
    assert isinstance(decoder, GraphDecoder)
    assert worst_difference(decoder, CachedDecoder(model._run, *asked, CPU), 5, {}) <= 1e-12
    assert model.decoding_room() is room
    assert copy.deepcopy(model).decoding_room() is None


@NEEDS_CUDA
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_graphs_decode_what_the_cached_decoder_decodes(name, dtype):
    device = torch.device("cuda")
    model = model_of(name, dtype, device)
    room = room_of(model, capture_on(device), device)
    asked = (prompts_of(2, 9, 1), [3, 2, 3], 9)
    close = 1e-4 if dtype == torch.float32 else 5e-2
    for _ in range(2):  # captured, then replayed from the first step on
        theirs = CachedDecoder(model._run, *asked, device)
        assert worst_difference(GraphDecoder(room, *asked), theirs, 8, KEPT) <= close
    assert len(room.graphs) > 0
    assert isinstance(model.decoder(*asked), GraphDecoder)
