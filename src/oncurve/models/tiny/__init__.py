"""The shipped model: a small Llama with its own tokenizer, in Hugging Face form. README.md says how it was made.

It solves about a quarter of the held-out problems of `oncurve.tasks.arithmetic` greedily, and GRPO raises that
to nearly all in two minutes on two cores. `scripts/make_tiny_model.py` makes it.
"""

from importlib.resources import files
from pathlib import Path


def path() -> Path:
    """The directory that holds the model: give it to `from_pretrained`, or to a recipe as `model.path`."""
    return Path(str(files(__name__)))
