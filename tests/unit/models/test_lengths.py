"""A model of P positions takes rows of P + 1 tokens: the last one is sampled, and never fed."""

import pytest
import torch
from transformers import (
    BioGptConfig,
    BioGptForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    WhisperConfig,
    WhisperForCausalLM,
)

from fakes.architectures import architecture
from fakes.tiny_policy import TinyLM
from oncurve.config.loading import load_config
from oncurve.errors import ConfigError, DataError, ModelError
from oncurve.models import LocalWeights, wrap
from oncurve.models.layers.lengths import positions_of
from oncurve.models.loading.weights import loaded_from
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.run.row_lengths import room_for_prompts
from oncurve.types import Prompt

POSITIONS, VOCABULARY = 24, 61
_NAMED = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_GPT = {"n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4}
_SPEECH = {
    side + key: size
    for side in ("encoder_", "decoder_")
    for key, size in {"layers": 2, "attention_heads": 4, "ffn_dim": 48}.items()
}
LEARNED = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**_NAMED, **_GPT)),
    "gpt_bigcode": lambda: GPTBigCodeForCausalLM(GPTBigCodeConfig(**_NAMED, **_GPT)),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(**_NAMED, **_SIZES, ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=POSITIONS)
    ),
    "biogpt": lambda: BioGptForCausalLM(BioGptConfig(**_NAMED, **_SIZES, max_position_embeddings=POSITIONS)),
    "roberta, whose table begins after a padding index": lambda: RobertaForCausalLM(
        RobertaConfig(**_NAMED, **_SIZES, is_decoder=True, max_position_embeddings=POSITIONS + 1)
    ),
    "whisper, which counts target positions": lambda: WhisperForCausalLM(
        WhisperConfig(**_NAMED, **_SPEECH, d_model=32, max_target_positions=POSITIONS, decoder_start_token_id=1)
    ),
}
PATHS = pytest.mark.parametrize("path", ["auto", "generic"])


def learned(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LEARNED[name]().eval()


def engine_of(model, new_tokens):
    engine = InProcessEngine(Sampling(group_size=2, max_new_tokens=new_tokens))
    engine.follow(LocalWeights(model, 0))
    return engine


def prompt_of(length):
    return Prompt(0, "", tuple(3 + index % 50 for index in range(length)))


@PATHS
@pytest.mark.parametrize("name", LEARNED)
def test_the_last_row_that_fits_is_sampled_and_scored_and_the_next_one_refused(name, path):
    model = wrap(learned(name), path)
    assert (positions_of(model.module), model.longest_row) == (POSITIONS, POSITIONS + 1)
    for new_tokens in (POSITIONS, 1, 10):
        prompt = prompt_of(POSITIONS + 1 - new_tokens)
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


def test_settings_leave_room_for_a_prompt_or_are_refused():
    loaded = loaded_from(architecture("gpt2"))  # 128 positions
    config = lambda tokens: load_config(settings={"rollout": {"max_new_tokens": tokens}})[0]  # noqa: E731
    assert room_for_prompts(loaded, config(128)) == 1
    assert room_for_prompts(loaded, config(29)) == 100
    with pytest.raises(ConfigError, match="129 leaves no room for a prompt"):
        room_for_prompts(loaded, config(129))
    assert room_for_prompts(loaded_from(TinyLM()), config(9999)) is None
