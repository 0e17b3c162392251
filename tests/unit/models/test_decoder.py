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

KEPT = {1: [0, 2, 3, 4, 6, 7], 3: [0, 2, 3, 5], 4: [1, 2, 3], 6: [2]}


@torch.no_grad()
def follow(model, prompts, copies, steps, kept, seed=0, limit=None):
    """Decode random tokens, dropping rows after the given steps; the worst difference from the plain forward."""
    generator = torch.Generator().manual_seed(seed)
    decoder = model.decoder(copies * len(prompts), limit or steps)
    rows = [(group, []) for group in range(len(prompts)) for _ in range(copies)]
    hidden = decoder.join(prompts, copies).repeat_interleave(copies, 0)
    worst = 0.0
    for step in range(steps + 1):
        logits = model.logits(hidden)
        for row, (group, written) in enumerate(rows):
            wanted = next_logits(model.module, prompts[group], written)
            worst = max(worst, float((logits[row] - wanted).abs().max() / wanted.abs().max()))
        if step in kept:
            decoder.keep(torch.tensor(kept[step]))
            rows = [rows[row] for row in kept[step]]
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
    worst = follow(TransformersModel(module), prompts_of(*lengths), 3, 8, KEPT)
    assert worst <= (1e-10 if dtype == torch.float64 else 1e-5)


def test_a_window_shorter_than_the_suffix_forgets_prompt_and_old_tokens():
    module = architecture("mistral", torch.float64)
    replace_norms(module)
    assert follow(TransformersModel(module), prompts_of(8, 3), 2, 24, {10: [0, 2]}) <= 1e-10


def test_bf16_decoding_stays_near_bf16_scoring():
    model = TransformersModel(architecture("qwen2").bfloat16())
    assert follow(model, prompts_of(4, 6), 2, 6, {3: [0, 3]}) <= 0.1


def test_a_module_without_a_fast_path_decodes_what_its_plain_forward_gives():
    model = GenericModel(TinyLM(VOCABULARY).double())
    assert follow(model, prompts_of(3, 1), 2, 5, {2: [1, 2]}) <= 1e-12


def test_each_prompt_is_run_once_whatever_the_copies():
    module = architecture("llama")
    seen = []
    module.model.embed_tokens.register_forward_hook(lambda layer, args, output: seen.append(args[0].numel()))
    decoder = TransformersModel(module).decoder(8, 4)
    assert decoder.join(prompts_of(4, 6), 4).shape == (2, 32)
    decoder.step(torch.zeros(8, dtype=torch.long))
    assert seen == [10, 8]


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
