"""Metrics of made steps by short names."""

from collections.abc import Mapping
from typing import Any

from fakes.tables import table

SHORT = table("metric_names", "short")


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {SHORT.get(name, name): value for name, value in values.items()}
