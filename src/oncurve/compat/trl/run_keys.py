"""Our settings for TRL's values of everything but the loss.

The functions that rows of `config.toml` and `older.toml` name: `(value, values)` to settings, to the value of one, or
to None.

TRL's batch sizes count completions and batches of them; here they are prompts per step and minibatches. TRL samples
`generation_batch_size` completions at a time, and cuts them into `steps_per_generation` batches of
`per_device_train_batch_size`; every `gradient_accumulation_steps` of these it makes an update, and goes through a
generation `num_iterations` times. A step of oncurve is one generation with all its updates. Where TRL gathers several
generations for one update, a step is all of them: no update lies between.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Values

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""Words of TRL's settings and methods."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a step.

    prompts        prompts per step
    minibatches    updates per pass over the step's completions
    passes         passes over them (`num_iterations`)
    generation     completions that TRL samples at a time (`generation_batch_size`)
    accumulated    batches of TRL's that one generation is cut into (`steps_per_generation`)
    """

    prompts: int
    minibatches: int
    passes: int
    generation: int
    accumulated: int

    @property
    def updates(self) -> int:
        """The updates per step, which TRL counts as steps."""
        return self.minibatches * self.passes


def sizes(values: Values) -> Sizes:
    """Return the sizes of a run. Raises ConfigError: they do not divide, or contradict each other."""
    rows, accumulation = values["per_device_train_batch_size"], values["gradient_accumulation_steps"]
    group, passes = values["num_generations"], values["num_iterations"]
    for name in WORDS["sizes"]:
        given = values[name]
        if given is not None and (type(given) is not int or given < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {shown(given)}")
    generation = _generation(values, rows, accumulation)
    cut = generation // rows
    if group < 2:
        raise ConfigError(f"num_generations must be at least 2: an advantage is relative to its group, got {group}")
    if generation % group:
        raise ConfigError(
            f"a generation has {generation} completions (per_device_train_batch_size {rows} times steps_per_generation "
            f"{cut}), and these are no whole groups of num_generations={group}"
        )
    if cut % accumulation == 0:
        prompts, minibatches = generation // group, cut // accumulation
        if minibatches > prompts:
            raise ConfigError(
                f"an update here is of whole groups, and one of {rows * accumulation} completions "
                f"(per_device_train_batch_size times gradient_accumulation_steps) is less than a group of {group}; "
                "raise gradient_accumulation_steps"
            )
        return Sizes(prompts, minibatches, passes, generation, cut)
    if accumulation % cut:
        raise ConfigError(
            f"steps_per_generation={cut} and gradient_accumulation_steps={accumulation}: an update would end within a "
            "generation; make one a multiple of the other"
        )
    if passes > 1:
        raise ConfigError(
            f"num_iterations={passes} with gradient_accumulation_steps={accumulation} above steps_per_generation={cut}:"
            " TRL would count completions several times in one update; make them equal"
        )
    return Sizes(generation * (accumulation // cut) // group, 1, 1, generation, cut)


def _generation(values: Values, rows: int, accumulation: int) -> int:
    """Return `generation_batch_size`, given or as TRL makes it."""
    cut, generation = values["steps_per_generation"], values["generation_batch_size"]
    if cut is not None and generation is not None:
        raise ConfigError("generation_batch_size and steps_per_generation say the same; leave one of them out")
    if generation is None:
        return int(rows * (accumulation if cut is None else cut))
    if generation % rows:
        raise ConfigError(f"generation_batch_size={generation} is no multiple of per_device_train_batch_size={rows}")
    return int(generation)


def prompts_and_minibatches(value: Any, values: Values) -> dict[str, Any]:
    """Return the settings that all sizes make together. Raises ConfigError, with the places of the given sizes."""
    try:
        found = sizes(values)
    except ConfigError as error:
        given = {f"{each.place}: {name}": None for name, each in values.said.items() if name in WORDS["sizes"]}
        raise ConfigError(f"{error} ({', '.join(given) or 'by TRL'})") from None
    made = {"data.prompts_per_step": found.prompts}
    return made if found.minibatches == 1 else {**made, "learner.minibatches": found.minibatches}


def sizes_if_possible(value: Any, values: Values) -> dict[str, Any]:
    """Return the same, or nothing where the sizes do not divide, which the first of their keys says."""
    try:
        return prompts_and_minibatches(value, values)
    except ConfigError:
        return {}


def updates_per_step(values: Values) -> int:
    """Return the updates per step; 1 where the sizes do not divide, which the first of their keys says."""
    try:
        return sizes(values).updates
    except ConfigError:
        return 1


def in_steps(value: Any, values: Values) -> int:
    """Return a number of updates, or a share of all (below 1), as steps. Raises ConfigError: a share of no number."""
    if value < 1:
        if value <= 0:
            raise ConfigError(f"expected a number above 0, got {shown(value)}")
        if values["max_steps"] <= 0:
            raise ConfigError(f"{shown(value)} is a share of max_steps, which is not given; write a number of steps")
        value = math.ceil(values["max_steps"] * value)
    if value % 1 != 0:
        raise ConfigError(f"expected a whole number, or a share below 1, got {shown(value)}")
    return math.ceil(int(value) / updates_per_step(values))


ALL = 10**9
"""Checkpoints to keep where TRL keeps all."""


Made = dict[str, Any]


def steps(value: Any, values: Values) -> int | None:
    """Return the steps of a run; None: epochs are given."""
    return in_steps(value, values) if value > 0 else None


def epochs(value: Any, values: Values) -> float | None:
    """Return the epochs of a run, where its steps are not given."""
    if not 0 < value < math.inf:
        raise ConfigError(f"expected a number above 0, got {shown(value)}")
    return None if values["max_steps"] > 0 else value


def longest(value: Any, values: Values) -> int:
    """Return the longest completion."""
    if value is None:
        raise ConfigError("a run needs a longest completion; write a number of tokens")
    return int(value)


def truncated_left(value: Any, values: Values) -> Made:
    """Return the longest prompt, and that the last tokens of a longer one are kept."""
    return {} if value is None else {"data.max_prompt_tokens": value, "data.overlong": "truncate_left"}


def chat(value: Any, values: Values) -> Made:
    """Return the arguments of the chat template; without them text is no chat."""
    return {"data.chat_template_kwargs": dict(value)} if value else {"data.chat": "never"}


def warmup(value: Any, values: Values) -> Made:
    """Return the updates of the warm-up, or their share."""
    if 0 < value < 1:
        return {"learner.warmup_ratio": value}
    if value < 0 or value % 1 != 0:
        raise ConfigError(f"expected a number of updates, or a share of them below 1, got {shown(value)}")
    return {"learner.warmup_steps": int(value)} if value else {}


def betas(value: Any, values: Values) -> list[float]:
    """Return both betas of AdamW."""
    return [values["adam_beta1"], values["adam_beta2"]]


def moments(value: Any, values: Values) -> str | None:
    """Return the type of the optimizer's moments. Raises ConfigError: it is not AdamW."""
    if value in WORDS["adamw"]:
        return None
    if "adamw" in value and ("8bit" in value or "4bit" in value):
        return "bfloat16"
    raise ConfigError(f"the optimizer is AdamW ({', '.join(WORDS['adamw'][:2])}), got {shown(value)}")


def model(value: Any, values: Values) -> Made:
    """Return the settings of loading. Raises ConfigError: an argument, or a value of it, that is not available."""
    made: Made = {}
    for name, given in (value or {}).items():
        if name in WORDS["unused_model_words"] or given is None:
            continue
        if name == "quantization_config":
            raise ConfigError(
                "quantization_config: not available under this name; over an adapter the weights are stored with 4 bits"
                ' by oncurve\'s model.quantization = "nf4"'
            )
        if name not in WORDS["model"]:
            raise ConfigError(f"{name}: not available here{suggest(name, WORDS['model'])}")
        row = WORDS["model"][name]
        if row["ours"] == "model.dtype":
            given = str(given).removeprefix("torch.")
        choices = row.get("choices", (given,))
        if given not in choices:
            raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {shown(given)}")
        if given not in row["usual"]:
            made[row["ours"]] = given
    return made


def generation(value: Any, values: Values) -> Made:
    """Return what ends a completion, and how one is drawn. Raises ConfigError: an argument that is not available."""
    made, words = Made(), WORDS["generation"]
    for name, given in (value or {}).items():
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        if name in words["stops"]:
            made["rollout.stop"] = listed
        elif name in words["ids"]:
            made["rollout.eos_ids"] = listed
        elif name in words["sampling"]:
            made |= {} if given is None else {f"rollout.{name}": given}
        elif name not in words["harmless"] or given != words["harmless"][name]:
            known = ", ".join((*words["stops"], *words["ids"], *words["sampling"]))
            raise ConfigError(f"{name}: not available here; known are {known}")
    return made


def trackers(value: Any, values: Values) -> list[str] | None:
    """Return the trackers by name, or None for none."""
    named = [value] if isinstance(value, str) else list(value or ())
    named = [name for name in named if name != "none"]
    for name in named:
        if name not in WORDS["trackers"]:
            raise ConfigError(f"the trackers are {', '.join(WORDS['trackers'])}, and none; got {shown(name)}")
    return named or None


def tracked(value: Any, values: Values) -> Any:
    """Return a setting of trackers, where there is one."""
    return value if trackers(values["report_to"], values) else None


def saved_every(value: Any, values: Values) -> int | None:
    """Return the steps from checkpoint to checkpoint."""
    return None if values["save_strategy"] == "no" else in_steps(value, values)


def kept(value: Any, values: Values) -> int | None:
    """Return the number of checkpoints that are kept."""
    return None if values["save_strategy"] == "no" else ALL if value is None else value


def evaluation(value: Any, values: Values) -> Made:
    """Return when the policy is evaluated, and by how many completions. Raises ConfigError: it is not known yet."""
    if value == "epoch":
        raise ConfigError("the steps of an epoch are not known before the run; write eval_strategy='steps', eval_steps")
    if value not in ("no", "steps"):
        raise ConfigError(f"expected 'no', 'steps' or 'epoch', got {shown(value)}")
    if value == "no":
        return {}
    return {
        "eval.every": in_steps(values["eval_steps"] or values["logging_steps"], values),
        "eval.n": values["num_generations_eval"] or values["num_generations"],
        "eval.at_start": values["eval_on_start"],
    }


def best(value: Any, values: Values) -> str | None:
    """Return the metric of the best checkpoint, where there are evaluations."""
    if value is not None and value.removeprefix("eval_") != "reward":
        raise ConfigError(f"the best checkpoint is that of 'eval_reward', got {shown(value)}")
    return None if value is None or values["eval_strategy"] == "no" else "eval/reward"


def rows_known(values: Values, rows: int) -> dict[str, Any]:
    """Return the values of keys that depend on the number of training rows: epochs as steps."""
    found, made = sizes(values), Made()
    total = values["max_steps"]
    if total <= 0:
        steps = math.ceil(rows // found.prompts * values["num_train_epochs"])  # an incomplete generation does not count
        if not steps:
            return made  # fewer rows than a step has prompts: run.epochs counts them
        total = made["max_steps"] = steps * found.updates
    epoch = max(1, rows // found.prompts) * found.updates
    for strategy, count in (("save_strategy", "save_steps"), ("eval_strategy", "eval_steps")):
        if values[strategy] == "epoch":
            made |= {strategy: "steps", count: epoch}
    return made
