"""Every architecture of transformers goes the fast path, the generic one with a reason, or is refused with one.

A micro-batch on the path that was chosen against each row alone through the plain module: log-probs and gradients.
"""

import pytest
import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fakes.shrunk import VOCABULARY, shrunk
from fakes.tables import table
from oncurve.base.errors import ModelError
from oncurve.models import wrap

pytestmark = pytest.mark.slow

ENCODERS, PREFIXED, DECODERS, FAST = (table("survey", part) for part in ("encoders", "prefixed", "decoders", "fast"))

LENGTHS = (20, 1, 7)  # beyond the windows of the shrunk models; rows beside rows that are longer


def known(kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]


def rows() -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (40,), generator=generator)
    completions = torch.randint(3, VOCABULARY, (3, max(LENGTHS)), generator=generator)
    return [ids[:3], ids[3:9]], torch.tensor([0, 0, 1]), completions, torch.tensor(LENGTHS)


def alone(module: nn.Module, prompts: list[Tensor], groups: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    found = []
    for group, completion, length in zip(groups.tolist(), ids, lengths.tolist(), strict=True):
        prompt = prompts[group]
        row = torch.cat([prompt, completion[: length - 1]])[None]
        found.append(module(row, use_cache=False).logits[0, len(prompt) - 1 :])
    return torch.cat(found)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def test_the_survey_is_wide():
    assert len(known(DECODERS + ENCODERS + PREFIXED)) >= 100


@pytest.mark.filterwarnings("ignore")  # of transformers, about settings that are not ours
@pytest.mark.parametrize("kind", known(DECODERS))
def test_log_probs_and_gradients_are_those_of_each_row_alone_and_finite_in_half_precision(kind):
    module, plain = shrunk(kind), shrunk(kind)
    model = wrap(module)
    assert model.fast or "because" in model.path_reason
    assert model.fast or kind not in FAST
    ours, theirs = model.logits(model.completion_hidden(*rows())), alone(plain, *rows())
    torch.testing.assert_close(ours.log_softmax(-1), theirs.log_softmax(-1), rtol=1e-3, atol=1e-3)
    weights = torch.cos(torch.arange(ours.numel(), dtype=torch.float32)).view_as(ours)
    ours_of, theirs_of = (
        torch.autograd.grad((logits * weights).mean(), list(trainable(network).values()), allow_unused=True)
        for logits, network in ((ours, module), (theirs, plain))
    )
    for name, left, right in zip(trainable(plain), ours_of, theirs_of, strict=True):
        assert (left is None) == (right is None), name
        if left is not None:
            # An expert that nobody is sent to has exact zeros on one side, rounding on the other.
            assert float((left - right).norm()) <= 1e-3 * float(right.norm()) + 1e-6, name
    rounded = wrap(shrunk(kind).bfloat16())
    assert rounded.fast or not model.fast or "failed" in rounded.path_reason
    hidden = rounded.completion_hidden(*rows())
    trained = list(trainable(rounded.module).values())
    for gradient in torch.autograd.grad(rounded.logits(hidden).square().mean(), trained, allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", known(ENCODERS + PREFIXED))
def test_what_sees_both_ways_is_refused(kind):
    with pytest.raises(ModelError, match="is not causal"):
        wrap(shrunk(kind))
