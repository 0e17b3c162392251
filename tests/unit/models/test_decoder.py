"""Prefill and decode give what the plain forward gives, whatever rows are dropped on the way."""

import pytest
import torch

from fakes.architectures import ARCHITECTURES, VOCABULARY, architecture, fast_model, prompts_of
from fakes.tiny_policy import TinyLM
from oncurve.models import GenericModel, TransformersModel
from oncurve.models.decode import prefill as prefill_room
from oncurve.models.decode.prefill import prefill
from oncurve.models.layers.rms_norm import replace_norms
from oracles.plain_forward import next_logits

KEPT = {1: [0, 2, 3, 4, 5, 6], 3: [0, 2, 3, 5], 4: [1, 2, 3], 6: [2]}


@torch.no_grad()
def follow(model, prompts, copies, steps, kept, seed=0, limit=None):
    """Decode random tokens, dropping rows after the given steps; the worst difference from the plain forward."""
    generator = torch.Generator().manual_seed(seed)
    decoder = model.decoder(prompts, copies, limit or steps)
    rows = [(group, []) for group, count in enumerate(copies) for _ in range(count)]
    hidden = decoder.first_hidden[decoder.groups]
    worst = 0.0
    for step in range(steps + 1):
        logits = model.logits(hidden)
        for row, (group, written) in enumerate(rows):
            wanted = next_logits(model.module, prompts[group], written)
            worst = max(worst, float((logits[row] - wanted).abs().max() / wanted.abs().max()))
        if step in kept:
            decoder.keep(torch.tensor(kept[step]))
            rows = [rows[row] for row in kept[step]]
        assert decoder.groups.tolist() == [group for group, _ in rows]
        if step < steps:
            ids = torch.randint(0, VOCABULARY, (len(rows),), generator=generator)
            for (_, written), token in zip(rows, ids.tolist(), strict=True):
                written.append(token)
            hidden = decoder.step(ids)
    return worst


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [(4, 4, 4), (2, 9, 1)], ids=["equal prompts", "ragged prompts"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_decoding_equals_the_plain_forward_while_rows_are_dropped(name, lengths, dtype):
    module = architecture(name, dtype)
    replace_norms(module)
    worst = follow(TransformersModel(module), prompts_of(*lengths), [3, 2, 3], 8, KEPT)
    assert worst <= (1e-10 if dtype == torch.float64 else 1e-5)


def test_a_window_shorter_than_the_suffix_forgets_prompt_and_old_tokens():
    module = architecture("mistral", torch.float64)
    replace_norms(module)
    assert follow(TransformersModel(module), prompts_of(8, 3), [1, 2], 24, {10: [0, 2]}) <= 1e-10


def test_bf16_decoding_stays_near_bf16_scoring():
    model = TransformersModel(architecture("qwen2").bfloat16())
    assert follow(model, prompts_of(4, 6), [2, 2], 6, {3: [0, 3]}) <= 0.1


def test_each_prompt_is_run_once_whatever_the_copies():
    module = architecture("llama")
    seen = []
    module.model.embed_tokens.register_forward_hook(lambda layer, args, output: seen.append(args[0].numel()))
    decoder = TransformersModel(module).decoder(prompts_of(4, 6), [5, 3], 4)
    decoder.step(torch.zeros(8, dtype=torch.long))
    assert seen == [10, 8]
    assert decoder.first_hidden.shape == (2, 32)


@pytest.mark.parametrize(
    ("lengths", "copies", "message"),
    [((), (), "0 prompts"), ((3,), (1, 1), "2 copies"), ((3, 0), (1, 1), "one token"), ((3, 2), (1, 0), "one row")],
)
@pytest.mark.parametrize("make", [lambda: TransformersModel(architecture("llama")), lambda: GenericModel(TinyLM())])
def test_impossible_groups_are_refused(make, lengths, copies, message):
    with pytest.raises(ValueError, match=message):
        make().decoder(prompts_of(*lengths), copies, 4)


MODELS = {
    "llama": lambda: (fast_model("llama"), VOCABULARY),
    "a window": lambda: (fast_model("mistral"), VOCABULARY),
    "learned positions": lambda: (fast_model("gpt2"), VOCABULARY),
    "generic": lambda: (GenericModel(TinyLM().double()), 11),
}

# What happens before a step: rows that stay, or prompts (lengths) and copies that join.
EVENTS = {
    2: ("join", (4, 4), (3, 3)),
    3: ("keep", [0, 2, 3, 5, 6, 9]),
    5: ("join", (1, 9, 2), (2, 1, 2)),
    7: ("keep", [3, 4, 5, 7, 8, 10]),  # the first cohort leaves whole
    9: ("join", (6,), (2,)),
    11: ("keep", []),
    12: ("join", (5, 3), (1, 2)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_joining_rows_equal_the_plain_forward(name):
    model, vocabulary = MODELS[name]()
    generator = torch.Generator().manual_seed(3)

    def random_prompts(lengths):
        return [torch.randint(0, vocabulary, (length,), generator=generator) for length in lengths]

    prompts = random_prompts((3, 8))
    decoder = model.decoder(prompts, [2, 3], 14)
    rows = [(group, []) for group in (0, 0, 1, 1, 1)]
    hidden = decoder.first_hidden[decoder.groups]
    for step in range(15):
        for (group, written), logits in zip(rows, model.logits(hidden), strict=True):
            expected = next_logits(model.module, prompts[group], written)
            torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
        assert decoder.groups.tolist() == [group for group, _ in rows]
        kind, *what = EVENTS.get(step, ("go on",))
        if kind == "keep":
            decoder.keep(torch.tensor(what[0], dtype=torch.long))
            rows = [rows[row] for row in what[0]]
        ids = torch.randint(0, vocabulary, (len(rows),), generator=generator)
        for (_, written), token in zip(rows, ids.tolist(), strict=True):
            written.append(token)
        hidden = decoder.step(ids) if len(rows) else hidden[:0]
        if kind == "join":
            joining, copies = random_prompts(what[0]), what[1]
            first = decoder.join(joining, copies).repeat_interleave(torch.tensor(copies), 0)
            hidden = torch.cat([hidden, first])
            rows += [(len(prompts) + group, []) for group, count in enumerate(copies) for _ in range(count)]
            prompts += joining


LENGTHS = (3, 11, 1, 7, 7, 23)


@torch.no_grad()
@pytest.mark.parametrize("budget", [1, 4, 8, 30])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_pieces_give_what_the_whole_gives(monkeypatch, name, budget):
    model, prompts = fast_model(name), prompts_of(*LENGTHS)
    hidden, prefixes = prefill(model._run, prompts, torch.device("cpu"))
    monkeypatch.setattr(prefill_room, "PIECE_TOKENS", budget)
    sizes = []

    def run(ids, positions, context):
        sizes.append(len(ids))
        return model._run(ids, positions, context)

    in_pieces, prefixes_in_pieces = prefill(run, prompts, torch.device("cpu"))
    assert sum(sizes) == sum(LENGTHS)
    assert max(sizes) <= budget
    torch.testing.assert_close(in_pieces, hidden, rtol=1e-12, atol=1e-12)
    for layer, pair in prefixes.layers.items():
        for kept, kept_in_pieces in zip(pair, prefixes_in_pieces.layers[layer], strict=True):
            torch.testing.assert_close(kept_in_pieces, kept, rtol=1e-12, atol=1e-12)
