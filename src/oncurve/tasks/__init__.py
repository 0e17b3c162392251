"""The built-in tasks: generated problems, a checker of answers, a checker of steps."""

from oncurve.tasks.arithmetic import ArithmeticTask, Problem

__all__ = ["KINDS", "ArithmeticTask", "Problem"]

KINDS: dict[str, type] = {"arithmetic": ArithmeticTask}
