"""Rules of episodes: endings at a limit, tools that fail, turns that are never rewarded, environments that break."""

from __future__ import annotations

from collections.abc import Mapping

from oncurve.doctor.case import Case

MANY, FAILING, BROKEN = 0.5, 0.8, 0.1
"""The shares of episodes at the limit, of failing calls, of episodes without a reward, from which a rule holds."""


def turns_run_out(case: Case) -> str | None:
    share = case.mean("turns/limit")
    if share is None or share < MANY:
        return None
    return f"{share:.0%} of the episodes are not over when they have had the most turns (environment.max_turns)"


def tools_fail(case: Case) -> str | None:
    calls, errors = case.mean("tools/calls"), case.mean("tools/errors")
    if not calls or errors is None or errors < FAILING * calls:
        return None
    return f"{errors / calls:.0%} of the tool calls get an error"


def no_tool_calls(case: Case) -> str | None:
    calls = case.mean("tools/calls")
    return "No completion has a tool call that can be read" if calls == 0 else None


def no_turn_rewarded(case: Case) -> str | None:
    advantage = case.settings.get("advantage", {})
    by_turn = isinstance(advantage, Mapping) and advantage.get("kind") == "process"
    return "No turn has had a reward other than 0" if by_turn and case.mean("turns/rewarded") == 0 else None


def environment_fails(case: Case) -> str | None:
    faults, invalid = case.mean("environment/faults"), case.mean("completions/invalid")
    if not faults or not invalid or faults < BROKEN * invalid:
        return None
    return f"In {faults:.3g} episodes per step the environment failed, and they are not trained"
