"""The learner and the engine of a run, from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, DataError
from oncurve.components import lacking
from oncurve.config import RunConfig
from oncurve.data import Prompts, Rows, filled_prompt, prompt_columns
from oncurve.environments import Dialogue, EpisodeEngine, Host, asked, rehearsed
from oncurve.learner import Learner, check_learner
from oncurve.models import LoadedModel
from oncurve.models.loading import has_template
from oncurve.rewards import RewardSet
from oncurve.rollout import RolloutEngine
from oncurve.types import Prompt


def build_learner(
    config: RunConfig, loaded: LoadedModel, reference: LoadedModel | None = None, teacher: LoadedModel | None = None
) -> Learner:
    """Return the learner of `[learner]`, on the ranks of `[cluster]`.

    Raises ConfigError: what its settings build is none.
    """
    make = partial(
        config.learner.build,
        loaded.model,
        config.policy_term,
        config.regularizer,
        critic=config.critic,
        temperature=1.0 if config.demonstrates else config.rollout.temperature,
        total_updates=config.run.steps * config.updates_per_step,
        reference=None if reference is None else reference.model,
        teacher=None if teacher is None else teacher.model,
        dtype=loaded.dtype,
        tokenizer=loaded.tokenizer,
    )
    models = [each.model for each in (loaded, reference, teacher) if each is not None]
    learner = config.cluster.learner(make, models)
    return check_learner(learner)


def build_engine(config: RunConfig, loaded: LoadedModel) -> RolloutEngine:
    """Return the engine of `[engine]`, in this process alone. Raises ConfigError: what its settings build is not
    one.
    """
    engine = engine_maker(config, loaded)()
    lacks = lacking(engine, ("exact", "follow", "generate", "measured", "worked", "close"), "rollout engine")
    if lacks is not None:
        raise ConfigError(f"engine.kind: {lacks}; derive it from oncurve.rollout.EngineBase")
    if engine.exact != config.engine.exact:
        stated = f"its settings say exact = {config.engine.exact}, and the engine says {engine.exact}"
        raise ConfigError(f"engine.kind: {stated}; the plan and the maths need the same")
    return engine


def host_of(config: RunConfig, base: Path | None) -> Host | None:
    """Return what plays the episodes of `[environment]`; None: completions are of one turn."""
    settings: Any = config.environment
    return Host(settings, base) if settings.present else None


def first_episode(config: RunConfig, host: Host, rows: Rows, tokenizer: Any, room: int | None) -> list[tuple[str, str]]:
    """Play a turn for the first row, without the model; returns (role, text) of all that was said.

    Raises ConfigError: the environment fails, or gives no reward and none is set; programs have no chat, or tools
    cannot be shown. ModelError: the chat template shows no tools. DataError: a row names no environment; with what the
    environment adds the prompt has more tokens than `room`.
    """
    row, place = rows.items[0], rows.place(rows.numbers[0])
    prompt = None if tokenizer is None else Prompts(rows, config.data, tokenizer)[0]
    _check_rewards_and_rows(config, host, rows)
    if prompt is not None:
        _check_chat(config, host, prompt, tokenizer)

    def check(said: Any) -> None:
        if prompt is None:
            return
        dialogue = Dialogue(tokenizer, (), config.data.chat_template_kwargs)
        tokens = len(dialogue.opened(prompt, said, host.tools_of(row)).ids)
        if room is not None and tokens > room:
            fix = "let it say less, or lower rollout.max_new_tokens"
            raise DataError(f"{place}: with what the environment says it has {tokens} tokens, and {room} fit; {fix}")

    given = filled_prompt(row, config.data) if prompt is None else asked(prompt)
    return rehearsed(host, prompt_columns(row, config.data), given, check)


def _check_rewards_and_rows(config: RunConfig, host: Host, rows: Rows) -> None:
    if not host.about().get("scores", True) and all(reward.scores_turns for reward in config.rewards):
        raise ConfigError(f"rewards: {host.settings.title} has no get_reward; add a reward, or get_reward to it")
    tools = host.about().get("tools", ())
    for row, number in zip(rows.items, rows.numbers, strict=True) if isinstance(tools, Mapping) else ():
        if str(row.get("environment")) not in tools:
            known = ", ".join(map(repr, tools))
            held = f"the column 'environment' holds {row.get('environment')!r}, and the environments are {known}"
            raise DataError(f"{rows.place(number)}: {held}")


def _check_chat(config: RunConfig, host: Host, prompt: Prompt, tokenizer: Any) -> None:
    _check_template(host, tokenizer)
    if shows_tools(host):
        if prompt.messages is None:
            plain = "environment.calls and rollout.stop for calls in plain text"
            fix = f"use an instruction-tuned model and prompts that are messages, or {plain}"
            raise ConfigError(f"environment: a chat template shows its tools, and the prompts are no chat; {fix}")
        Dialogue(tokenizer, (), config.data.chat_template_kwargs).check_tools()


def _check_template(host: Host, tokenizer: Any) -> None:
    if host.settings.programs and not has_template(tokenizer):
        fix = "use an instruction-tuned model"
        raise ConfigError(f"environment: programs speak in chats, and the model has no chat template; {fix}")


def shows_tools(host: Host) -> bool:
    """Return whether the chat template shows tools to the model."""
    tools = host.about().get("tools", ())
    return bool(any(tools.values()) if isinstance(tools, Mapping) else tools) and not host.settings.call_forms


def with_environment(
    config: RunConfig, engine: RolloutEngine, loaded: LoadedModel, rewards: RewardSet, host: Host | None
) -> RolloutEngine:
    """Return the engine whose completions are episodes that `host` plays; `engine` itself without one.

    Raises ConfigError: the model has no tokenizer.
    """
    if host is None:
        return engine
    if loaded.tokenizer is None:
        raise ConfigError("environment: what it says is text, and the model has no tokenizer; give it one")
    _check_template(host, loaded.tokenizer)
    dialogue = Dialogue(loaded.tokenizer, loaded.eos_ids, config.data.chat_template_kwargs, host.settings.call_forms)
    keep = any("environments" in each.accepts.takes for each in rewards.components)
    given = engine, host, dialogue, config.rollout, config.run.seed, keep
    if not host.settings.programs:
        return EpisodeEngine(*given)
    from oncurve.environments import Programs  # here: its packages are an extra

    return Programs(*given, longest=loaded.model.longest_row)


def engine_maker(config: RunConfig, loaded: LoadedModel) -> Callable[[], RolloutEngine]:
    """Return a function that makes the engine of `[engine]`."""
    return partial(config.engine.build, config.rollout, loaded.tokenizer, loaded.eos_ids, config.run.seed)
