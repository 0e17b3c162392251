"""The exact KL of a learner in shards: its reference's head is whole while the loss is computed."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.adapted import adapted
from fakes.learning import gradient, relative_error
from fakes.shards import batch_for, llama, make_learner, sharded, whole_state
from fakes.tolerance import assert_close
from oncurve.learner import LocalLearner
from oncurve.models import CausalModel, wrap


def policy(kind: str) -> CausalModel:
    module = llama(tied=kind == "tied").double()
    return adapted(module, trained=kind == "trained") if kind in ("new", "trained") else wrap(module)


def make(kind: str, tokenizer: object = None, make: type[LocalLearner] = LocalLearner, **settings: Any) -> Any:
    return make_learner(policy(kind), None, make, estimator="full", **settings)


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("all", 2),
        pytest.param("tied", 4, marks=pytest.mark.slow),
        pytest.param("new", 2, marks=pytest.mark.slow),
        pytest.param("trained", 4, marks=pytest.mark.slow),
    ],
)
def test_the_gradient_of_the_exact_kl_is_that_of_one_process(tmp_path: Path, kind: str, ranks: int) -> None:
    one = make(kind)
    one.update(batch_for(one))  # at the start policy and reference are one, and the KL has no gradient
    batch = batch_for(one, 1)
    right = gradient(one, batch)
    with sharded(ranks, make=partial(make, kind, betas=(0.0, 0.999))) as learner:
        learner.update(batch_for(learner))
        mine = batch_for(learner, 1)
        assert mine.ref_hidden is not None
        assert batch.ref_hidden is not None
        assert_close(mine.ref_hidden, batch.ref_hidden)
        metrics = learner.update(mine).metrics.result()
        found = whole_state(tmp_path, json.loads(json.dumps(learner.save(tmp_path))))
    assert metrics["policy/kl"] > 0
    moments = torch.cat([found[f"moment1.{name}"].flatten().double() for name in one.optimizer.trained])
    assert relative_error(moments, right) < 1e-9
    assert metrics["optim/grad_norm"] == pytest.approx(float(right.norm()), rel=1e-9)
