"""The warm start of a run: demonstrations as the model reads them, their loss, the model that step 1 begins with."""

from __future__ import annotations

from pathlib import Path

from oncurve.batching import collate
from oncurve.config import RunConfig
from oncurve.data import DemonstrationRows, Demonstrations, Prompts, Rows, open_demonstrations
from oncurve.learner import Learner
from oncurve.models import LoadedModel, LoraSettings
from oncurve.models.loading import ADAPTER, ModelConfig
from oncurve.ops import masked_mean
from oncurve.types import Group, Score


def demonstrations_of(
    found: DemonstrationRows, config: RunConfig, loaded: LoadedModel
) -> tuple[Demonstrations, Demonstrations]:
    """Return the demonstrations of `[sft]` to train on and the held-out ones, as the loaded model reads them.

    Raises DataError, with its place, for a row that is none.
    """
    sft, longest = config.sft, min(filter(None, (loaded.model.longest_row, config.sft.max_length)), default=None)

    def opened(rows: Rows) -> Demonstrations:
        prompts = Prompts(rows, found.settings, loaded.tokenizer)
        made = Demonstrations(prompts, loaded.eos_ids, found.whole or sft.train_on_prompts)
        return open_demonstrations(made, longest, config.data.overlong == "drop", loaded.vocabulary)

    return opened(found.train), opened(found.held_out)


def held_out_loss(learner: Learner, held_out: Demonstrations) -> dict[str, float]:
    """Return -1/N Σ log π(o_t) over the N trained tokens of held-out demonstrations; nothing where there are none."""
    prompts = [held_out[index] for index in range(len(held_out))]
    if not prompts:
        return {}
    batch = collate([Group(prompt, (held_out.completion(prompt),), (Score(0.0),)) for prompt in prompts])
    logprobs = learner.score(batch, frozenset({"old"})).old_logprobs
    assert logprobs is not None
    return {"eval/loss": float(-masked_mean(logprobs.double(), batch.loss_mask))}


def begun_at(config: RunConfig, start: Path) -> tuple[ModelConfig, LoraSettings]:
    """Return what loads the model of a warm start: its weights, or over the run's own its adapter."""
    if config.lora.adapted:
        return config.model, LoraSettings(path=str(start / ADAPTER))
    return config.model.model_copy(update={"path": str(start), "revision": None}), config.lora
