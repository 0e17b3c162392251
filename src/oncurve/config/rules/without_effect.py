"""Keys without effect: refused where one layer sets them with their cause, named by the plan where several do."""

from __future__ import annotations

from collections.abc import Sequence

from oncurve.base.errors import refuse
from oncurve.config.layers import Layer
from oncurve.config.rules.combinations import inert_rules
from oncurve.config.sections import RunConfig


def check_inert(config: RunConfig, layers: Sequence[Layer]) -> None:
    """Raises ConfigError where one layer sets both a key and what makes it meaningless.

    Across layers it is no error: `kl.coef=0` on the command line switches off what a recipe has set up.
    """
    said = []
    keys_of = [
        (layer, {".".join(map(str, path)) for path, _ in layer.assignments}) for layer in layers if not layer.complete
    ]
    for rule in inert_rules(config):
        decided_by = [
            next((layer for layer, keys in reversed(keys_of) if cause in keys), None) for cause in rule.causes
        ]
        for layer, keys in keys_of:
            if any(layer is decider for decider in decided_by):
                said += [f"{key}: set to no effect: {rule.reason} ({layer.name})" for key in rule.keys if key in keys]
    refuse(said)


def inert(config: RunConfig) -> list[str]:
    """Return a line for each key that is not at its default and has no effect."""
    return [
        f"{key} has no effect: {rule.reason}"
        for rule in inert_rules(config)
        for key in rule.keys
        if not _is_default(config, *key.split("."))
    ]


def _is_default(config: RunConfig, section: str, name: str) -> bool:
    """Return whether a key has its default, or is none of the section's kind."""
    part = getattr(config, section)
    field = type(part).model_fields.get(name)
    return field is None or getattr(part, name) == field.default
