"""oncurve, through the composition root every run goes through; what is measured is wrapped from outside."""

from __future__ import annotations

from bench.cases import Case
from bench.worker import Channel

__all__ = ["serve"]


def serve(case: Case, channel: Channel) -> None:
    """Take a training step per command."""
    raise NotImplementedError
