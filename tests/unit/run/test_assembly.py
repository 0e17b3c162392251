"""A run put together from objects: what becomes of a reference of one's own."""

import pytest
import torch

from fakes.tiny_policy import TinyLM
from oncurve.config.loading import load_config
from oncurve.models.loading.weights import loaded_from
from oncurve.run.assembly import Overrides, assemble


def put_together(coef: float):
    settings = {
        "data": {"kind": "list", "rows": tuple({"prompt": ids, "answer": "1"} for ids in ([1, 2], [3, 4]))},
        "rollout": {"group_size": 2, "max_new_tokens": 2},
        "kl": {"coef": coef},
        "rewards": [{"kind": "task"}],
    }
    config, base = load_config(settings=settings)
    return assemble(config, base, Overrides(loaded_from(TinyLM(), None), loaded_from(TinyLM(seed=1), None)))


@pytest.mark.parametrize("coef", [0.0, 0.1])
def test_a_reference_that_was_given_is_kept_whether_there_is_a_kl_term_or_the_objective_wants_it(coef: float):
    with put_together(coef) as run:
        state, facts = run.learner.reference.state(), run.facts()
    assert facts.reference_given
    given = dict(TinyLM(seed=1).named_parameters())
    assert facts.reference_bytes == sum(4 * tensor.numel() for tensor in given.values())
    assert all(torch.equal(tensor, given[name]) for name, tensor in state.items())
