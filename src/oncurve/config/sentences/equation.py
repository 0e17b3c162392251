"""The objective of a configuration as an equation with its numbers filled in, composed of its components' terms."""

from __future__ import annotations

from oncurve.advantages import reads_rewards
from oncurve.components import Equation, described
from oncurve.config.sections import RunConfig
from oncurve.losses import corrects


def explain(config: RunConfig) -> str:
    """Return what is maximised, with numbers filled in, and the meaning of each letter. For example:

    J(θ) = 1/N Σ_i Σ_t { min(ρ_it Â_it, clip(ρ_it, 0.8, 1.2) Â_it) - 0.001 KL_it }
    """
    sums, objective = described(config.token_weights), described(config.objective)
    if corrects(config.correction):
        weight = described(config.correction)
        objective = Equation(f"{weight.term} {objective.term}", {**weight.legend, **objective.legend})
    kl = f" - {config.kl.coef:g} KL_it" if config.kl.loss_coef else ""
    coef, target = config.entropy.coef, config.entropy.target
    entropy = f" {'+' if coef > 0 else '-'} {abs(coef):g} H_it" if coef else ""
    entropy = entropy if target is None else " + α H_it"
    of_terms = [(kl, config.kl.aggregation), (entropy, config.entropy.aggregation)]
    within = "".join(each for each, own in of_terms if not own)
    term, legend = f"{sums.term} {{ {objective.term}{within} }}", dict(sums.legend)
    if config.apart_weights is not None:
        apart = described(config.apart_weights)
        parts = [each.rpartition(" ") for each, own in of_terms if own and each]
        term += "".join(f"{coefficient} · {apart.term} {letter}" for coefficient, _, letter in parts)
        legend |= apart.legend
    legend |= {**objective.legend, **_advantage(config), "r_i": _rewards(config), **_kl(config)}
    if entropy:
        if target is not None:
            change = f"{config.entropy.step:g} per step"
            legend["α"] = (
                f"from {coef:g}, {change} more while the entropy is below {target:g} nats, less and unused above"
            )
        legend["H_it"] = "-Σ_v π_θ(v) log π_θ(v), the entropy of the token's distribution"
    equation = Equation(term, legend)
    letters = {**_counts(config, equation), **legend, **_policies(config, equation)}
    width = max(len(letter) for letter in letters)
    return "\n".join(
        [f"J(θ) = {term}", "", *(f"  {letter:<{width}}   {meaning}" for letter, meaning in letters.items())]
    )


def _counts(config: RunConfig, equation: Equation) -> dict[str, str]:
    """Return the letters of the sums that the equation mentions."""
    count = config.completions_per_step / config.learner.minibatches
    exact = count == int(count)
    lead = f"B {'=' if exact else '≈'} " if equation.mentions("B") else "" if exact else "about "
    tokens = "|o_i| tokens" if equation.mentions("|o_i|") else "tokens"
    most = config.completions_per_step * config.rollout.max_new_tokens // config.learner.minibatches
    letters = {
        "N": f"the trained tokens of an update, at most {most:,}",
        "G": f"{config.rollout.group_size}, the completions of a prompt",
    }
    return {
        "i, t": f"the {lead}{count:,.0f} completions of an update, and their {tokens}",
        **{letter: meaning for letter, meaning in letters.items() if equation.mentions(letter)},
    }


def _policies(config: RunConfig, equation: Equation) -> dict[str, str]:
    """Return the distributions that the equation mentions."""
    same = ", here π_θ itself, so that ratios are 1: one update per rollout" if config.stays_at_1 else ""
    old = (
        "the policy before a step's first update"
        if corrects(config.correction)
        else "the policy that sampled the completions"
    )
    cut = config.rollout.truncation
    kept = f", renormalised over the tokens that {cut} kept of the sampler's" if cut else ""
    letters = {"π_old": f"{old}{same}", "π_ref": _reference(config)}
    return {
        **{letter: meaning for letter, meaning in letters.items() if equation.mentions(letter)},
        "π": f"softmax(logits / {config.rollout.temperature:g}){kept}, the distribution sampled from",
    }


def _advantage(config: RunConfig) -> dict[str, str]:
    advantage = described(config.advantage)
    return {
        "Â_it": advantage.term if advantage.legend else f"{advantage.term}, for every token t of completion i"
    } | dict(advantage.legend)


def _kl(config: RunConfig) -> dict[str, str]:
    if not config.kl.coef:
        return {}
    if config.kl.where == "reward":
        target, coef = config.kl.target, f"{config.kl.coef:g}"
        steered = "" if target is None else f", the {coef} steered to a KL of {target:g}"
        return {"KL": f"a token's reward is less by {coef} (log π_old - log π_ref){steered}"}
    estimator = config.kl.chosen.describe()
    return {"KL_it": f"{config.kl.estimator}: {estimator.term}", **estimator.legend}


def _reference(config: RunConfig) -> str:
    every, mixup_alpha = config.following.every, config.following.mixup_alpha
    given = "the policy as it was given"
    if not every:
        return given
    often = "before every step" if every == 1 else f"every {every:,} steps"
    if mixup_alpha == 1:
        return f"{given}, and a copy of π_θ made {often}"
    return f"{given}, and {often} {mixup_alpha:g} π_θ + {1 - mixup_alpha:g} π_ref"


def _rewards(config: RunConfig) -> str:
    if not config.rewards and not reads_rewards(config.advantage):
        return "no reward: the advantage reads none"
    if not config.rewards:
        return "the reward (none is configured yet)"
    counted = [part for part in config.rewards if part.weight or len(config.rewards) == 1]
    return " + ".join(f"{part.weight:g} {part.name or part.default_name}" for part in counted)
