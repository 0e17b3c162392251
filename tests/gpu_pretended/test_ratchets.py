"""What oncurve asks of a GPU, in numbers that may only fall.

`tests/tables/ratchets.toml` is the table. A change that makes a number larger fails; so does one that makes it
smaller, and the smaller one is to be written down there. Kernels are counted on Qwen2's structure with thin layers,
because their number does not depend on widths; a layer's are the difference of two depths.
"""

import gc
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import oncurve
from fakes import pretended_gpu
from fakes.architectures import prompts_of, seeded
from fakes.decoding import request
from fakes.tables import table
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.forecast.memory import GRAPHS, Variant
from oncurve.forecast.shapes import StepWork, shape_of
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
from oncurve.models import LoraSettings
from oncurve.models.loading import loaded_from
from oncurve.models.loading.weights import adapted
from oncurve.randomness import row_keys
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch

FIGURES: dict[str, Any] = table("ratchets", "figures")


def qwen2(layers: int, **sizes: int) -> torch.nn.Module:
    made = {"vocab_size": 1024, "hidden_size": 56, "intermediate_size": 64, "num_attention_heads": 14}
    made |= {"num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": 0.1, **sizes}
    config = Qwen2Config(num_hidden_layers=layers, tie_word_embeddings=True, **made)
    return seeded(lambda: Qwen2ForCausalLM(config)).to(torch.bfloat16).eval()


def model_of(layers: int, lora: bool = False) -> Any:
    loaded = loaded_from(qwen2(layers).to(pretended_gpu.device()))
    if not lora:
        return loaded.model
    model = adapted(loaded, LoraSettings(rank=8)).model
    for factor in model.adapter.parameters.values():
        factor.data = factor.data.to(torch.bfloat16)  # as a learner in bfloat16 does
    return model


def rollout(model: Any, groups: int, longest: int, prompt: int = 9) -> pretended_gpu.Seen:
    """Groups of two rows, all admitted at once, that end at their limit. Its graphs are there."""
    keys = row_keys(0, 1, torch.arange(groups).repeat_interleave(2), torch.arange(2).repeat(groups))
    asked = request(prompts_of(*(prompt,) * groups), keys, [], longest, temperature=1.0)
    model.token_loop()(asked)  # captures
    with pretended_gpu.watch() as seen:
        model.token_loop()(asked)
    return seen


def decoded(layers: int, captures: pretended_gpu.Captures, lora: bool = False) -> int:
    """Kernels per token."""
    model = model_of(layers, lora)
    before = captures.replays, captures.seen.kernels
    rollout(model, 2, 16)
    kernels, rest = divmod(captures.seen.kernels - before[1], captures.replays - before[0])
    assert rest == 0
    return kernels


def decoding(captures: pretended_gpu.Captures) -> dict[str, Any]:
    one, two, adapted_one, adapted_two = (decoded(n, captures, lora) for lora in (False, True) for n in (1, 2))
    model = model_of(1)
    _, short, long = (rollout(model, 2, longest) for longest in (96, 32, 64))  # the first makes room for all
    return {
        "decoding: kernels per token and layer": two - one,
        "decoding: kernels per token beside the layers": 2 * one - two,
        "decoding with LoRA: kernels per token and layer": adapted_two - adapted_one,
        "decoding: waits in 32 tokens": long.waits.total() - short.waits.total(),
        "decoding: copies in 32 tokens": long.copies.total() - short.copies.total(),
    }


def admission(captures: pretended_gpu.Captures) -> dict[str, Any]:
    def outside(model: Any, groups: int) -> int:
        """Kernels of a rollout of one token that are not in its steps."""
        before = captures.seen.kernels
        seen = rollout(model, groups, 1)
        return seen.kernels - (captures.seen.kernels - before) // 2

    models = {layers: model_of(layers) for layers in (1, 2)}
    for model in models.values():
        rollout(model, 3, 8)  # makes room for all
    kernels = {(layers, groups): outside(models[layers], groups) for layers in models for groups in (1, 3)}
    (one, rest), (two, other) = (divmod(kernels[n, 3] - kernels[n, 1], 2) for n in (1, 2))
    assert rest == other == 0
    return {
        "admission: kernels per group and layer": two - one,
        "admission: kernels per group beside the layers": 2 * one - two,
        "admission: kernels of one group": kernels[1, 1],
        "admission: waits": rollout(models[1], 1, 1).waits.total(),
    }


def batch_of(longest: int) -> TrainBatch:
    """Six groups of four ragged rows, up to about `longest` tokens each."""
    groups = []
    for number in range(6):
        lengths = [longest - 3 * copy - number for copy in range(4)]
        rows = tuple(
            Completion(tuple((7 * i + copy) % 500 for i in range(length)), "", (-1.0,) * length, "eos", copy, 0)
            for copy, length in enumerate(lengths)
        )
        prompt = Prompt(number, "", tuple(range(10 + number)))
        groups.append(Group(prompt, rows, tuple(Score(float(copy % 2)) for copy in range(4))))
    batch = collate(groups)
    batch = batch.with_advantages(GroupAdvantage()(batch))
    return batch.with_weights(TokenMean()(batch))


def learner_of(model: Any) -> LocalLearner:
    config = LearnerConfig(tokens_per_micro_batch=10**9)
    return config.build(model, Clipped(), Regularizer(KLPenalty(coef=0.0)))


def micro_batch(captures: pretended_gpu.Captures) -> dict[str, Any]:
    found = {}
    for layers in (1, 2):
        learner = learner_of(model_of(layers))
        learner.update(batch_of(16))
        with pretended_gpu.watch() as found[layers]:
            accumulated = learner.accumulate(batch_of(16))
        with pretended_gpu.watch() as optimizer:
            learner.apply(accumulated)
    one, two = found[1], found[2]
    wide = learner_of(loaded_from(qwen2(1, hidden_size=896, num_attention_heads=2).to(pretended_gpu.device())).model)
    grown = []
    for longest in (16, 64):
        with pretended_gpu.watch() as seen:
            wide.accumulate(batch_of(longest))
        grown.append(seen.kernels)
    return {
        "micro-batch: kernels per layer": two.kernels - one.kernels,
        "micro-batch: kernels beside the layers": 2 * one.kernels - two.kernels,
        "micro-batch: kernels for four times the tokens": grown[1] - grown[0],
        "micro-batch: waits": two.waits.total(),
        "micro-batch: copies": two.copies.total(),
        "micro-batch: operations that vary": sorted(two.varying),
        "optimizer: kernels": optimizer.kernels,
        "optimizer: waits": optimizer.waits.total(),
    }


def captured(captures: pretended_gpu.Captures, **settings: Any) -> int:
    by_step: list[int] = []
    oncurve.train(
        model=qwen2(1).to(pretended_gpu.device()),
        data=[{"prompt": list(range(3, 6 + index % 3))} for index in range(12)],
        reward=lambda completion_ids: len(by_step) + completion_ids[-1] % 7,
        steps=4,
        settings={
            "rollout": {"group_size": 2, "max_new_tokens": 12},
            "data": {"prompts_per_step": 3, "eval_fraction": 0.25},
            **settings,
        },
        on_step=lambda result: by_step.append(captures.made),
    ).close()
    return by_step[-1] - by_step[0]


def all_captured(captures: pretended_gpu.Captures) -> dict[str, Any]:
    return {name: captured(captures, **settings) for name, settings in table("ratchets", "runs").items()}


def test_a_run_takes_the_memory_that_is_forecast(captures: pretended_gpu.Captures) -> None:
    """Forecast and live bytes of a rollout and of an update, each after one that made what stays.

    The pretended graphs have no memory of their own, and at the update there are none yet.
    """
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 512}
    before = pretended_gpu.live_bytes()
    module = qwen2(2, **sizes).to(pretended_gpu.device())
    learner = learner_of(loaded_from(module).model)
    learner.update(batch_of(32))
    gc.collect()
    with pretended_gpu.watch() as updates:
        learner.update(batch_of(32))
    rollouts = rollout(learner.model, 8, 32, 16)
    found = {"rollout": rollouts.peak_bytes - before, "training": updates.peak_bytes - before}
    works = {"rollout": StepWork(8, 2, 32, (16,) * 8), "training": StepWork(6, 4, 25, (12,) * 6)}
    rooms, shape = {"rollout": float("inf"), "training": 0.0}, shape_of(module.config)
    variants = {phase: Variant(shape, work, on_cpu=False, room=rooms[phase]) for phase, work in works.items()}
    wanted = {phase: variant.memory().phases[phase] for phase, variant in variants.items()}
    wanted["rollout"] -= GRAPHS
    assert found == {phase: pytest.approx(wanted[phase], rel=0.15) for phase in found}


SLOW = [pytest.param(measure, marks=pytest.mark.slow) for measure in (decoding, all_captured)]


@pytest.mark.parametrize("measure", [admission, micro_batch, *SLOW])
def test_no_figure_has_changed(measure: Any, captures: pretended_gpu.Captures) -> None:
    found = measure(captures)
    assert found == {name: FIGURES[name] for name in found}, "larger: not allowed; smaller: write it into the table"
