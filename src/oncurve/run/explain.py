"""The objective of a configuration as an equation with the numbers in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncurve.advantages import GAEAdvantage, GroupAdvantage, ProcessAdvantage
from oncurve.losses import (
    Clipped,
    Reinforce,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    Sequence,
    TokenMean,
    TokenSum,
)
from oncurve.rewards import RewardSettings
from oncurve.run.config import RunConfig
from oncurve.run.plan import Facts, plan

__all__ = ["Facts", "explain", "plan"]

KL_EQUATIONS = {
    "k1": "d",
    "abs": "|d|",
    "k2": "d²/2",
    "k3": "e⁻ᵈ + d - 1",
    "full": "Σ_v π_θ(v) (log π_θ(v) - log π_ref(v)), exact, over the vocabulary",
    "k1+": "d, with the gradient of d²/2",
    "abs+": "|d|, with the gradient of d²/2",
    "k3+": "e⁻ᵈ + d - 1, with the gradient of d²/2",
    "ratio_k3": "ρ (e⁻ᵈ + d - 1), with the gradient through ρ too",
}


def explain(config: RunConfig) -> str:
    """What is maximised, with the numbers in, and what each letter stands for. For example:

    J(θ) = 1/N Σ_i Σ_t { min(ρ_it Â_it, clip(ρ_it, 0.8, 1.2) Â_it) - 0.001 KL_it }
    """
    sums = _sums(config.token_weights)
    objective, objective_in_words = _described(OBJECTIVES, config.objective, config)
    kl = f" - {config.kl.coef:g} KL_it" if config.kl.loss_coef else ""
    entropy = (
        f" {'+' if config.entropy.coef > 0 else '-'} {abs(config.entropy.coef):g} H_it" if config.entropy.coef else ""
    )
    if config.kl_weights is None:
        equation, all_sums = f"{sums} {{ {objective}{kl}{entropy} }}", sums
    else:
        apart = _sums(config.kl_weights)
        equation, all_sums = f"{sums} {{ {objective}{entropy} }} - {config.kl.coef:g} · {apart} KL_it", sums + apart
    lines = [f"J(θ) = {equation}", ""]
    lines += _aligned(
        {
            **_sums_in_words(all_sums, config),
            **objective_in_words,
            **_advantage_in_words(config),
            "r_i": _rewards(config),
            **_kl_in_words(config),
            **({"H_it": "-Σ_v π_θ(v) log π_θ(v), the entropy of the token's distribution"} if entropy else {}),
            "π": f"softmax(logits / {config.rollout.temperature:g}), the distribution sampled from",
        }
    )
    return "\n".join(lines)


def _aligned(words: dict[str, str]) -> list[str]:
    width = max(len(letter) for letter in words)
    return [f"  {letter:<{width}}   {meaning}" for letter, meaning in words.items()]


def _described(
    table: dict[type, Callable[[Any, RunConfig], tuple[str, dict[str, str]]]], part: Any, config: RunConfig
) -> tuple[str, dict[str, str]]:
    """A part's entry in a table; of a component from elsewhere, its name and settings."""
    describe = table.get(type(part))
    return (_named(part), {}) if describe is None else describe(part, config)


def _named(part: Any) -> str:
    fields = ", ".join(f"{key}={getattr(part, key)!r}" for key in type(part).model_fields)
    return f"{type(part).__name__}({fields})"


def _sums(aggregation: Any) -> str:
    """The sums of an aggregation; of one from elsewhere, its name and settings."""
    describe = SUMS.get(type(aggregation))
    return _named(aggregation) if describe is None else describe(aggregation)


def _sums_in_words(sums: str, config: RunConfig) -> dict[str, str]:
    """What the letters of these sums stand for; nothing where they are not oncurve's own."""
    if "Σ_i" not in sums:
        return {}
    per_update = _per_update(config, "B" if "1/B" in sums or "1/(B" in sums else "")
    words = {"i, t": f"the {per_update}, and their {'|o_i| ' if '|o_i|' in sums else ''}tokens"}
    return {**words, "N": _tokens(config)} if "1/N" in sums else words


def _per_update(config: RunConfig, letter: str = "") -> str:
    count = config.completions_per_step / config.learner.minibatches
    exact = count == int(count)
    lead = f"{letter} {'=' if exact else '≈'} " if letter else "" if exact else "about "
    return f"{lead}{count:,.0f} completions of an update"


def _tokens(config: RunConfig) -> str:
    most = config.completions_per_step * config.rollout.max_new_tokens // config.learner.minibatches
    return f"the trained tokens of an update, at most {most:,}"


SUMS: dict[type, Callable[[Any], str]] = {
    TokenMean: lambda part: "1/N Σ_i Σ_t",
    TokenSum: lambda part: "Σ_i Σ_t",
    SeqMeanTokenSum: lambda part: "1/B Σ_i Σ_t",
    SeqMeanTokenMean: lambda part: "1/B Σ_i 1/|o_i| Σ_t",
    SeqMeanTokenSumNorm: lambda part: f"1/(B·{part.max_length:,}) Σ_i Σ_t",
}


def _surrogate(part: Clipped | Sequence, ratio: str, advantage: str) -> str:
    bounded = ratio if part.delta is None else f"min({ratio}, {part.delta:g})"
    clipped = f"clip({ratio}, {1 - part.clip_low:g}, {1 + part.clip_high:g})"
    term = f"min({bounded} {advantage}, {clipped} {advantage})"
    return term if part.dual_clip is None else f"max*({term}, {part.dual_clip:g} {advantage})"


def _clipped(part: Clipped, config: RunConfig) -> tuple[str, dict[str, str]]:
    words = {"ρ_it": f"π_θ/π_old of token t{_ratio_is_one(config)}"}
    return _surrogate(part, "ρ_it", "Â_it"), {**words, **_dual(part)}


def _sequence(part: Sequence, config: RunConfig) -> tuple[str, dict[str, str]]:
    words = {"ρ_i": f"Π_t π_θ/π_old, the ratio of the whole completion{_ratio_is_one(config)}"}
    return f"1/|o_i| {_surrogate(part, 'ρ_i', 'Â_i')}", {**words, **_dual(part)}


def _dual(part: Clipped | Sequence) -> dict[str, str]:
    return {} if part.dual_clip is None else {"max*": "the larger where the advantage is negative, else the first"}


def _ratio_is_one(config: RunConfig) -> str:
    return ", which is 1 here: one update per rollout" if config.updates_per_step == 1 else ""


OBJECTIVES: dict[type, Callable[[Any, RunConfig], tuple[str, dict[str, str]]]] = {
    Clipped: _clipped,
    Sequence: _sequence,
    Reinforce: lambda part, c: ("Â_it log π_θ", {"π_θ": "the policy's probability of token t"}),
}


def _advantage_in_words(config: RunConfig) -> dict[str, str]:
    advantage, words = _described(ADVANTAGES, config.advantage, config)
    return {"Â_it": advantage if words else f"{advantage}, for every token t of completion i", **words}


def _process_advantage(part: ProcessAdvantage, config: RunConfig) -> tuple[str, dict[str, str]]:
    pool = f"R the rewards of all steps in its group of {config.rollout.group_size}"
    where = "Σ_j r̃_ij over the steps j of completion i that end at token t or behind it"
    step = {"r_ij": "what the rewards say of step j of completion i"}
    if part.scale == "none":
        return where, {"r̃_ij": f"r_ij - mean R, {pool}", **step}
    std = f"std R{f' + {part.eps:g}' if part.eps else ''}"
    over = ", the std over the batch's steps" if part.scale == "batch" else ""
    return where, {"r̃_ij": f"(r_ij - mean R) / ({std}), {pool}{over} (ddof {part.ddof})", **step}


def _group_advantage(part: GroupAdvantage, config: RunConfig) -> tuple[str, dict[str, str]]:
    group = f"of its group of {config.rollout.group_size}"
    if part.scale == "none":
        return f"r_i - mean r, the mean {group}", {}
    std = f"std r {f'+ {part.eps:g}' if part.eps else ''}".strip()
    over = f"mean and std {group}" if part.scale == "group" else f"the mean {group}, the std of the batch"
    return f"(r_i - mean r) / ({std}), {over} (ddof {part.ddof})", {}


def _gae(part: GAEAdvantage, config: RunConfig) -> tuple[str, dict[str, str]]:
    decay = part.gamma * part.lam
    whitened = ", whitened over the batch" if part.scale == "batch" else ""
    beyond = (
        "V behind a completion that was cut off is the critic's" if part.bootstrap else "V = 0 behind the last token"
    )
    return f"Σ_l {decay:g}^l δ_i,t+l{whitened}", {
        "δ_it": f"r_it + {part.gamma:g} V_i,t+1 - V_it; {beyond}",
        "r_it": "r_i at the last token of completion i, 0 before (steps that were judged: at their ends)",
        "V_it": "the critic's value of what stands before token t",
    }


ADVANTAGES: dict[type, Callable[[Any, RunConfig], tuple[str, dict[str, str]]]] = {
    GAEAdvantage: _gae,
    GroupAdvantage: _group_advantage,
    ProcessAdvantage: _process_advantage,
}


def _kl_in_words(config: RunConfig) -> dict[str, str]:
    if not config.kl.coef:
        return {}
    if config.kl.where == "reward":
        where = f"a token's reward is less by {config.kl.coef:g} (log π_old - log π_ref)"
        steered = (
            "" if config.kl.target is None else f", the {config.kl.coef:g} steered to a KL of {config.kl.target:g}"
        )
        return {"KL": f"{where}{steered}; {_reference(config)}"}
    words = {"KL_it": f"{config.kl.estimator}: {KL_EQUATIONS[config.kl.estimator]}"}
    return (
        words
        if config.kl.estimator == "full"
        else {**words, "d": f"log π_θ - log π_ref of token t; {_reference(config)}"}
    )


def _reference(config: RunConfig) -> str:
    every, mixup = config.following.every, config.following.mixup
    given = "π_ref the policy as it was given"
    if not every:
        return given
    often = "before every step" if every == 1 else f"every {every:,} steps"
    if mixup == 1:
        return f"{given}, and copied anew {often}"
    return f"{given}, and {often} {mixup:g} π_θ + {1 - mixup:g} π_ref"


def _rewards(config: RunConfig) -> str:
    if not config.rewards:
        return "the reward (none is configured yet)"
    return " + ".join(_reward(part) for part in config.rewards if part.weight or len(config.rewards) == 1)


def _reward(part: RewardSettings) -> str:
    return f"{part.weight:g} {part.name or part.default_name}"
