"""The plan in words, and the objective as an equation.

The plan says what a run will do, a sentence a line, and what looks like a mistake; its parts are templates. The
equation has its numbers filled in, and is composed of the components' terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oncurve.advantages import needs_of, reads_rewards, teacher_of
from oncurve.components import Equation, described, kind_of
from oncurve.config.rules.combinations import inert, missing
from oncurve.config.sections import RunConfig
from oncurve.evaluate import NO_VERIFIER
from oncurve.learner import warmup_of
from oncurve.losses import (
    OBJECTIVE_KINDS,
    corrects,
    corrects_for_sampler,
    expected_aggregation,
    grows_with_batch,
    has_importance_ratio,
    objective_note,
)
from oncurve.report import rendered
from oncurve.rewards import verifier_of

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


@dataclass(frozen=True)
class AdapterFacts:
    """The adapter of a loaded model. Example: `AdapterFacts(16, 32.0, 168, 8_798_208, 17_596_416)`.

    layers        that it is on
    parameters    that are trained
    nbytes        of a frozen copy of it
    """

    rank: int
    alpha: float
    layers: int
    parameters: int
    nbytes: int


@dataclass(frozen=True)
class RunFacts:
    """Facts of the loaded data and model; None: not loaded yet. Example: `RunFacts(rows=7473, device="cpu")`.

    rows, eval_rows, dropped   training prompts, held-out prompts, prompts left out as too long.
    distinct, eval_distinct    how many of the former two are different.
    truncated                  prompts cut to their last tokens, as too long.
    parameters                 of the model.
    reference_bytes            what the frozen reference takes.
    reference_given            whether it is a model of its own, not a copy of the policy.
    teacher_bytes              what a distillation's frozen teacher takes.
    kept                       whether the run has a directory.
    device, path_reason        where the model runs; which path it takes and why.
    precision                  what it computes in, and why.
    adapter                    what is trained instead of the model's weights.
    """

    rows: int | None = None
    eval_rows: int | None = None
    distinct: int | None = None
    eval_distinct: int | None = None
    dropped: int = 0
    truncated: int = 0
    parameters: int | None = None
    reference_bytes: int | None = None
    reference_given: bool = False
    teacher_bytes: int | None = None
    kept: bool = True
    device: str | None = None
    path_reason: str | None = None
    precision: str | None = None
    adapter: AdapterFacts | None = None


def plan(config: RunConfig, facts: RunFacts | None = None) -> list[str]:
    """Return the plan, one sentence per line; then what looks like a mistake, each line beginning with `note: `."""
    known = facts or RunFacts()
    noted = config.over(10**12)  # an unknown number of steps is more than any setting
    return (
        sentences_of("plan.j2", config, known)
        + [f"note: {text}" for text in [*sentences_of("notes.j2", noted, known), *inert(config)]]
        + [f"missing: {hole.replace(' missing;', '')}" for hole in missing(config, known.parameters is not None)]
    )


def sentences_of(template: str, config: RunConfig, facts: RunFacts) -> list[str]:
    """Return the paragraphs of a template about a configuration (`c`) and the facts of its run (`f`), a line each."""
    adapter = "" if facts.adapter is None else f" ({facts.adapter.nbytes / 1e6:,.3g} MB)"
    text = rendered(
        template,
        c=config,
        f=facts,
        has_ratio=has_importance_ratio(config.objective),
        corrected=corrects(config.correction),
        corrects_for_sampler=corrects_for_sampler(config.objective),
        objective=kind_of(config.objective, OBJECTIVE_KINDS),
        objective_note=objective_note(config.objective),
        expected_aggregation=expected_aggregation(config.objective),
        grows_with_batch=grows_with_batch,
        needs=needs_of(config.advantage),
        reads_rewards=reads_rewards(config.advantage),
        critic_warmup=warmup_of(config.critic),
        verifier=verifier_of(config.rewards, config.eval.verifier),
        no_verifier=NO_VERIFIER,
        teacher=teacher_of(config.advantage),
        adapter_copy=f"a frozen copy of the adapter{adapter}",
        limits=[count for count in (facts.eval_rows, config.eval.limit) if count is not None],
        described=described,
        count=_count,
        epochs=_epochs,
        name_of=lambda path: Path(path).name,
        repr=repr,
    )
    paragraphs = (" ".join(map(str.strip, each.strip().split("\n"))) for each in text.split("\n\n"))
    return [sentence for sentence in paragraphs if sentence]


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _epochs(number: float) -> str:
    return "1 epoch" if number == 1 else f"{number:.3g} epochs"
