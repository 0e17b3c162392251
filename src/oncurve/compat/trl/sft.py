"""`SFTConfig` and `SFTTrainer`: TRL's quick start, on the run of `oncurve.sft`.

trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=SFTConfig(output_dir="warm"), train_dataset=dataset)
trainer.train()

Covered: the settings of `SFTConfig`, rows of every form, an adapter, held-out rows, `train`, `evaluate`, `save_model`,
`state.log_history`. Not covered: callbacks, a formatting function, a collator, optimizers.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from oncurve.base.errors import ConfigError, suggest
from oncurve.compat.dialect import Dialect, Said, Translation, Values, keys_of
from oncurve.compat.trl.config import CONFIG_KEYS, FUNCTIONS, HERE
from oncurve.compat.trl.hooks import NAMES, averaged
from oncurve.compat.trl.parsing import given_fields, lora_of
from oncurve.compat.trl.run_trainer import free_folder
from oncurve.run import TrainedRun, held_out_loss, sft
from oncurve.trainer import StepResult

OF_A_STEP = ("policy/loss", "optim/grad_norm", "optim/learning_rate", "policy/entropy", "progress/epoch")
OF_GRPO = {"rollout", "advantage", "objective", "aggregation", "kl", "reference", "entropy", "filter", "run.steps"}
"""What the fields are settings of that `GRPOConfig` alone has."""


def batch(value: Any, values: Values) -> int:
    """Return the rows of an update."""
    return int(values["per_device_train_batch_size"] * values["gradient_accumulation_steps"])


def text_column(value: Any, values: Values) -> dict[str, Any]:
    """Return the name of the column that holds texts."""
    return {} if value == "text" else {"sft.columns": {"text": value}}


def losses(value: Any, values: Values) -> dict[str, Any]:
    """Return when the loss of held-out rows is taken."""
    if value != "steps":
        return {"eval.every": 0}
    return {"eval.every": int(values["eval_steps"] or values["logging_steps"]), "eval.at_start": False}


def saved(value: Any, values: Values) -> int | None:
    """Return the steps from checkpoint to checkpoint."""
    return None if values["save_strategy"] == "no" else value


OWN = keys_of(HERE / "sft.toml", FUNCTIONS | globals())
SHARED = [
    key
    for key in CONFIG_KEYS
    if key.theirs not in {own.theirs for own in OWN}
    and OF_GRPO.isdisjoint(part for ours in key.ours for part in (ours, ours.partition(".")[0]))
    and not key.theirs.startswith("vllm_")
]
SFT = Dialect("TRL", "1.16", (*OWN, *SHARED))


class SFTConfig:
    """The settings of `SFTTrainer`, by TRL's names and with its defaults: `SFTConfig("out", max_steps=100)`.

    Raises ConfigError, with a line for each: an unknown name, a value of a wrong type, one that is refused.
    """

    def __init__(self, output_dir: str | Path | None = None, **given: Any) -> None:
        named = given if output_dir is None else {"output_dir": str(output_dir), **given}
        self.said = {name: Said(value, "SFTConfig") for name, value in named.items()}
        self.translation: Translation = SFT.translate(self.said)

    def __getattr__(self, name: str) -> Any:
        if name in ("said", "translation") or name not in SFT.table:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return Values(SFT.table, self.said)[name]


class SFTTrainer:
    """TRL's `SFTTrainer`, with the arguments of its quick start.

    model              a folder or hub id, or a module, which is trained in place;
    args               an `SFTConfig` of this package;
    train_dataset      rows with `prompt` and `completion`, `messages`, or `text`;
    eval_dataset       held-out rows, for `eval_loss`;
    processing_class   the tokenizer of a module
    peft_config        a `LoraConfig`

    Raises ConfigError for an argument that is not available.
    """

    def __init__(
        self,
        model: Any,
        args: SFTConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        **others: Any,
    ) -> None:
        for name, value in others.items():
            if value is not None:
                known = ("model", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config")
                raise ConfigError(f"SFTTrainer: {name} is not available here{suggest(name, known)}")
        if train_dataset is None:
            raise ConfigError("train_dataset: missing; give rows with prompt and completion, messages, or text")
        self.args = args or SFTConfig("trainer_output")
        self.model, self.processing_class = model, processing_class
        self.train_dataset, self.eval_dataset, self.peft_config = train_dataset, eval_dataset, peft_config
        self.state = SimpleNamespace(log_history=[], global_step=0, epoch=0.0)
        self.run: TrainedRun | None = None
        self._since: list[dict[str, float]] = []

    def train(self) -> SimpleNamespace:
        """Train to the end, into `output_dir` or the first free folder after it; its model is in `model/`."""
        settings, module = self._settings(), isinstance(self.model, nn.Module)
        if module:
            settings.pop("model", None)
        self.run = sft(
            model=self.model,
            tokenizer=self.processing_class if module else None,
            data=self.train_dataset,
            eval_data=self.eval_dataset,
            out=free_folder(Path(self.args.output_dir or "trainer_output")),
            settings=settings,
            on_step=self._step,
        )
        self.model, self.processing_class = self.run.model, self.run.tokenizer
        found = [line["policy/loss"] for line in self.run.metrics if "policy/loss" in line]
        loss = sum(found) / max(1, len(found))
        return SimpleNamespace(global_step=self.state.global_step, training_loss=loss, metrics={"train_loss": loss})

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = dict(self.args.translation.settings)
        if self.peft_config is not None:
            for name, value in lora_of(given_fields(self.peft_config)).items():
                section, _, key = name.partition(".")
                settings.setdefault(section, {})[key] = value
        first: Any = next(iter(self.train_dataset), None)
        chat = isinstance(first, Mapping) and "messages" in first and "completion" not in first
        if chat and not self.args.assistant_only_loss:
            settings.setdefault("sft", {})["train_on_prompts"] = True
        return settings

    def _step(self, result: StepResult) -> None:
        self.state.global_step, self.state.epoch = result.step, result.metrics["progress/epoch"]
        self._since.append({NAMES[key]: result.metrics[key] for key in OF_A_STEP if key in result.metrics})
        if result.step % max(1, int(self.args.logging_steps)) == 0:
            self._log(averaged(self._since))
            self._since.clear()
        if "eval/loss" in result.metrics:
            self._log({"eval_loss": result.metrics["eval/loss"]})

    def _log(self, found: Mapping[str, Any]) -> None:
        self.state.log_history.append({**found, "epoch": self.state.epoch, "step": self.state.global_step})

    def evaluate(self) -> dict[str, float]:
        """Return the loss of the held-out rows. Raises ConfigError: nothing is trained, or held out, yet."""
        if self.run is None or self.run.run.held_out is None or not len(self.run.run.held_out):
            raise ConfigError("evaluate needs a trained model and held-out rows: SFTTrainer(eval_dataset=...), train()")
        found = held_out_loss(self.run.run.learner, self.run.run.held_out)
        return {"eval_loss": found["eval/loss"], "epoch": self.state.epoch}

    def save_model(self, output_dir: str | Path) -> None:
        """Write the model and its tokenizer in Hugging Face form. Raises ConfigError: nothing is trained yet."""
        if self.run is None:
            raise ConfigError("save_model: nothing is trained yet; call train() first")
        self.run.save(output_dir)
