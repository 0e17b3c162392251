"""A corpus of mistakes, one line each: a message with place and fix, exit code 2, no traceback, nothing left behind."""

import ctypes
import os
import resource
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.project import RECIPE, Said, refused

Command = Callable[..., Said]


SETTINGS = {
    "model=model": "did you mean model.path=model?",
    "data=data.jsonl": "did you mean data.path=data.jsonl?",
    "advantage=rloo": "did you mean advantage.kind=rloo?",
    "advantage=rlo": "did you mean advantage.kind=rloo?",
    "rewards.0=exact": "did you mean rewards.0.kind=exact?",
    "kl=0.1": "kl: expected a table of settings, got 0.1",
    "rollout.stop=w3": "rollout.stop: expected a list, got 'w3'; write [\"w3\"]",
    "rollout.eos_ids=3": "rollout.eos_ids: expected a list, got 3; write [3]",
    "rollout.eos_ids=[99999]": "99999 is not a token of the model",
    "learner.learning_rate=0.1.2": "learner.learning_rate: expected a number, not a string",
    "learner.learning_rate=1,0": "expected a number",
    "learner.learning_rate=-1": "should be greater than or equal to 0",
    "learner.lr=1e-3": "did you mean learner.learning_rate?",
    "lr=1e-3": "did you mean learner.learning_rate?",
    "learning_rate=1e-3": "did you mean learner.learning_rate",
    "beta=0.1": "did you mean kl.coef?",
    "epsilon=0.2": "objective.clip_low",
    "num_generations=4": "did you mean rollout.group_size?",
    "group_size=4": "did you mean rollout.group_size?",
    "rollout.n=8": "did you mean rollout.group_size?",
    "rollout.top_p=0.9": "sampling is not cut off",
    "rollout.temperature=hot": "expected a number",
    "rollout.max_new_tokens=1.5": "should be a valid integer",
    "advantage.kind=gae": "critic.kind: the advantage needs a critic's values",
    "advantage.kind=GRPO": "did you mean 'grpo'?",
    "objective.kind=ppo": "did you mean 'clipped'?",
    "kl.estimator=k4": "kl.estimator: expected one of k1",
    "extends=dr-grpo": "did you mean 'dr_grpo'?",
    "model.dtype=fp16": "expected 'auto', 'float32' or 'bfloat16'",
    "model.path=model/config.json": "is a file; model.path names a directory",
    "run.seed=1.5": "run.seed: should be a valid integer",
    "run.threads=0": "run.threads: should be greater than or equal to 1",
    "run.name=a/b": "a name has no slash",
    "run.steps:5": "expected section.key=value",
    "run.steps 5": "expected section.key=value",
    "recipe.toml": "expected section.key=value",
    "data.eval_fraction=1": "should be less than 1",
    "data.shuffle=yes": "expected true or false",
    "data.system=x": "the model's tokenizer has no chat template",
    "data.prompts_per_step=0": "should be greater than or equal to 1",
    "eval.every=2": "set data.eval_path, data.eval_split or data.eval_fraction",
    "eval.verifier=math": "none of the rewards has that name",
    "checkpoint.keep=0": "should be greater than or equal to 1",
    "learner.minibatches=3": "lower the one or raise the other",
    "critic.kind=own": 'set critic.kind to "none"',
    "reward_model.kind=outcome": "no reward uses the reward model",
    "lora.rank=0.5": "should be a valid integer",
    "rewards=math": "write each as [[rewards]]",
    "rewards.kind=exact": "rewards are a list",
    "reward=exact": "did you mean 'rewards'?",
    "rewards.1.weight=2": "there is 1 reward",
    "rewards.0.patern=x": "did you mean 'pattern'?",
    "rewards.0.pattern=(": "not a regular expression",
    "rewards.0.weight=nan": "should be a finite number",
    "rewards.0.timeout_seconds=0": "should be greater than 0",
    "rewards=[{kind='choice'}]": "data.jsonl line 1: reward choice: column 'answer' holds 'w3', which is no letter",
    "rewards=[{kind='choice', options='choices'}]": "needs 'choices'",
    "rewards=[{kind='format', preset='xml'}]": "expected 'think', 'think_answer'",
    "rewards=[{kind='overlong', buffer=99}]": "rewards.0.buffer: 99 tokens are more than",
    "rewards=[{kind='length_cap', max_length=6}]": "set it below 6",
    "rewards=[{kind='cosine', max_value_wrong=1}]": "rewards.0.max_value_wrong",
    "rewards=[{kind='repetition', ngram_size=0}]": "should be greater than or equal to 1",
    "rewards=[{kind='model_judge'}]": "rewards.0.url: missing",
    "rewards=[{path='reward.py'}]": "names no function; write",
    "rewards=[{path='reward.py:'}]": "names no function; write 'reward.py:name'",
    "rewards=[{path='reward.py:length', kwargs={limit=1}}]": "kwargs: it takes no 'limit'",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting(command: Command, setting: str) -> None:
    refused(command("train", "recipe.toml", setting, "--out", "out"), SETTINGS[setting])


DATA = {
    "a table": ("prompt,answer\nw3,w4\n", "data.jsonl line 1, column 1: not JSON"),
    "an array over lines": ('[\n{"prompt":"w3"}\n]\n', "got a JSON array"),
    "Python's quotes": ("{'prompt': 'w3'}\n", "line 1, column 2: not JSON"),
    "two objects in a line": ('{"prompt": "w3"}{"prompt":"w4"}\n', "line 1, column 17: not JSON"),
    "null": ('{"prompt": null}\n', "column 'prompt' is empty (null)"),
    "a number": ('{"prompt": 3}\n', "expected a string or a list"),
    "an empty list": ('{"prompt": []}\n', "expected a string or a list"),
    "a message without content": ('{"prompt": [{"role":"user"}]}\n', "message 0: 'content' must be a string"),
    "a chat for a base model": ('{"prompt": [{"role":"user","content":"w3"}]}\n', "has no chat template"),
    "another column": ('{"question": "w3"}\n', "set data.prompt_column or data.template"),
    "a string": ('"w3"\n', "expected an object"),
    "empty lines": ("\n\n\n", "has no rows"),
    "parquet": ("PAR1\0\0", "data.jsonl"),
    "the last of many rows": ('{"prompt": "w3"}\n' * 40 + '{"promt": "w3"}\n', "line 41: column 'prompt' is missing"),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_data_file(command: Command, kind: str) -> None:
    content, words = DATA[kind]
    Path("data.jsonl").write_text(content)
    refused(command("train", "recipe.toml", "--out", "out"), words)


RECIPES = {
    "": "model.path: missing",
    "[run]\nsteps = 3\nsteps = 4\n": "(at line 3, column 10)",
    "[run\nsteps=3": "(at line 1, column 5)",
    "run.steps = true": "not true or false",
    "steps = 3\n": "did you mean run.steps",
    "[Run]\nsteps=3\n": "did you mean 'run'?",
    "[run]\nSteps=3\n": "did you mean 'steps'?",
    "[[reward]]\nkind='math'\n": "did you mean 'rewards'?",
    '{"run": {"steps": 3}}': "(at line 1, column 1)",
    "extends=3": "extends: expected a preset's name or a file",
    "extends='recipe.toml'": "extends itself",
    "extends=['grpo','nope']": "there is no recipe or preset 'nope'",
    "[data]\npath='C:\\data.jsonl'\n": "model.path: missing",
    "[learner]\nlearning-rate=1e-6\n": "did you mean 'learning_rate'?",
}


@pytest.mark.parametrize("content", RECIPES)
def test_a_recipe(command: Command, content: str) -> None:
    Path("recipe.toml").write_text(content)
    refused(command("train", "recipe.toml", "--out", "out"), RECIPES[content])


WORDS = {
    "train recipe.toml --out .": "nothing in it is overwritten",
    "train recipe.toml --out ''": "nothing in it is overwritten",
    "train recipe.toml --out model": "nothing in it is overwritten",
    "train recipe.toml --out recipe.toml": "is a file",
    "resume out": "is not a folder",
    "resume recipe.toml": "Name the --out of an earlier `oncurve train`",
    "resume model": "has no config.toml",
    "eval recipe.toml": "oncurve eval MODEL --recipe recipe.toml",
    "eval ./nope": "there is no folder ./nope",
    "plan": "no model",
    "plan nope.toml": "did you mean 'recipe.toml'?",
    "plan recipe.toml --machine h200x": "did you mean 'h200'?",
    "plan --model nope": "'nope': unknown",
    "config show nope": "there is no recipe, preset or model 'nope' here",
    "config explain grpo kl.coef=x": "kl.coef: expected a number",
    "demo --out model": "nothing in it is overwritten",
    "reward-model train recipe.toml --out out": "run.steps: unknown key",
}


@pytest.mark.parametrize("words", WORDS)
def test_the_words_of_a_command(command: Command, words: str) -> None:
    refused(command(*shlex.split(words)), WORDS[words])


USAGE = [
    "trian",
    "resume",
    "eval model --n 0",
    "eval model --n x",
    "train recipe.toml --learning-rate 1",
    "config diff",
]


@pytest.mark.parametrize("words", USAGE)
def test_what_a_command_does_not_take_shows_its_usage(command: Command, words: str) -> None:
    said = command(*words.split())
    assert (said.code, "Traceback" in said.err) == (2, False)
    assert "Error: " in said.err
    assert not Path("out").exists()


@contextmanager
def without_privileges() -> Iterator[None]:
    """Permissions count for this thread, as they do for a user who is not root."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this thread
    before = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, before) == 0
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~0b110  # effective: without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


SHUT = {
    "recipe.toml": (0o000, "recipe.toml"),
    "data.jsonl": (0o000, "data.jsonl"),
    "model/config.json": (0o000, "model"),
    "model/model.safetensors": (0o000, "model"),
    "model": (0o000, "model/config.json: permission denied; change its permissions"),
    "place": (0o555, "Choose another --out"),
    "hidden": (0o000, "hidden/data.jsonl"),
}


@pytest.mark.parametrize("name", SHUT)
def test_what_a_user_may_not_read_or_write(command: Command, name: str) -> None:
    mode, words = SHUT[name]
    Path("recipe.toml").write_text(RECIPE.replace('kind = "regex"\npattern = "w1"\nprocesses = 1', 'kind = "exact"'))
    Path("place").mkdir()
    Path("hidden").mkdir()
    shutil.copy("data.jsonl", "hidden")
    data = [f"data.path={name}/data.jsonl"] if name == "hidden" else []
    os.chmod(name, mode)
    try:
        with without_privileges():
            said = command("train", "recipe.toml", *data, "--out", "place/out")
    finally:
        os.chmod(name, 0o755)
    refused(said, words)
    assert not list(Path("place").iterdir())


def test_a_disk_without_room_for_the_first_file(command: Command) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
    try:
        said = command("train", "recipe.toml", "rewards.0={kind='exact'}", "--out", "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    refused(said, "cannot be written: File too large")


def test_a_second_run_in_the_directory_of_a_first_changes_nothing(command: Command) -> None:
    from oncurve.run.directory import RunDirectory

    with RunDirectory.create(Path("taken"), {}):
        before = sorted(path.name for path in Path("taken").iterdir())
        refused(command("train", "recipe.toml", "--out", "taken"), "taken is in use by another oncurve run")
        assert sorted(path.name for path in Path("taken").iterdir()) == before
