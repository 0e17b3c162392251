"""Prefill in pieces gives what prefill at once gives, and no piece is larger than it may be."""

import pytest
import torch

from fakes.architectures import fast_model, prompts_of
from oncurve.models.decode import prefill as prefill_room
from oncurve.models.decode.prefill import prefill

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
