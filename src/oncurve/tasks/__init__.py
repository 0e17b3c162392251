"""The built-in tasks: generated problems, a checker of answers, a checker of steps."""

from oncurve.tasks.arithmetic import (
    ArithmeticTask as ArithmeticTask,
    Problem as Problem,
    check_steps as check_steps,
    is_correct as is_correct,
    read_question as read_question,
)
from oncurve.tasks.reasoning_gym import reasoning_dataset as reasoning_dataset

KINDS: dict[str, type] = {"arithmetic": ArithmeticTask}
