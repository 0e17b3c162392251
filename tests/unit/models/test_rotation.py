"""A row is rotated in one way, however long its neighbours are and whichever path feeds it: beyond every threshold."""

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fakes.architectures import SHAPE
from fakes.shrunk import of_kind, shrunk
from oncurve.base.errors import DataError, ModelError
from oncurve.models import LocalWeights, wrap
from oncurve.models.layers.lengths import positions_of
from oncurve.models.layers.rotation import reach_of, set_reach
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Prompt
from oracles.plain_forward import plain_logits

ORIGINAL, POSITIONS, VOCABULARY = 16, 64, 61
"""Positions of the first training, where every kind of scaling begins, and of the model."""

_SHAPE = SHAPE | {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
}
_STRETCHED = {"rope_theta": 100.0, "original_max_position_embeddings": ORIGINAL, "factor": 4.0}
_LONG = {**_STRETCHED, "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
_HALF_LONG = {**_LONG, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "partial_rotary_factor": 0.5}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 100.0},
    "linear": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0},
    "yarn": {**_STRETCHED, "rope_type": "yarn"},
    "llama3": {**_STRETCHED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "proportional": {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "longrope": _LONG,
}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}  # others: no float64
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "head_dim": 16, "sliding_window": 12}
_BY_LAYER = {"sliding_attention": ROPES["default"], "full_attention": _LONG}
MODELS = {
    **{name: {"kind": "llama", "rope_parameters": rope} for name, rope in ROPES.items()},
    "longrope of a part of a head": {"kind": "phi3", "original_max_position_embeddings": ORIGINAL}
    | {"rope_parameters": _HALF_LONG},
    "longrope with two scales (phimoe)": {"kind": "phimoe", **_EXPERTS}
    | {"rope_parameters": {**_LONG, "short_mscale": 1.0, "long_mscale": 1.5}},
    "longrope of some layers (gemma3)": {"kind": "gemma3_text", **_LAYERS, "rope_parameters": _BY_LAYER},
}
GROWING = [name for name in MODELS if name.startswith("longrope")]
PATHS = pytest.mark.parametrize("path", ["auto", "generic"])


def module_of(name):
    module = of_kind(**_SHAPE, **MODELS[name]).double()
    try:
        for _ in range(2):
            module(torch.zeros(1, 64, dtype=torch.int64))
    except UnboundLocalError as error:  # transformers 5.17, the second long row with LongRoPE of some layers
        pytest.skip(f"transformers cannot run it: {error}")
    return module


def ids(count, seed=0):
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


def logprobs(model, prompts, completions):
    """Log-probs of a completion for each prompt, from one batch."""
    lengths = torch.tensor([len(completion) for completion in completions])
    padded = torch.nn.utils.rnn.pad_sequence(completions, batch_first=True)
    hidden = model.completion_hidden(prompts, torch.arange(len(prompts)), padded, lengths)
    table = model.logits(hidden).log_softmax(-1)
    return torch.split(table.gather(1, torch.cat(completions)[:, None])[:, 0], lengths.tolist())


def test_every_kind_of_rotation_that_transformers_has_is_tried():
    assert set(ROPES) == {*ROPE_INIT_FUNCTIONS, "default"}


@PATHS
@pytest.mark.parametrize("name", MODELS)
def test_a_row_alone_is_the_row_beside_longer_ones_and_what_the_sampler_recorded(name, path):
    model = wrap(module_of(name), path)
    lengths = (3, 5, 40)  # rows of 11 to 48 tokens: on both sides of the first threshold, and far beyond it
    prompts = [Prompt(index, "", tuple(ids(length, index).tolist())) for index, length in enumerate(lengths)]
    engine = InProcessEngine(Sampling(group_size=1, max_new_tokens=8), limits=lambda prompt, _: 8 - prompt)
    engine.follow(LocalWeights(model, 0))
    groups = engine.generate(prompts, draw=0)
    asked = [torch.tensor(prompt.ids) for prompt in prompts]
    written = [torch.tensor(group.completions[0].ids) for group in groups]
    together = logprobs(model, asked, written)
    for index, group in enumerate(groups):
        (alone,) = logprobs(model, asked[index : index + 1], written[index : index + 1])
        torch.testing.assert_close(alone, together[index], rtol=0, atol=1e-9)
        (sampled,) = (torch.tensor(each.logprobs, dtype=torch.float64) for each in group.completions)
        torch.testing.assert_close(sampled, alone, rtol=0, atol=1e-5)


@PATHS
@pytest.mark.parametrize("name", GROWING)
def test_the_longest_row_that_may_be_chooses_the_rotation_of_all(name, path):
    """As transformers rotates a row that long, for the rows that are; and below the threshold as it rotates those."""
    plain, model = module_of(name), wrap(module_of(name), path)
    assert reach_of(model.module) == model.longest_row == POSITIONS + 1
    one_row = (torch.tensor([0]), ids(12, 1)[None], torch.tensor([12]))
    for reach, prompt in ((ORIGINAL, ids(ORIGINAL - 12)), (40, ids(20))):
        set_reach(model.module, reach)
        ours = model.logits(model.completion_hidden([prompt], *one_row))
        theirs = plain_logits(plain, [prompt], *one_row)  # whose norms are float32 whatever comes in
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    before = model.logits(model.completion_hidden([ids(3)], *one_row))
    set_reach(model.module, ORIGINAL + 1)
    assert not torch.allclose(model.logits(model.completion_hidden([ids(3)], *one_row)), before, atol=1e-3)


@PATHS
def test_a_row_beyond_what_the_run_has_said_is_refused(path):
    model = wrap(module_of("longrope"), path)
    set_reach(model.module, 20)
    with pytest.raises(ModelError, match=r"a row of 21 tokens.*at most 20"):
        logprobs(model, [ids(9)], [ids(12)])
    engine = InProcessEngine(Sampling(group_size=1, max_new_tokens=12))
    engine.follow(LocalWeights(model, 0))
    with pytest.raises(DataError, match=r"rows of at most 20: set rollout.max_new_tokens to 11"):
        engine.generate([Prompt(0, "", tuple(ids(9).tolist()))], draw=0)


LEARNED_POSITIONS, NAMED_VOCABULARY = 24, 61
_NAMED = {"vocab_size": NAMED_VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MOST = {"max_position_embeddings": LEARNED_POSITIONS}
LEARNED = {
    "gpt2": {"n_positions": LEARNED_POSITIONS},
    "gpt_bigcode": {"n_positions": LEARNED_POSITIONS},
    "opt": _MOST,
    "biogpt": _MOST,
    "roberta": {
        "is_decoder": True,
        "max_position_embeddings": LEARNED_POSITIONS + 1,
    },  # it begins after a padding index
    "whisper": {"max_target_positions": LEARNED_POSITIONS, "decoder_start_token_id": 1},
}


def engine_of(model, new_tokens):
    engine = InProcessEngine(Sampling(group_size=2, max_new_tokens=new_tokens))
    engine.follow(LocalWeights(model, 0))
    return engine


def prompt_of(length):
    return Prompt(0, "", tuple(3 + index % 50 for index in range(length)))


@PATHS
@pytest.mark.parametrize("name", LEARNED)
def test_the_last_row_that_fits_is_sampled_and_scored_and_the_next_one_refused(name, path):
    model = wrap(shrunk(name, **_NAMED, **LEARNED[name]), path)
    assert (positions_of(model.module), model.longest_row) == (LEARNED_POSITIONS, LEARNED_POSITIONS + 1)
    for new_tokens in (LEARNED_POSITIONS, 1, 10):
        prompt = prompt_of(LEARNED_POSITIONS + 1 - new_tokens)
        (group,) = engine_of(model, new_tokens).generate([prompt], draw=0)
        ids = torch.tensor([completion.ids for completion in group.completions])
        assert ids.shape == (2, new_tokens)
        rows = ([torch.tensor(prompt.ids)], torch.tensor([0, 0]), ids, torch.tensor([new_tokens, new_tokens]))
        table = model.logits(model.completion_hidden(*rows)).log_softmax(-1)
        learned_of = table.gather(1, ids.flatten()[:, None])[:, 0]
        sampled = torch.tensor([each for completion in group.completions for each in completion.logprobs])
        torch.testing.assert_close(sampled, learned_of, rtol=0, atol=1e-4)
    with pytest.raises(DataError, match=r"makes 26, and the model takes rows of at most 25: set .* to 20"):
        engine_of(model, 21).generate([prompt_of(5)], draw=0)
    with pytest.raises(ModelError, match=r"a row of 26 tokens"):
        model.completion_hidden(
            [torch.tensor(prompt_of(5).ids)],
            torch.tensor([0]),
            torch.zeros(1, 21, dtype=torch.int64),
            torch.tensor([21]),
        )
