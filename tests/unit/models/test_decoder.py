"""Prefill and decode give what the plain forward gives, whatever rows are dropped on the way."""

import pytest
import torch

from fakes.architectures import ARCHITECTURES, VOCABULARY, architecture
from fakes.tiny_policy import TinyLM
from oncurve.models import GenericModel, ModelConfig, TransformersModel, render
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


def prompts_of(*lengths, vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, vocabulary, (length,), generator=generator) for length in lengths]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [(4, 4, 4), (2, 9, 1)], ids=["equal prompts", "ragged prompts"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_decoding_equals_the_plain_forward_while_rows_are_dropped(name, lengths, dtype):
    module = architecture(name, dtype)
    replace_norms(module)
    worst = follow(TransformersModel(module), prompts_of(*lengths), [3, 2, 3], 8, KEPT)
    assert worst <= (1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_equal_groups_without_any_dropping(name):
    module = architecture(name, torch.float64)
    replace_norms(module)
    assert follow(TransformersModel(module), prompts_of(5, 5), [4, 4], 9, {}) <= 1e-10


def test_rows_may_be_dropped_before_the_first_step():
    module = architecture("llama", torch.float64)
    replace_norms(module)
    assert follow(TransformersModel(module), prompts_of(3, 6), [2, 2], 4, {0: [1, 2, 3]}) <= 1e-10


def test_the_cache_grows_beyond_its_first_size():
    module = architecture("llama", torch.float64)
    replace_norms(module)
    model = TransformersModel(module)
    assert follow(model, prompts_of(2), [2], 70, {20: [0, 1], 66: [1]}, limit=100) <= 1e-10


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


def test_decoding_records_no_gradient():
    decoder = TransformersModel(architecture("llama")).decoder(prompts_of(4), [2], 4)
    assert not decoder.first_hidden.requires_grad
    assert not decoder.step(torch.tensor([1, 2])).requires_grad


@pytest.mark.parametrize(
    ("lengths", "copies", "message"),
    [((), (), "0 prompts"), ((3,), (1, 1), "2 copies"), ((3, 0), (1, 1), "one token"), ((3, 2), (1, 0), "one row")],
)
@pytest.mark.parametrize("make", [lambda: TransformersModel(architecture("llama")), lambda: GenericModel(TinyLM())])
def test_impossible_groups_are_refused(make, lengths, copies, message):
    with pytest.raises(ValueError, match=message):
        make().decoder(prompts_of(*lengths), copies, 4)


@torch.no_grad()
def test_greedy_text_of_the_stories_model_is_its_authors(test_data):
    folder = test_data / "models" / "stories260k"
    loaded = ModelConfig(path=str(folder), dtype="float32").build()
    decoder = loaded.model.decoder([torch.tensor(render(loaded.tokenizer, ""))], [1], 200)
    hidden, written = decoder.first_hidden, []
    for _ in range(200):
        token = loaded.model.logits(hidden).argmax(-1)
        written.append(int(token))
        hidden = decoder.step(token)
    expected = (folder / "expected_greedy_200.txt").read_text()
    assert loaded.tokenizer.decode(written).startswith(expected)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", ["stories260k", "babyllama105"])
def test_log_probs_while_decoding_equal_the_packed_ones(test_data, name, temperature):
    model = ModelConfig(path=str(test_data / "models" / name), dtype="float32").build().model
    prompts, copies, steps = prompts_of(11, 3, 6), [4, 2, 1], 40
    decoder = model.decoder(prompts, copies, steps)
    generator = torch.Generator().manual_seed(1)
    hidden, written, sampled = decoder.first_hidden[decoder.groups], [], []
    for _ in range(steps):
        logprobs = torch.log_softmax(model.logits(hidden) / temperature, -1)
        ids = torch.multinomial(logprobs.exp(), 1, generator=generator)
        written.append(ids[:, 0])
        sampled.append(logprobs.gather(1, ids)[:, 0])
        hidden = decoder.step(ids[:, 0])
    ids = torch.stack(written, 1)
    scored = model.completion_hidden(prompts, decoder.groups, ids, torch.full((7,), steps))
    packed = torch.log_softmax(model.logits(scored) / temperature, -1).gather(1, ids.flatten()[:, None])[:, 0]
    # These models have logits of 24, so float32 itself is worth 2e-5 at the worst token: transformers' eager and sdpa
    # attentions differ by as much. Hence 1e-5 beside the size of the number, and on average far less.
    torch.testing.assert_close(packed, torch.stack(sampled, 1).flatten(), rtol=1e-5, atol=1e-5)
    assert (packed - torch.stack(sampled, 1).flatten()).abs().mean() <= 2e-6
