"""A TRL script is read without running it: literals, names at its top, data sets; the rest is named with its line."""

import tomllib
from pathlib import Path

import pytest

from oncurve.base.errors import ConfigError
from oncurve.compat import recipe_of
from oncurve.compat.trl import read_script
from oncurve.compat.trl.script import read_source

SCRIPT = """
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

RATE, GROUP = 1e-6, 8
SCALE = 2
OPTIONS = {"beta": 0.04, "max_steps": 50}
dataset = load_dataset("openai/gsm8k", "main", split="train")

def main():
    args = GRPOConfig(
        output_dir=f"out-{SCALE}", learning_rate=SCALE * 2e-6, num_generations=4, bf16=not True,
        per_device_train_batch_size=2**4, logging_steps=some_function(), **OPTIONS,
    )
    trainer = GRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs="reward/model",
        args=args,
        train_dataset=dataset,
        peft_config=LoraConfig(r=16, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    )
    trainer.train()
"""


def problems(source: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_source(source, "a.py")
    return str(caught.value).splitlines()


def test_a_script_is_read_as_far_as_its_values_are_written_in_it() -> None:
    found = read_source(SCRIPT)
    settings = tomllib.loads(recipe_of(found))
    assert settings["learner"]["learning_rate"] == 4e-6
    assert settings["run"] == {"steps": 50, "seed": 42}
    assert settings["data"]["prompts_per_step"] == 4
    assert (settings["data"]["path"], settings["data"]["subset"]) == ("openai/gsm8k", "main")
    assert settings["model"] == {"dtype": "float32", "path": "Qwen/Qwen2.5-0.5B-Instruct"}
    assert settings["lora"] == {"rank": 16, "alpha": 8, "targets": ["q_proj"]}
    assert settings["rewards"] == [{"kind": "model", "path": "reward/model"}]
    assert "logging_steps=some_function()" in recipe_of(found)


def test_every_argument_that_only_a_run_would_tell_is_named_with_its_line() -> None:
    said = problems(
        "n = f()\nGRPOConfig(\n learning_rate=float('1e-6'),\n num_generations=n, beta=b,\n max_steps=10**99)\n"
    )
    assert said == [
        "a.py:3: learning_rate: float('1e-6') is known only when the script runs; write a literal value",
        "a.py:4: num_generations: f() is known only when the script runs; write a literal value",
        "a.py:4: beta: b is known only when the script runs; write a literal value",
        "a.py:5: max_steps: 10 ** 99 is known only when the script runs; write a literal value",
    ]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = 1\n", "no call of GRPOConfig or GRPOTrainer"),
        ("GRPOConfig(\n", "a.py:1: this is no Python"),
        ("GRPOConfig()\nGRPOConfig()\n", "called in lines 1 and 2"),
        ("GRPOConfig('a', 8)\n", "write its arguments by name"),
        ("GRPOConfig(**options())\n", "a.py:1: GRPOConfig: **: options()"),
        ("GRPOConfig(beta=0.1, beta=0.2)\n", "beta"),
        ("a = b\nb = a\nGRPOConfig(beta=a)\n", "goes in a circle"),
        ("a = 1\na = 2\nGRPOConfig(beta=a)\n", "a is known only"),
        ("GRPOTrainer('m', f, tools=[f])\n", "a.py:1: GRPOTrainer.tools: not available here"),
        ("GRPOTrainer(modle='m')\n", "did you mean 'model'?"),
        ("GRPOTrainer('m', f, peft_config=make())\n", "only a LoraConfig"),
        ("GRPOConfig(num_generations=7)\n", "num_generations=7 (a.py:1: num_generations)"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(source: str, says: str) -> None:
    assert says in "\n".join(problems(source))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_script(tmp_path / "none.py")
