"""The same arguments in TRL's `GRPOTrainer` and in ours, with a policy that writes what a script says."""

import json
import os
import sys
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import oncurve.models.tiny
from fakes.architectures import SMALL
from fakes.tables import table
from oncurve.compat.trl import GRPOConfig, GRPOTrainer
from oncurve.models.loading import load_tokenizer
from oncurve.rollout import EngineBase
from oncurve.types import Completion, Group

if os.environ.get("ONCURVE_TRL"):
    sys.path.append(os.environ["ONCURVE_TRL"])
NO_TRL = None if find_spec("trl") else "TRL is not installed; ONCURVE_TRL may name the folder that holds it"

TEMPLATE = table("trl_trainers", "template")

RESPONSE = table("trl_trainers", "response")
END = "<|im_end|>"


def tokenizer(response=RESPONSE):
    """A chat tokenizer of single characters."""
    made = load_tokenizer(str(Path(oncurve.models.tiny.__file__).parent), local=True)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", END]})
    made.eos_token, made.chat_template, made.padding_side = END, TEMPLATE, "left"
    made.add_bos_token = False
    made.response_template = response
    return made


def call(name, /, **arguments):
    """A tool call as the policy writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass
class Script:
    """What the policy writes: the text of each turn of an episode. A turn without the end token is cut off."""

    tokenizer: Any
    turns: Any
    most: int

    def __call__(self, ids, room):
        text = self.tokenizer.decode(ids)
        turn = text.count("<|im_start|>assistant") - 1
        turns = self.turns(text) if callable(self.turns) else self.turns
        written = self.tokenizer(turns[min(turn, len(turns) - 1)], add_special_tokens=False)["input_ids"]
        return written[:room]


class Scripted(EngineBase):
    """An engine that writes what the script says."""

    exact = True

    def __init__(self, script, sampling):
        self.script, self.sampling = script, sampling

    def generate(self, prompts, draw, sampling=None, on_group=None, first_samples=None):
        groups = []
        for index, prompt in enumerate(prompts):
            room = prompt.limit or self.script.most
            ids = tuple(self.script(prompt.ids, room))
            ended = "eos" if ids[-1] == self.script.tokenizer.eos_token_id else "length"
            text = self.script.tokenizer.decode(ids).removesuffix(END)
            size = (sampling or self.sampling).group_size
            groups.append(Group(prompt, (Completion(ids, text, (0.0,) * len(ids), ended, 0, 0),) * size))
            if on_group is not None:
                on_group(index, groups[-1])
        return groups


@dataclass
class Played:
    """One episode: the text that the policy was given at first, its tokens with the mask, messages and rewards."""

    prompt: str
    text: str
    mask: list[int]
    messages: list[dict[str, Any]]
    rewards: dict[str, float]


def arguments(turns, rows=({"prompt": [{"role": "user", "content": "go"}]},), most=400, response=RESPONSE, **more):
    """The arguments of both trainers, without `args`, and those of `GRPOConfig`."""
    made = tokenizer(response)
    config = LlamaConfig(vocab_size=len(made), max_position_embeddings=4096, **SMALL)
    torch.manual_seed(0)
    options = {"max_completion_length": most, "num_generations": 2, "per_device_train_batch_size": 2 * len(rows or [0])}
    options |= {"report_to": "none", "use_cpu": True, "bf16": False, "max_steps": 1}
    options |= {"max_tool_calling_iterations": more.pop("iterations", None)}
    given = {"model": LlamaForCausalLM(config), "processing_class": made, **more}
    if rows is not None:
        given["train_dataset"] = Dataset.from_list(list(rows))
    return given, options, Script(made, turns, most)


def ours(folder, turns, **more):
    """What our trainer makes: an episode per row."""
    given, options, script = arguments(turns, **more)
    with GRPOTrainer(args=GRPOConfig(str(folder), **options), **given) as trainer:
        run = trainer.run
        run.engine.inner = Scripted(script, run.config.rollout)
        prompts = [run.prompts[index] for index in range(len(run.prompts))]
        groups = run.rewards.score(run.engine.generate(prompts, 0))
    found = []
    for group in groups:
        completion, score = group.completions[0], group.scores[0]
        assert completion.fault is None, completion.fault
        text = script.tokenizer.decode(completion.ids)
        mask = [int(own) for own in completion.trained]
        messages = [
            {name: value for name, value in message.items() if name != "tool_call_id"}
            for message in completion.messages
        ]
        for message in messages:
            for each in message.get("tool_calls", ()):
                del each["id"]
        rewards = {name: value for name, value in score.parts.items() if value is not None}
        found.append(Played(script.tokenizer.decode(group.prompt.ids), text, mask, messages, rewards))
    return found


def theirs(folder, turns, **more):
    """What TRL's own trainer makes."""
    import trl

    class Recording(trl.GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *others, **named):
            written = [script([int(token) for token in ids], script.most) for ids in prompt_ids]
            return written, None

        def _generate(self, prompts):
            self.generated = super()._generate(prompts)
            return self.generated

        def _calculate_rewards(self, *others):
            self.scores = super()._calculate_rewards(*others)
            return self.scores

    given, options, script = arguments(turns, **more)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL about itself
        trainer = Recording(args=trl.GRPOConfig(str(folder), **options), **given)
        rows = [row for row in trainer.train_dataset for _ in range(2)]
        trainer.model.train()
        trainer._generate_and_score_completions(rows)
    prompt_ids, completion_ids, mask, completions = trainer.generated[:4]
    found = []
    for index in range(0, len(rows), 2):
        scores = zip(trainer.reward_func_names, trainer.scores[index].tolist(), strict=True)
        rewards = {name: value for name, value in scores if value == value}
        ids = [int(token) for token in completion_ids[index]]
        own = [1] * len(ids) if mask is None else list(mask[index])
        prompt = script.tokenizer.decode(prompt_ids[index])
        found.append(Played(prompt, script.tokenizer.decode(ids), own, list(completions[index]), rewards))
    return found
