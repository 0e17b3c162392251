"""The end of each command's help: examples, and the names of presets, recipes and machines."""

from __future__ import annotations

import re
import shlex
from itertools import islice
from typing import Any

from typer.core import TyperCommand

from oncurve.base.errors import ConfigError

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")

EXAMPLES = {
    "train": (
        "oncurve train Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward math",
        "oncurve train gsm8k.toml learner.learning_rate=2e-6 --out runs/gsm8k",
        "oncurve train --config rlox.yaml model.path=MODEL --data train.jsonl --reward math",
        "oncurve train --verl ppo.yaml trainer.total_epochs=1",
    ),
    "init": ("oncurve init", "oncurve init gsm8k --out mine.toml"),
    "resume": ("oncurve resume runs/gsm8k", "oncurve resume runs/gsm8k run.steps=500"),
    "runs": ("oncurve runs", "oncurve runs runs/gsm8k --json"),
    "export": (
        "oncurve export runs/gsm8k --step best --out best",
        "oncurve export runs/gsm8k --to inspect",
    ),
    "data check": (
        "oncurve data check gsm8k.toml",
        "oncurve data check Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward math",
    ),
    "reward check": (
        "oncurve reward check gsm8k.toml --sample",
        "oncurve reward check gsm8k.toml --completions rows.jsonl",
    ),
    "eval": (
        "oncurve eval runs/gsm8k --n 8",
        "oncurve eval Qwen/Qwen2.5-0.5B-Instruct --data test.jsonl --reward math --limit 200",
    ),
    "demo": ("oncurve demo", "oncurve demo --ppo --out runs/demo"),
    "report": ("oncurve report runs/gsm8k", "oncurve report runs/task"),
    "doctor": ("oncurve doctor runs/gsm8k", "oncurve doctor runs/gsm8k --json"),
    "plan": (
        "oncurve plan gsm8k.toml rollout.group_size=16",
        "oncurve plan --parameters 7B --machine h100 --completion-tokens 2048",
    ),
    "config show": ("oncurve config show gsm8k", "oncurve config show dapo kl.coef=0.01"),
    "config from-verl": (
        "oncurve config from-verl ppo.yaml trainer.total_epochs=1",
        "oncurve config from-verl algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=5 --out mine.toml",
    ),
    "config explain": ("oncurve config explain dr_grpo", "oncurve config explain gsm8k.toml objective.kind=gspo"),
    "config from-openrlhf": (
        "oncurve config from-openrlhf --pretrain MODEL --advantage_estimator group_norm --n_samples_per_prompt 8",
        "oncurve config from-openrlhf --pretrain MODEL --advantage_estimator rloo --n_samples_per_prompt 4",
    ),
    "reward-model train": (
        "oncurve reward-model train pairs.toml --out runs/reward",
        "oncurve reward-model train reward_models/sentiment data.path=pairs.jsonl reward_model.path=MODEL",
    ),
    "reward-model label": (
        "oncurve reward-model label gsm8k.toml --out pairs.jsonl",
        "oncurve reward-model label gsm8k.toml --kind steps --continuations 4 --out steps.jsonl",
    ),
}
"""Command lines of each command, for its help."""


def _lists(name: str) -> dict[str, list[str]]:
    """Words that a command takes, for the end of its help."""
    from oncurve.base.shipped import PRESETS, RECIPES, shipped

    if name in ("train", "config show", "config explain", "data check", "reward check", "init"):
        recipes = [each for each in shipped(RECIPES) if "/" not in each]
        return {"Recipes": recipes} | ({} if name == "init" else {"Presets": list(shipped(PRESETS))})
    if name == "plan":
        from oncurve.forecast import MACHINES

        return {"Machines": list(MACHINES)}
    return {}


class CommandWithExamples(TyperCommand):
    """A command whose help ends with examples and the words that it takes.

    An option that is a setting, perhaps under another tool's name, is answered with the command to type.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Raises ConfigError with the same command in words that there are."""
        if any(each.name == "overrides" for each in self.params) and "--verl" not in args:
            self._check_options(ctx.command_path, args)
        return list(super().parse_args(ctx, args))

    def _check_options(self, path: str, args: list[str]) -> None:
        known = {option: each for each in self.params for option in each.opts} | {"--help": None, "-h": None}
        typed, unknown, notes, first = list[str](), list[str](), list[str](), True
        rest = iter(args)
        for word in rest:
            option, equals, value = word.partition("=")
            if option in known or not _OPTION.fullmatch(option):
                typed.append(word)
                takes = known.get(option)
                if takes is not None and not equals and not getattr(takes, "is_flag", False):
                    typed.extend(islice(rest, 1))
                elif option not in known and not equals:
                    first = False
                continue
            value = value if equals else next(rest, "VALUE")
            from oncurve.run import words_for

            words, note = words_for(option, value, known)
            unknown.append(option)
            notes += [f"{option}: {note}"] if note else []
            if not words and not note:
                return  # not like any: the parser's own error
            if words == [f"model.path={value}"] and first:
                typed.insert(0, value)
                first = False
            else:
                typed.extend(words)
        if unknown:
            notes += ["a setting is a word section.key=value"]
            line = f"; the same command in words of oncurve: {shlex.join([*path.split(), *typed])}"
            raise ConfigError(f"no such option: {', '.join(unknown)} ({'; '.join(notes)}){line}")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, then recipes, presets or machines by name."""
        name = ctx.command_path.partition(" ")[2]
        with formatter.section("Examples"):
            for example in EXAMPLES[name]:
                formatter.write(f"  {example}\n")
        for title, words in _lists(name).items():
            with formatter.section(title):
                formatter.write_text(", ".join(words))
