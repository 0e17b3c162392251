"""The plan in words, and the objective as an equation.

The plan says what a run will do, a sentence a line, and what looks like a mistake; its parts are templates. The
equation has its numbers filled in, and is composed of the components' terms.
"""

import ast
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from oncurve.advantages import needs_of, reads_rewards, teacher_of
from oncurve.base.errors import ConfigError, suggest
from oncurve.components import Component, Equation, described, kind_of
from oncurve.config.rules.combinations import inert, missing
from oncurve.config.sections import SECTIONS, RunConfig
from oncurve.evaluate import NO_VERIFIER
from oncurve.kl import KL_KINDS
from oncurve.learner import warmup_of
from oncurve.losses import (
    AGGREGATION_KINDS,
    OBJECTIVE_KINDS,
    corrects,
    corrects_for_sampler,
    expected_aggregation,
    grows_with_batch,
    has_importance_ratio,
    objective_note,
)
from oncurve.metrics import METRICS
from oncurve.report import rendered
from oncurve.rewards import REWARD_KINDS, verifier_of
from oncurve.tracking import TRACKER_KINDS

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
    legend_lines = [f"  {letter:<{width}}   {meaning}" for letter, meaning in letters.items()]
    return "\n".join([f"J(θ) = {term}", "", *legend_lines])


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
        epochs=lambda number: "1 epoch" if number == 1 else f"{number:.3g} epochs",
        name_of=lambda path: Path(path).name,
        repr=repr,
    )
    paragraphs = (" ".join(map(str.strip, each.strip().split("\n"))) for each in text.split("\n\n"))
    return [sentence for sentence in paragraphs if sentence]


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


NAMES_OF: dict[str, Iterable[str]] = {"estimator": KL_KINDS, "aggregation": AGGREGATION_KINDS, "to": TRACKER_KINDS}
"""The names that a key of type string may have."""

NAMES = {int: "whole number", float: "number", str: "string", bool: "true, false", type(None): "none", Any: "anything"}
KINDS: dict[str, Mapping[str, type[Component]]] = {name: section.kinds for name, section in SECTIONS.items()}
KINDS["rewards"] = REWARD_KINDS


def explain_key(key: str) -> str | None:
    """Return the lines about `section.key`, about all keys of a section, or about a metric; None: there is no such one.

    A key that several kinds of the section have is explained once for all kinds that agree. Raises ConfigError: the
    section has no such key, or there is no such metric.
    """
    if (metric := METRICS.get(key)) is not None:
        parts = {"meaning": metric.meaning, "formula": metric.formula, "advice": metric.advice}
        return "\n".join([key, *(line for label, text in parts.items() for line in _line(label, text))])
    section, _, name = key.partition(".")
    name = name.rpartition(".")[2] if section == "rewards" else name
    found: dict[str, list[str]] = {}
    for kind, cls in KINDS.get(section, {}).items():
        for field in cls.model_fields:
            if name in ("", field):
                found.setdefault("\n".join(_lines(f"{section}.{field}", cls, field)), []).append(kind)
    if section in SECTIONS and SECTIONS[section].default is not None and name in ("", "kind"):
        kinds = names(SECTIONS[section].kinds)
        found[f"{section}.kind\n  default  {SECTIONS[section].default}\n  values   {kinds}, or a class by path"] = []
    fields = [f"{section}.{field}" for cls in KINDS.get(section, {}).values() for field in cls.model_fields]
    near = "" if found else suggest(key, fields or METRICS)
    if not found and (fields or (near and "/" in key)):
        raise ConfigError(f"{key}: there is no such key{near}")
    several = len(KINDS.get(section, ())) > 1
    of = (f"\n  kinds    {', '.join(kinds)}" if several and kinds else "" for kinds in found.values())
    return "\n".join(text + of_kinds for text, of_kinds in zip(found, of, strict=True)) or None


def _lines(key: str, cls: type[Component], name: str) -> Iterator[str]:
    yield key
    for label, text in zip(("default", "values", "meaning"), key_facts(cls, name), strict=True):
        yield from _line(label, text)


def _line(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, 112, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11)


def key_facts(cls: type[Component], name: str) -> tuple[str, str, str]:
    """Return the default, the values and the meaning of a field, as Markdown."""
    field = cls.model_fields[name]
    values = names(NAMES_OF[name]) if name in NAMES_OF else _values(field.annotation)
    if name == "to":
        values = f"list of {values}, or classes by path"
    return _default(field), values, meanings(cls)[name]


def names(kinds: Iterable[str]) -> str:
    """Return the names as a list in Markdown."""
    return ", ".join(f"`{kind}`" for kind in kinds)


@functools.cache
def meanings(cls: type[Component]) -> dict[str, str]:
    """Return the string under each field of a class, or of the base that declares it last. Raises KeyError later:
    a field without one has no entry.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(Component)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, said in itertools.pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            match field, said:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{list(value) if isinstance(value, tuple) else format(value, 'g') if isinstance(value, float) else value}`"


def _values(annotation: Any) -> str:
    """Return the type in words."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f'`"{choice}"`' if isinstance(choice, str) else f"`{choice}`" for choice in inner)
    if origin is typing.Annotated:
        return _values(inner[0])
    if origin in (tuple, list):
        kinds = list(dict.fromkeys(_values(each) for each in inner if each is not Ellipsis))
        return f"list of {' or '.join(kinds)}"
    if origin is dict:
        return "table"
    if inner and (origin is typing.Union or str(origin) == "<class 'types.UnionType'>"):
        return " or ".join(_values(each) for each in inner)
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())
