"""What only data and model can tell is refused before a run begins: nothing held out, tokens that there are not."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fakes.rewards import low_ids
from fakes.tables import table
from fakes.tiny_policy import VOCABULARY, TinyLM
from oncurve import GRPO, train
from oncurve.base.errors import ConfigError
from oncurve.components import Component
from oncurve.data.settings import DataSettings, Rows
from oncurve.types import AdvantagesAndReturns, TrainBatch

ROWS = [{"prompt": [number]} for number in range(8)]


class Source(DataSettings):
    """A data source of the user's; it says nothing of whether it holds rows out."""

    held: int = 0

    def read(self, base: Path | None) -> tuple[Rows, Rows]:
        rows = Rows(ROWS, range(len(ROWS)), lambda number: f"row {number}")
        return rows.select(range(self.held, len(ROWS))), rows.select(range(self.held))


def run(out: Path, data: DataSettings, **sections: dict) -> None:
    """Two steps of training."""
    settings = {
        "data": {"kind": f"{type(data).__module__}:{type(data).__name__}", "prompts_per_step": 2, "held": data.held},
        "rollout": {"group_size": 2, "max_new_tokens": 3},
        **sections,
    }
    model = TinyLM()
    train(model=model, reward=low_ids, steps=1, out=out, settings=settings).close()


def test_evaluation_without_held_out_rows_is_refused_whatever_the_source(tmp_path: Path):
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"eval\.every: "):
        run(out, Source(), eval={"every": 1})
    assert not out.exists()
    run(out, Source(held=2), eval={"every": 1})
    assert out.exists()


@pytest.mark.parametrize("ids", [[VOCABULARY], [2, 10**12], [2**70]])
def test_an_eos_id_that_is_no_token_is_refused(ids: list[int]):
    with pytest.raises(ConfigError, match=f"0 to {VOCABULARY - 1}|within 64 bits"):
        GRPO(TinyLM(), None, lambda completions, prompts: [0.0] * len(completions), eos_ids=ids)
    GRPO(TinyLM(), None, lambda completions, prompts: [0.0] * len(completions), eos_ids=[VOCABULARY - 1])


def test_an_update_without_a_token_to_train_is_announced_once_and_counted(caplog: pytest.LogCaptureFixture):
    def longer(completions: list[torch.Tensor], prompts: torch.Tensor) -> list[float]:
        return [float(len(completion)) for completion in completions]

    settings = {"filter": {"mask_truncated": True}, "learner": {"minibatches": 2}}
    trainer = GRPO(TinyLM(), None, longer, max_new_tokens=3, settings=settings)
    said = trainer.train_step(torch.arange(4)[:, None])
    assert said["optim/updates_without_tokens"] == 2
    (line,) = [record.getMessage() for record in caplog.records if record.name == "oncurve.trainer"]
    assert line.startswith("step 1: an update has no token to train: 8 of its 8 completions are truncated")
    assert "\n" not in line
    trained = GRPO(TinyLM(), None, longer, max_new_tokens=3).train_step(torch.arange(4)[:, None])
    assert "optim/updates_without_tokens" not in trained


class Returning(Component):
    """An advantage of the user's that returns what it is told to."""

    what: str
    needs: ClassVar[frozenset[str]] = frozenset({"values"})
    min_valid_completions: ClassVar[int] = 1

    def __call__(self, batch: TrainBatch) -> object:
        whole = batch.rewards[:, None] * batch.existing()
        return {
            "rows": batch.rewards,
            "nothing": None,
            "no returns": whole,
            "both": AdvantagesAndReturns(whole, whole),
        }[self.what]


@pytest.mark.parametrize(("what", "said"), [*table("settings_and_data_agree", "returns"), ("both", None)])
def test_what_an_advantage_returns_is_looked_at(what: str, said: str | None):
    trainer = GRPO(
        TinyLM(),
        None,
        lambda completions, prompts: [float(c[0]) for c in completions],
        max_new_tokens=3,
        settings={"critic": {"kind": "own"}, "advantage": {"kind": "gae"}},
    )
    trainer.config = trainer.config.model_copy(update={"advantage": Returning(what=what)})
    if said is None:
        assert trainer.train_step(torch.arange(4)[:, None])["critic/error"] > 0
        return
    with pytest.raises(ConfigError, match=rf"advantage\.kind: Returning .*{said}"):
        trainer.train_step(torch.arange(4)[:, None])
