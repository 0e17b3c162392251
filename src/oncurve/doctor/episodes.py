"""Rules of episodes: endings at a limit, tools that fail, turns that are never rewarded, environments that break."""

from __future__ import annotations

from collections.abc import Mapping

from oncurve.doctor.case import Case
from oncurve.doctor.rule import Rule

MANY, FAILING, BROKEN = 0.5, 0.8, 0.1
"""The shares of episodes at the limit, of failing calls, of episodes without a reward, from which a rule holds."""


def _turns(case: Case) -> str | None:
    share = case.mean("turns/limit")
    if share is None or share < MANY:
        return None
    return f"{share:.0%} of the episodes are not over when they have had the most turns (environment.max_turns)"


def _tools(case: Case) -> str | None:
    calls, errors = case.mean("tools/calls"), case.mean("tools/errors")
    if not calls or errors is None or errors < FAILING * calls:
        return None
    return f"{errors / calls:.0%} of the tool calls get an error"


def _no_calls(case: Case) -> str | None:
    calls = case.mean("tools/calls")
    return "No completion has a tool call that can be read" if calls == 0 else None


def _rewards(case: Case) -> str | None:
    advantage = case.settings.get("advantage", {})
    by_turn = isinstance(advantage, Mapping) and advantage.get("kind") == "process"
    return "No turn has had a reward other than 0" if by_turn and case.mean("turns/rewarded") == 0 else None


def _faults(case: Case) -> str | None:
    faults, invalid = case.mean("environment/faults"), case.mean("completions/invalid")
    if not faults or not invalid or faults < BROKEN * invalid:
        return None
    return f"In {faults:.3g} episodes per step the environment failed, and they are not trained"


EPISODE_RULES = (
    Rule(
        "environment-fails",
        "alarm",
        _faults,
        "An episode whose environment raises, hangs or dies is left out: what is left may be only the easy ones.",
        (
            "Read `fault` of such completions in rollouts/: it is the last line of the error.",
            "Where it is a time limit, raise environment.timeout_seconds, or make the environment faster.",
        ),
    ),
    Rule(
        "tools-fail",
        "alarm",
        _tools,
        "A call that always fails teaches the policy to make none.",
        (
            "Read the tools' results in rollouts/: is it the tool, or arguments that the policy writes wrongly?",
            "Say in the tool's docstring, and in the prompt, what it takes; an example helps.",
        ),
        ("tools",),
    ),
    Rule(
        "no-tool-calls",
        "hint",
        _no_calls,
        "A tool that is never called cannot be learned, as no completion shows that it helps.",
        (
            "Look at a prompt (`oncurve data check`): does the chat template show the tools?",
            "Read some completions: are there calls in another form than the tokenizer's response template reads?",
            "Ask for the tool in the prompt, or begin with a warm start ([sft]) on episodes that use it.",
        ),
        ("tools",),
    ),
    Rule(
        "turns-run-out",
        "hint",
        _turns,
        "An episode that is ended by its number of turns has seldom reached what is rewarded.",
        (
            "Read some episodes in rollouts/: if they get somewhere, raise environment.max_turns and "
            "rollout.max_new_tokens.",
            "If they repeat themselves, let the environment say so, or end them.",
        ),
        ("cut",),
    ),
    Rule(
        "no-turn-rewarded",
        "hint",
        _rewards,
        "With advantage.kind=process a turn is credited by its own reward, and here only outcomes differ.",
        ("Give rewards per turn in the environment, or use advantage.kind=grpo, which needs none.",),
    ),
)
