"""TRL's names, defaults and rewards as `oncurve.compat.trl` has them, against the installed TRL.

    python -m bench.compare.trl_defaults

Compared are every field of `GRPOConfig` with its default, the values that TRL computes from others, the arguments of
`GRPOTrainer`, and the reward functions of `trl.rewards` on cases. Exit code 1 where something differs.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import tempfile
from collections.abc import Iterator
from enum import Enum
from typing import Any

__all__ = ["differences", "main"]

COMPUTED = (
    {},
    {"gradient_accumulation_steps": 4},
    {"steps_per_generation": 4},
    {"generation_batch_size": 32, "per_device_train_batch_size": 16},
    {"scale_rewards": False},
    {"fp16": False, "bf16": False},
)
"""Arguments of which other fields follow."""

TEXTS = (
    r"My answer is \boxed{\frac{1}{3}}",
    r"My answer is \boxed{\frac{1}{2}}",
    "The answer is 1/3",
    r"$\frac{2}{6}$",
    "<think>a</think> it is $0.5$",
    "<think>a</think><think>b</think> $1$",
    "<think>never closed",
    " <think>late</think>",
    "",
)
SOLUTIONS = (r"\frac{1}{3}", "$0.5$", "nothing to parse", r"\boxed{x+1}")


def differences() -> Iterator[str]:
    """Return a line for each name, default or result that differs."""
    yield from _fields()
    yield from _computed()
    yield from _arguments()
    yield from _rewards()


def _fields() -> Iterator[str]:
    from trl import GRPOConfig

    from oncurve.compat.trl.config import CONFIG_KEYS

    theirs = {field.name: field for field in dataclasses.fields(GRPOConfig)}
    ours = {key.theirs: key for key in CONFIG_KEYS}
    yield from (f"{name}: TRL has it, and the table does not" for name in theirs.keys() - ours.keys())
    yield from (f"{name}: TRL does not have it" for name in ours.keys() - theirs.keys())
    for name in theirs.keys() & ours.keys():
        field = theirs[name]
        value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
        value = _plain(value)
        if value != ours[name].default or type(value) is not type(ours[name].default):
            yield f"{name}: TRL's default is {value!r}, the table's {ours[name].default!r}"


def _computed() -> Iterator[str]:
    import trl

    from oncurve.compat.trl import GRPOConfig

    names = ("steps_per_generation", "generation_batch_size", "scale_rewards", "bf16", "learning_rate", "beta")
    with tempfile.TemporaryDirectory(prefix="bench-trl-") as folder:
        for given in COMPUTED:
            theirs, ours = trl.GRPOConfig(folder, use_cpu=True, **given), GRPOConfig(folder, use_cpu=True, **given)
            for name in names:
                if getattr(theirs, name) != getattr(ours, name):
                    yield f"{given}: {name} is {getattr(theirs, name)!r} in TRL, {getattr(ours, name)!r} here"


def _arguments() -> Iterator[str]:
    import trl

    from oncurve.compat.trl import GRPOTrainer

    theirs, ours = (inspect.signature(each.__init__).parameters for each in (trl.GRPOTrainer, GRPOTrainer))
    for name in theirs:
        if name not in ours or ours[name].default != theirs[name].default:
            yield f"GRPOTrainer: TRL's argument {name} is another one here"
    if list(theirs) != [name for name in ours if name != "unknown"]:
        yield "GRPOTrainer: the arguments have another order"


def _rewards() -> Iterator[str]:
    import trl.rewards

    import oncurve.compat.trl as ours

    texts = [text for text in TEXTS for _ in SOLUTIONS]
    solutions = list(SOLUTIONS) * len(TEXTS)
    ids = [list(range(n % 7)) * (1 + n % 3) for n in range(len(texts))]
    given = {"completions": [[{"content": text}] for text in texts], "solution": solutions, "completion_ids": ids}
    made = {
        "accuracy_reward": (),
        "reasoning_accuracy_reward": (),
        "think_format_reward": (),
        "get_soft_overlong_punishment": (10, 4),
        "get_repetition_penalty_reward": (2, -0.5),
        "get_cosine_scaled_reward": (12,),
    }
    functions = [name for name in trl.rewards.__all__ if inspect.isfunction(getattr(trl.rewards, name))]
    lacking = [name for name in functions if name not in made]
    yield from (f"trl.rewards.{name}: TRL has it, and oncurve.compat.trl does not" for name in lacking)
    for name, arguments in made.items():
        both = [getattr(package, name) for package in (trl.rewards, ours)]
        found = [(each(*arguments) if arguments else each)(**given) for each in both]
        for text, solution, theirs, mine in zip(texts, solutions, *found, strict=True):
            if theirs != mine and not (theirs is not None and mine is not None and abs(theirs - mine) < 1e-12):
                yield f"{name}: {text!r} with {solution!r} has {theirs} in TRL, {mine} here"


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def main() -> int:
    """Print what differs; the exit code."""
    from oncurve.compat.trl.config import CONFIG_KEYS, TRAINER_KEYS

    found = list(differences())
    print("\n".join(found))
    compared = f"{len(CONFIG_KEYS)} fields, {len(TRAINER_KEYS)} arguments, {len(TEXTS) * len(SOLUTIONS)} reward cases"
    print(f"{compared}: {len(found)} differences")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
