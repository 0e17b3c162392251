"""The objective of a configuration as an equation with its numbers filled in, composed of its components' terms."""

from __future__ import annotations

from oncurve.advantages import reads_rewards
from oncurve.components import Equation, described
from oncurve.config.sections import RunConfig
from oncurve.losses import corrects
from oncurve.report import rendered

AROUND = ("N", "G", "π_old", "π_ref", "π")
"""Letters that are explained where the equation or another letter's meaning mentions them, but for the last: always."""


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
    facts = {"corrected": corrects(config.correction), "reads_rewards": reads_rewards(config.advantage)}
    known = {"advantage": described(config.advantage), "legend": {**legend, **objective.legend}}
    lines = rendered("letters.j2", c=config, **known, **facts).splitlines()
    letters = dict(line.split(" :: ", 1) for line in lines)
    equation = Equation(term, {letter: letters[letter] for letter in letters if letter not in AROUND})
    letters = {each: letters[each] for each in letters if each not in AROUND[:-1] or equation.mentions(each)}
    count = config.completions_per_step / config.learner.minibatches
    exact = count == int(count)
    lead = f"B {'=' if exact else '≈'} " if equation.mentions("B") else "" if exact else "about "
    tokens = "|o_i| tokens" if equation.mentions("|o_i|") else "tokens"
    sums_over = {"i, t": f"the {lead}{count:,.0f} completions of an update, and their {tokens}"}
    letters = {**sums_over, **letters}
    width = max(len(letter) for letter in letters)
    return "\n".join(
        [f"J(θ) = {term}", "", *(f"  {letter:<{width}}   {meaning}" for letter, meaning in letters.items())]
    )
