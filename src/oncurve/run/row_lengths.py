"""How long the rows of a run may be: the room for prompts, and the reach of rotary positions."""

from __future__ import annotations

from oncurve.config import RunConfig
from oncurve.data import Prompts
from oncurve.errors import ConfigError
from oncurve.models import CausalModel, LoadedModel
from oncurve.models.layers import reach_of, set_reach


def room_for_prompts(loaded: LoadedModel, config: RunConfig) -> int | None:
    """The tokens a prompt may have, so that its completion fits the model's context too; None: not known.

    Raises ConfigError where completions alone take it all.
    """
    row, longest = loaded.model.longest_row, config.rollout.max_new_tokens
    if row is not None and longest >= row:
        raise ConfigError(
            f"rollout.max_new_tokens: {longest} leaves no room for a prompt: the model takes rows of at most {row} "
            "tokens, prompt and completion together; lower it"
        )
    return None if row is None else row - longest


def fix_reach(model: CausalModel, config: RunConfig, *prompts: Prompts) -> None:
    """Tell a model whose rotation depends on the length of a row how long the rows of this run may be.

    That is the longest prompt (`data.max_prompt_tokens`, where it is set) and `rollout.max_new_tokens`, and never more
    than the model takes. Other models stay as they are, and no prompt is read for them.
    """
    if reach_of(model.module) is None:
        return
    longest = config.data.max_prompt_tokens
    if longest is None or any(some.teacher is not None for some in prompts):
        each = (some[index] for some in prompts for index in range(len(some)))
        longest = max((max(len(prompt.ids), len(prompt.teacher_ids or ())) for prompt in each), default=0)
    most = longest + config.rollout.max_new_tokens
    set_reach(model.module, min(most, model.longest_row or most))
