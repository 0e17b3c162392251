"""The worker's side of rewards that are a regular expression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oncurve.rewards.accepts import Accepts


class Matcher:
    """1.0 where `pattern` is found in a completion (`mode` "search") or is all of it ("full"), else 0.0."""

    about = Accepts(needs=(("completion",),)).as_json()

    def __init__(self, pattern: str, mode: str) -> None:
        compiled = re.compile(pattern)
        self._match = compiled.search if mode == "search" else compiled.fullmatch

    def __call__(self, item: Mapping[str, Any]) -> float:
        """Return 1.0 or 0.0 for `{"completion": text}`."""
        return float(self._match(item["completion"]) is not None)
