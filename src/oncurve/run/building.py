"""The parts of a run, from its settings: learner and engine, prompts and demonstrations, teacher and episodes."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from oncurve.advantages import teacher_of
from oncurve.base.errors import ConfigError, DataError
from oncurve.batching import collate
from oncurve.components import lacking
from oncurve.config import RunConfig
from oncurve.data import (
    DemonstrationRows,
    Demonstrations,
    Prompts,
    Rows,
    filled_prompt,
    open_demonstrations,
    open_prompts,
    prompt_columns,
)
from oncurve.environments import Dialogue, EpisodeEngine, Host, asked, rehearsed
from oncurve.forecast import read_model_config, room_for_prompts, stored_tokenizer
from oncurve.learner import Learner, check_learner
from oncurve.models import CausalModel, LoadedModel, LoraSettings
from oncurve.models.layers import reach_of, set_reach, stated_positions
from oncurve.models.loading import ADAPTER, ModelConfig, has_template
from oncurve.ops import masked_mean
from oncurve.rewards import RewardSet
from oncurve.rollout import RolloutEngine
from oncurve.types import Group, Prompt, Score


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


def load_teacher(config: RunConfig, policy: LoadedModel) -> LoadedModel | None:
    """Return the teacher of `config.advantage`, in the policy's dtype; the policy itself where it teaches itself.

    None: the advantage needs no teacher. Raises ConfigError: its tokens are not the policy's. ModelError: it cannot be
    loaded.
    """
    teacher = teacher_of(config.advantage)
    if teacher is None:
        return None
    if teacher.path is None:
        return policy
    dtype = str(policy.dtype).removeprefix("torch.")
    loaded = config.model.model_copy(update={"path": teacher.path, "dtype": dtype, "revision": None}).build()
    problem = _other_tokens(policy, loaded)
    if problem is not None:
        raise ConfigError(f"advantage.teacher: {loaded.name} {problem}; choose a model of the policy's family")
    return loaded


def _other_tokens(policy: LoadedModel, teacher: LoadedModel) -> str | None:
    """Return how the teacher's tokens differ from the policy's; None: it has all of them, by the same names."""
    mine, theirs = _names(policy.tokenizer), _names(teacher.tokenizer)
    for name, number in sorted(mine.items(), key=lambda token: token[1]) if mine and theirs else ():
        if theirs.get(name) != number:
            other = theirs.get(name)
            has = "has no such token" if other is None else f"has it as {other}"
            return f"has another tokenizer than the policy: token {number} of the policy is {name!r}, and it {has}"
    least, rows = policy.vocabulary, teacher.vocabulary
    if least is not None and rows is not None and rows < least:
        return f"has {rows:,} tokens, and the policy can sample {least:,}"
    return None


def _names(tokenizer: Any) -> dict[str, int]:
    """Return a tokenizer's tokens by name, the added ones too; empty where there is none."""
    found: dict[str, int] = {} if tokenizer is None else tokenizer.get_vocab()
    return found


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
    return check_learner(config.cluster.learner(make, models))


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
    given = engine, host, dialogue, config.rollout, config.run.seed, keep, loaded.model.longest_row
    if not host.settings.programs:
        return EpisodeEngine(*given)
    from oncurve.environments import Programs  # here: its packages are an extra

    return Programs(*given)


def engine_maker(config: RunConfig, loaded: LoadedModel) -> Callable[[], RolloutEngine]:
    """Return a function that makes the engine of `[engine]`."""
    return partial(config.engine.build, config.rollout, loaded.tokenizer, loaded.eos_ids, config.run.seed)
