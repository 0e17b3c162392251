"""A corpus of mistakes, one line each: a message with place and fix, exit code 2, no traceback, nothing left behind.

Where the mistake can be seen without the model, the model is not loaded. Python's: test_mistakes_in_python.py.
"""

import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.privileges import without_privileges
from fakes.project import RECIPE, Said, lay_out, refused
from oncurve import cli
from oncurve.models.loading import ModelConfig

Command = Callable[..., Said]
NEEDS_THE_MODEL = (
    "rollout.eos_ids=[99999]",
    "data.system=x",
    "a chat for a base model",
    "test_a_disk_without_room_for_the_first_file",
)
"""Mistakes that only the loaded model or its tokenizer shows, or the first file, which is written after that."""


@pytest.fixture(autouse=True)
def loading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which the model's weights were loaded, unless the mistake needs them."""
    real, loads = ModelConfig.build, list[str]()

    def build(self: ModelConfig, *arguments: Any, **named: Any) -> Any:
        built = real(self, *arguments, **named)
        loads.append(self.path)
        return built

    monkeypatch.setattr(ModelConfig, "build", build)
    yield
    case = getattr(request.node, "callspec", None)
    names = {request.node.name, *(case.params.values() if case is not None else ())}
    needs = bool(names & set(NEEDS_THE_MODEL))
    assert not loads or needs, "the model was loaded before the mistake was found"


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
    "an array over lines": ('[\n{"prompt":"w3"}\n{"prompt":"w4"}]\n', "line 3, column 1: not JSON"),
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
    "[data]\npath='C:\\data.jsonl'\n": "/mnt/c/data.jsonl",
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
    "train recipe.toml --zzzqq 1",
    "config diff",
]


@pytest.mark.parametrize("words", USAGE)
def test_what_a_command_does_not_take_shows_its_usage(command: Command, words: str) -> None:
    said = command(*words.split())
    assert (said.code, "Traceback" in said.err) == (2, False)
    assert "Error: " in said.err
    assert not Path("out").exists()


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


TYPED = {
    "run.steps = 3": "'run.steps': expected section.key=value, like learner.learning_rate=2e-6, without blanks around",
    "run.steps= 3": "'3': expected section.key=value",
    "“run.steps=3”": "it has typographic quotes or dashes: type plain ones",
    "‘run.steps’=3": "it has typographic quotes or dashes: type plain ones",
    "–out out": "an option begins with two hyphens: --out",
    "'run.steps=3\r'": "run.steps: expected a number, not a string, got '3\\r'",
    "''": "'': expected section.key=value",
    "rewards=[{kind=math}]": "on the command line --reward math, or \"rewards=[{kind='math'}]\"",
    "rollout.stop=[w3]": "in a shell write 'rollout.stop=",
    "learner.learning_rate=1e−6": "expected a number, not a string, got '1e−6'",
    "data.path=$HOME/x.jsonl": "there is no file",
    "data.path=data?.jsonl": "no file fits the pattern",
    "data.path=~nobody-of-this-name/x.jsonl": "there is no home directory of that user",
    '{"run.steps":3}': "expected section.key=value",
    "--reward exact --preset ''": "--preset: the name is empty",
    "--data ''": "data.path",
    "--reward reward.length": "unknown kind 'reward.length'",
    "--reward reward.py": "reward.py names no function; write reward.py:NAME",
    "--reward nowhere.py:length": "nowhere.py",
}
"""Words after `oncurve train recipe.toml`, as a shell or an editor leaves them."""


@pytest.mark.parametrize("words", TYPED)
def test_what_a_shell_or_an_editor_makes_of_words(command: Command, words: str) -> None:
    refused(command("train", "recipe.toml", *shlex.split(words), "--out", "out"), TYPED[words])


TARGETS = {
    "": "RECIPE|MODEL: the name is empty",
    "recipe.toml\r": "there is no recipe, preset or model 'recipe.toml\\r' here; did you mean 'recipe.toml'?",
    "recipe.toml ": "did you mean 'recipe.toml'?",
    "modle": "did you mean 'model'?",
    "data.jsonl": "rows go after --data: oncurve train MODEL --data data.jsonl --reward math",
    "reward.py": "a reward goes after --reward",
    "model/model.safetensors": "no recipe, which is TOML or YAML",
    "http://example.org/recipe.toml": "there is no file",
}


@pytest.mark.parametrize("target", TARGETS)
def test_what_stands_in_the_place_of_the_recipe(command: Command, target: str) -> None:
    refused(command("train", target, "--out", "out"), TARGETS[target])


CHECKS = {
    "data check modle --data data.jsonl": "did you mean 'model'?",
    "data check model": "oncurve data check model --data train.jsonl --reward math",
    "data check model --data date.jsonl --reward exact": "did you mean 'data.jsonl'?",
    "reward check recipe.toml --completions nope.jsonl": "there is no file",
    "reward check recipe.toml --column promt": "did you mean 'prompt'?",
    "reward check recipe.toml --sample --completions data.jsonl": "are two sources of completions",
    "config explain task --preset nosuch": "--preset: there is no recipe or preset 'nosuch'",
    "plan model": "oncurve plan model --data train.jsonl --reward math",
    "plan --parameters many": "expected a number of parameters",
    "plan recipe.toml --memory lots": "a machine is missing",
    "reward-model label recipe.toml --out data.jsonl": "data.jsonl exists and is not overwritten",
    "eval model data.path=data.jsonl": "rewards: missing",
    "export .": "has no config.toml",
    "runs nope": "nope is not a folder",
    "doctor model": "it is not a run of oncurve",
    "init --out recipe.toml": "there already, and nothing is overwritten",
    "demo --process --ppo": "--process and --ppo are two demos",
}


@pytest.mark.parametrize("words", CHECKS)
def test_the_words_of_the_commands_that_look(command: Command, words: str) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    refused(command(*shlex.split(words)), CHECKS[words])
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def as_nobody(act: Callable[[], None]) -> Said:
    """What `oncurve` leaves in a child process that is the user nobody; `act` calls it there."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a process with threads; the child only reads files
        child = os.fork()
    if not child:
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        code = 99
        try:
            act()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    return Said(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "", text)


OTHERS = {
    "train recipe.toml --out other/out": ("other", 0o755, "Choose another --out, or change its permissions"),
    "train recipe.toml data.path=shut/data.jsonl --out mine/out": ("shut", 0o700, "shut/data.jsonl' cannot be reached"),
    "train shut/recipe.toml --out mine/out": ("shut", 0o700, "shut/recipe.toml' cannot be reached"),
    "train shut/model --data data.jsonl --reward exact --out mine/out": (
        "shut",
        0o700,
        "shut/model' cannot be reached",
    ),
    "train recipe.toml --reward shut/reward.py:length --out mine/out": ("shut", 0o700, "permission"),
    "eval shut --recipe recipe.toml": ("shut", 0o700, "shut' cannot be reached"),
    "resume shut": ("shut", 0o700, "Error: Invalid value for 'DIR': path 'shut' is not readable"),
    "init --out other/own.toml": ("other", 0o755, "cannot be written: Permission denied"),
    "data check shut/recipe.toml": ("shut", 0o700, "cannot be reached"),
    "runs shut": ("shut", 0o700, "Error: Invalid value for '[DIR]': path 'shut' is not readable"),
}


@pytest.fixture
def others() -> Iterator[Path]:
    """A project that every user may read, with a folder of nobody's; not below pytest's own, which is root's alone."""
    with tempfile.TemporaryDirectory(prefix="oncurve-others-") as name:
        folder = lay_out(Path(name))
        (folder / "recipe.toml").write_text(
            RECIPE.replace('kind = "regex"\npattern = "w1"\nprocesses = 1', 'kind = "exact"')
        )
        os.chmod(folder, 0o755)
        for made in ("shut", "other", "mine"):
            (folder / made).mkdir()
        shutil.copytree(folder / "model", folder / "shut/model")
        for file in ("data.jsonl", "recipe.toml", "reward.py"):
            shutil.copy(folder / file, folder / "shut")
        os.chown(folder / "mine", 65534, 65534)
        before = Path.cwd()
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user; the cases above run as any user")
@pytest.mark.parametrize("words", OTHERS)
def test_what_belongs_to_another_user(others: Path, words: str) -> None:
    name, mode, message = OTHERS[words]
    (others / name).chmod(mode)

    def act() -> None:
        sys.argv = ["oncurve", *shlex.split(words)]
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        cli.main()

    said = as_nobody(act)
    if message.startswith("Error: "):  # with the usage of the command
        assert (said.code, message in said.err, "Traceback" in said.err) == (2, True, False)
    else:
        refused(said, message)
    assert not list((others / "mine").iterdir())
    assert not list((others / "other").iterdir())


IN_A_FULL_DISK = """
mkdir full && mount -t tmpfs -o size=64k tmpfs full && dd if=/dev/zero of=full/other bs=1k 2>/dev/null
"$0" -m oncurve train recipe.toml "rewards.0={kind='exact'}" --out full/out
echo "code $?"
ls -A full
"""


@pytest.mark.slow
def test_a_disk_that_is_full_from_the_start(command: Command) -> None:
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", IN_A_FULL_DISK, sys.executable], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["code 2", "other"], done
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_run_in_the_directory_of_a_first_changes_nothing(command: Command) -> None:
    from oncurve.run.directory.folder import RunDirectory

    with RunDirectory.create(Path("taken"), {}):
        before = sorted(path.name for path in Path("taken").iterdir())
        refused(command("train", "recipe.toml", "--out", "taken"), "taken is in use by another oncurve run")
        assert sorted(path.name for path in Path("taken").iterdir()) == before


def test_a_directory_that_another_run_holds_is_not_taken_by_resume_if_there_either(command: Command) -> None:
    from oncurve.run.directory.folder import RunDirectory

    with RunDirectory.create(Path("other"), {}):
        before = {path: path.read_bytes() for path in Path("other").rglob("*") if path.is_file()}
        for again in (("--out", "other"), ("--out", "other", "--resume-if-there")):
            refused(command("train", "recipe.toml", *again), "other is in use by another oncurve run")
        assert {path: path.read_bytes() for path in Path("other").rglob("*") if path.is_file()} == before
