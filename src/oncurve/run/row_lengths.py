"""The most tokens of a run's rows: the room for prompts, and the reach of rotary positions."""

from __future__ import annotations

from typing import Any

from oncurve.config import RunConfig
from oncurve.data import Prompts, Rows, open_prompts
from oncurve.forecast import read_model_config, room_for_prompts, stored_tokenizer
from oncurve.models import CausalModel, LoadedModel
from oncurve.models.layers import reach_of, set_reach, stated_positions


def read_tokenizer(config: RunConfig, loaded: LoadedModel | None = None) -> tuple[Any, int | None]:
    """Return the policy's tokenizer, and the room for prompts as `room_for_prompts` has it: of the `loaded` model, or
    without its weights.

    Raises ModelError: there is no such model. ConfigError: completions alone take the model's context.
    """
    if loaded is not None:
        return loaded.tokenizer, room_for_prompts(loaded.model.longest_row, config)
    tokenizer = stored_tokenizer(config)
    found = read_model_config(config.model.source(weights=False), config.model.trust_remote_code)
    positions = stated_positions(found)
    return tokenizer, room_for_prompts(None if positions is None else positions + 1, config)


def opened(rows: Rows, config: RunConfig, loaded: LoadedModel, template: str | None = None) -> Prompts:
    """Return the prompts of `rows` as the loaded model reads them; `template`: that of a teacher.

    Raises DataError: a row makes no prompt, or one that is too long.
    """
    room = room_for_prompts(loaded.model.longest_row, config)
    return open_prompts(rows, config.data, loaded.tokenizer, room, loaded.vocabulary, template)


def fix_reach(model: CausalModel, config: RunConfig, *prompts: Prompts, demonstration: int = 0) -> None:
    """Tell a model whose rotation depends on the length of a row how long the rows of this run may be.

    That is the longest prompt (`data.max_prompt_tokens`, where it is set) and the longest completion, or the longest
    `demonstration`, and never more than the model takes. Other models stay as they are, and no prompt is read for them.
    """
    if reach_of(model.module) is None:
        return
    longest = config.data.max_prompt_tokens
    if longest is None or any(some.teacher is not None for some in prompts):
        each = (some[index] for some in prompts for index in range(len(some)))
        longest = max((max(len(prompt.ids), len(prompt.teacher_ids or ())) for prompt in each), default=0)
    most = max(longest + config.longest_completion, demonstration)
    set_reach(model.module, min(most, model.longest_row or most))
