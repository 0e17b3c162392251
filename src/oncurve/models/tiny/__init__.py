"""The shipped model: a small Llama with its own tokenizer, in Hugging Face form. How it was made: README.md beside it.

It solves about a third of the held-out problems of `oncurve.tasks.arithmetic` greedily, and GRPO mends that in two
minutes on two cores. `scripts/make_tiny_model.py` makes it anew.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """The directory that holds the model: give it to `from_pretrained`, or to a recipe as `model.path`."""
    return Path(str(files(__name__)))
