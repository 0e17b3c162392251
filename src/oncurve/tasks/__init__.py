"""The built-in tasks: generated problems, a checker of answers, a checker of steps."""

from collections.abc import Callable

from oncurve.tasks.arithmetic import check_steps, is_correct, read_question, row
from oncurve.tasks.reasoning_gym import reasoning_dataset

KINDS: dict[str, Callable[..., dict[str, str]]] = {"arithmetic": row}
"""By a task's name: the row of a split, a number and the seed of training problems."""
