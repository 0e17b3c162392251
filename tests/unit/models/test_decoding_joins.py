"""Rows that join while others are under way get what they would get alone, and change nothing for the others."""

import pytest
import torch

from fakes.architectures import VOCABULARY, fast_model
from fakes.tiny_policy import TinyLM
from oncurve.models import GenericModel
from oracles.plain_forward import next_logits

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
