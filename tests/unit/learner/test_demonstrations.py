"""The loss and the gradient of demonstrations are transformers' own, whatever is packed, adapted or masked."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fakes.adapted import adapted, factors_of, peft_twin
from fakes.architectures import architecture
from fakes.demonstrations import CHATS, chat_tokenizer, demonstrations
from fakes.learning import relative_error
from fakes.tables import table
from oncurve.advantages import DemonstrationAdvantage
from oncurve.batching import collate
from oncurve.data import Demonstrations
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import KLPenalty, Regularizer, Reinforce, TokenMean
from oncurve.models import wrap
from oncurve.models.layers.rms_norm import replace_norms
from oncurve.types import Group, Score, TrainBatch
from oracles.plain_sft import IGNORED, plain_loss

TEXTS = table("demonstrations", "texts")
CASES = {"texts": (TEXTS, {}), "prompts too": (TEXTS, {"train_on_prompts": True}), "chats": (CHATS, {"chat": True})}


def batch_of(found: Demonstrations) -> TrainBatch:
    groups = [Group(prompt, (found.completion(prompt),), (Score(0.0),)) for prompt in found]
    batch = collate(groups)
    batch = batch.with_advantages(DemonstrationAdvantage()(batch))
    return batch.with_weights(TokenMean()(batch))


def labelled(found: Demonstrations) -> list[tuple[list[int], list[int]]]:
    rows = []
    for prompt in found:
        completion = found.completion(prompt)
        trained = completion.trained or (True,) * len(completion.ids)
        labels = [token if on else IGNORED for token, on in zip(completion.ids, trained, strict=True)]
        rows.append(([*prompt.ids, *completion.ids], [*[IGNORED] * len(prompt.ids), *labels]))
    return rows


def gradients(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)])


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(
    ("case", "budget"), [("texts", 1), ("texts", 10_000), ("texts", 24), ("prompts too", 24), ("chats", 24)]
)
def test_loss_and_gradient_are_those_of_transformers(case: str, lora: bool, budget: int) -> None:
    rows, options = CASES[case]
    found, module = demonstrations(rows, **options), architecture("qwen3", torch.float64)
    plain = copy.deepcopy(module)
    model = adapted(module) if lora else wrap(module)
    if lora:
        plain = peft_twin(plain, model)
    else:
        replace_norms(plain)  # in float64 those of transformers round to float32
    config = LearnerConfig(tokens_per_micro_batch=budget, max_grad_norm=0.0)
    learner = LocalLearner(config, model, Reinforce(), Regularizer(KLPenalty(coef=0.0)))
    accumulated = learner.accumulate(batch_of(found))
    ours = torch.cat([gradient.flatten() for gradient in learner.optimizer.gradients().values()])
    right = plain_loss(plain, labelled(found))
    theirs = gradients(right, factors_of(plain, model) if lora else list(plain.parameters()))
    assert abs(float(accumulated.loss) - float(right.detach())) <= 1e-10
    assert relative_error(ours, theirs) <= 1e-10
    assert accumulated.metrics.result()["policy/objective_loss"] == pytest.approx(float(right.detach()), abs=1e-10)
    assert "policy/mismatch" not in accumulated.metrics.result()


def test_the_mask_of_a_chat_is_transformers_own() -> None:
    tokenizer, found = chat_tokenizer(), demonstrations(CHATS, chat=True)
    for row, (ids, labels) in zip(CHATS, labelled(found), strict=True):
        whole = tokenizer.apply_chat_template(
            row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        masks = whole["assistant_masks"]
        assert ids == whole["input_ids"][: len(ids)]
        assert [label != IGNORED for label in labels] == [bool(each) for each in masks[: len(ids)]]
        assert not any(masks[len(ids) :])  # what follows the last end token is not in the row
