"""A model some of whose weights the user froze: stored once, exported, and a resumed run ends with the same bits."""

from functools import partial
from pathlib import Path

import pytest
import torch

import oncurve
from fakes.architectures import architecture
from fakes.rewards import low_ids
from fakes.tables import table
from oncurve import durable
from oncurve.base.errors import ModelError
from oncurve.trainer import StepResult

FROZEN = ("embed_tokens", "layers.0.", "lm_head")
SETTINGS = table("frozen_weights", "settings")
ROWS = [{"prompt": [3 + index, 4 + index]} for index in range(6)]


def partly_frozen(seed: int = 0, frozen: tuple[str, ...] = FROZEN) -> torch.nn.Module:
    module = architecture("llama", seed=seed)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    return module


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits_and_frozen_weights_are_stored_once(tmp_path: Path) -> None:
    given = {name: parameter.detach().clone() for name, parameter in partly_frozen().named_parameters()}
    begin = partial(oncurve.train, data=ROWS, reward=low_ids, steps=3, settings=SETTINGS)
    whole = begin(model=partly_frozen(), out=tmp_path / "whole")

    def stop(result: StepResult) -> None:
        if result.step == 2:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        begin(model=partly_frozen(), out=tmp_path / "run", on_step=stop)
    resumed = oncurve.resume(tmp_path / "run", model=partly_frozen(seed=7), reward=low_ids)  # other weights, frozen too
    checkpoints = tmp_path / "run" / "checkpoints"
    records = [durable.read_json(path / "state.json")["learner"] for _, path in durable.numbered(checkpoints)]
    assert len(records) == 3
    (name,) = {record["frozen"] for record in records}
    stored = durable.fetch(checkpoints / "frozen", name)
    still = {key for key in given if any(part in key for part in FROZEN)}
    assert stored.keys() == still
    held = durable.read_tensors(checkpoints / "step-000003" / "learner.safetensors")
    assert not any(key.partition(".")[2] in still for key in held)
    for out in ("whole", "run"):
        exported = durable.read_tensors(tmp_path / out / "model" / "model.safetensors")
        assert all(torch.equal(exported[key], given[key]) for key in still)
    ours, theirs = (dict(each.model.named_parameters()) for each in (whole, resumed))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert not any(torch.equal(ours[key], given[key]) for key in given.keys() - still)
    whole.close()
    resumed.close()


def test_a_model_without_a_trainable_weight_is_refused() -> None:
    with pytest.raises(ModelError, match="nothing to train"):
        oncurve.train(model=partly_frozen(frozen=("",)), data=ROWS, reward=low_ids, steps=1, settings=SETTINGS)
