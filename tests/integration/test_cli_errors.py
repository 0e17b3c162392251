"""Wrong input from the outside: one clear message, exit code 2, no traceback, and no run directory left behind."""

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.project import RECIPE, Said, lay_out, oncurve, refused
from oncurve.models.loading import hub

Command = Callable[..., Said]


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(laid_out, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "reachable", lambda: False)
    return tmp_path


@pytest.fixture
def command(project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: oncurve(arguments, monkeypatch, capfd)


SETTINGS = {
    "kl.coeff=0.1": ("kl.coeff: unknown key", "did you mean 'coef'?", "(the command line)"),
    "klx.coef=0.1": ("klx: unknown section; did you mean 'kl'? (the command line)",),
    "run.steps=many": ("run.steps: expected a number", "'many'"),
    "run.steps=0": ("run.steps: should be greater than or equal to 1",),
    "steps=3": ("did you mean run.steps or iterative.steps?",),
    "run.steps": ("expected section.key=value, like",),
    "extends=grpoo": ("there is no recipe or preset 'grpoo'", "did you mean 'grpo'?"),
    "rollout.group_size=1": ("rollout.group_size", "set it to 2 at least"),
    "rollout.temperature=0": ("rollout.temperature", "set it above 0"),
    "rollout.max_new_tokens=129": ("rollout.max_new_tokens: 129", "at most 129 tokens", "lower it"),
    "rollout.max_new_tokens=128": ("data.jsonl line 1: the prompt has", "lower rollout.max_new_tokens"),
    "data.max_prompt_tokens=1": ("data.jsonl line 1: the prompt has", "raise the limit (data.max_prompt_tokens=2)"),
    "data.path=date.jsonl": ("data.path: there is no file", "did you mean 'data.jsonl'?"),
    "data.path=model": ("data.path:", "has no file of rows", "it has: config.json"),
    "data.prompt_column=question": ("data.jsonl line 1: column 'question' is missing; it has: prompt, answer",),
    "data.template={promt}": ("data.jsonl line 1: column 'promt' is missing", "did you mean 'prompt'?"),
    "data.template={prompt": ("data.template: expected '}'", "{{ or }} for a brace"),
    "model.path=./nope": ("nope: no such directory",),
    "model.path=data.jsonl": ("is a file; model.path names a directory",),
    "model.path=nobody/nothing": ("neither a directory here nor a model the hub could give", "needs the network"),
    "rewards=[{kind='maths'}]": ("rewards.0.kind: unknown kind 'maths'", "did you mean 'math'?"),
    "rewards=[]": ("rewards: missing; add a [[rewards]] table",),
    "rewards=[{kind='exact', answer='anwser'}]": ("needs 'anwser'", "did you mean 'answer'?"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting_is_refused_with_the_mend(command: Command, setting: str) -> None:
    refused(command("train", "recipe.toml", setting, "--out", "out"), *SETTINGS[setting])


REWARDS = {
    "a file that is not there": (None, "there is no file"),
    "a function that is not there": ("def g(completion): return 1", "has no 'length'"),
    "a syntax error": ("def length(:", "reward.py failed: line 1: invalid syntax"),
    "a package that is missing": ("import nowhere_at_all", "No module named 'nowhere_at_all' (reward.py line 1)"),
    "an import that ends the process": ("import sys; sys.exit(3)", "SystemExit: 3 (reward.py line 1)"),
    "no parameters": ("def length(): return 1", "has no parameters; columns are passed by name"),
    "parameters without names": ("def length(a, /): return 1", "parameter a cannot be given by name"),
    "no function": ("length = 3", "is a int, not a function"),
    "a column that is not there": ("def length(completion, anwser): return 1", "did you mean 'answer'?"),
}


@pytest.mark.parametrize("fault", REWARDS)
def test_a_reward_that_cannot_be_called_is_refused_before_the_model_loads(
    command: Command, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, words = REWARDS[fault]
    monkeypatch.setattr(
        "oncurve.models.loading.weights.ModelConfig.build", lambda *_: pytest.fail("the model was loaded")
    )
    Path("reward.py").unlink() if source is None else Path("reward.py").write_text(source)
    reward = "rewards=[{kind='python', path='reward.py:length', processes=1}]"
    refused(command("train", "recipe.toml", reward, "--out", "out"), "reward ", words)


DATA = {
    "nothing": (b"", "data.jsonl has no rows"),
    "broken JSON": (b'{"prompt": "w3"}\n' * 16 + b'{"prompt": "w3",', "data.jsonl line 17, column 17: not JSON"),
    "another encoding": (b'{"prompt": "caf\xe9"}\n', "data.jsonl line 1, byte 16: not UTF-8"),
    "an array": (b'[{"prompt": "w3"}, 4]\n', "data.jsonl row 2: expected an object"),
    "half a character": (b'{"prompt": "w3 \\ud800"}\n', "data.jsonl line 1: column 'prompt' holds half a character"),
    "an empty prompt": (b'{"prompt": ""}\n', "is an empty string"),
}


@pytest.mark.parametrize("fault", DATA)
def test_bad_data_is_refused_with_its_line(command: Command, fault: str) -> None:
    content, words = DATA[fault]
    Path("data.jsonl").write_bytes(content)
    refused(command("train", "recipe.toml", "--out", "out"), words)


RECIPES = {
    "recipe.tmol": ("there is no recipe, preset or model 'recipe.tmol' here; did you mean 'recipe.toml'?",),
    "recip.toml": ("there is no file", "did you mean 'recipe.toml'?"),
    "model": ("model is no recipe", "name data and a reward, too"),
    "bad.toml": ("bad.toml: Invalid value (at line 2, column 9)",),
    "bad.yaml": ("bad.yaml: ", "(at line 2, column 6)"),
    "latin.toml": ("latin.toml: not UTF-8",),
    "keys.toml": ("kl.coeff: unknown key", "keys.toml)"),
    "single.toml": ("in a file write [[rewards]], with two brackets",),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_cannot_be_read_is_refused_with_its_place(command: Command, name: str) -> None:
    Path("bad.toml").write_text("[run]\nsteps = \n")
    Path("bad.yaml").write_text("run:\n  a: }\n")
    Path("latin.toml").write_bytes(b"# caf\xe9\n")
    Path("keys.toml").write_text(RECIPE + "[kl]\ncoeff = 0.1\n")
    Path("single.toml").write_text(RECIPE.replace("[[rewards]]", "[rewards]"))
    refused(command("train", name, "--out", "out"), *RECIPES[name])


def test_yaml_reads_a_small_number_as_a_number(command: Command) -> None:
    Path("recipe.yaml").write_text("learner:\n  learning_rate: 1e-6\n")
    said = command("config", "show", "recipe.yaml")
    assert (said.code, "learning_rate = 1e-06" in said.out) == (0, True)


MODELS = {
    "config.json": "has no config.json",
    "model.safetensors": "has only pickled weights (pytorch_model.bin)",
    "tokenizer.json": "has no tokenizer",
}


@pytest.mark.parametrize("lacking", MODELS)
def test_a_model_that_lacks_a_part_is_refused(command: Command, lacking: str) -> None:
    Path("model", lacking).unlink()
    Path("model", "tokenizer_config.json").unlink()
    Path("model", "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused(command("train", "recipe.toml", "--out", "out"), MODELS[lacking])


def test_cut_off_weights_are_refused(command: Command) -> None:
    weights = Path("model", "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:5000])
    refused(command("train", "recipe.toml", "--out", "out"), "model: the model cannot be loaded")


def test_a_place_for_the_run_that_is_taken_or_shut_is_refused_before_the_model_loads(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "oncurve.models.loading.weights.ModelConfig.build", lambda *_: pytest.fail("the model was loaded")
    )
    refused(command("train", "recipe.toml", "--out", "data.jsonl"), "data.jsonl is a file")
    refused(command("train", "recipe.toml", "--out", "data.jsonl/inside"), "data.jsonl is a file")
    refused(command("train", "recipe.toml", "--out", "model"), "is not empty", "not a run of oncurve")
    monkeypatch.setattr("os.access", lambda path, mode, **_: not mode & os.W_OK)
    refused(command("train", "recipe.toml", "--out", "out"), "cannot be written to")


def test_what_is_no_run_cannot_be_resumed_or_evaluated(command: Command) -> None:
    refused(command("resume", "nope"), "nope is not a folder", "oncurve train")
    refused(command("resume", "model"), "has no config.toml")
    refused(command("eval", "./nope"), "there is no folder ./nope")
    refused(command("eval", "model"), "is not a run", "--recipe")
    refused(command("eval", "model", "kl.coef=0"), "data.path: missing", "rewards: missing")


def test_a_bare_model_is_evaluated_by_a_recipe(command: Command) -> None:
    said = command("eval", "model", "--recipe", "recipe.toml", "--n", "2", "--limit", "3", "--json")
    assert said.code == 0, said.err
    assert "prompts of the training data" in said.out
    assert json.loads(said.out.splitlines()[-1])["prompts"] == 3


def test_a_run_then_its_resume_say_what_they_did(command: Command) -> None:
    said = command("train", "recipe.toml", "--out", "out")
    assert (said.code, said.err) == (0, "")
    assert "step 3/3" in said.out
    files = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*") if path.name != ".lock"}
    again = command("resume", "out")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith("out is finished: all 3 steps are done")
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*") if path.name != ".lock"} == files
    taken = command("train", "recipe.toml", "--out", "out")
    assert (taken.code, "oncurve resume out" in taken.err) == (2, True)


def test_a_finished_run_whose_model_was_lost_writes_it_again(command: Command) -> None:
    assert command("train", "recipe.toml", "--out", "out").code == 0
    weights = Path("out/model/model.safetensors").read_bytes()
    Path("out/model/model.safetensors").write_bytes(b"damaged")
    assert command("resume", "out").code == 0
    assert Path("out/model/model.safetensors").read_bytes() == weights


def test_a_run_whose_only_checkpoint_is_damaged_is_not_resumed_and_says_how_to_go_on(command: Command) -> None:
    assert command("train", "recipe.toml", "--out", "out").code == 0
    weights = Path("out/checkpoints/step-000003/learner.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    said = command("resume", "out")
    assert (said.code, "Traceback" in said.err) == (1, False)
    assert "step-000003 is damaged" in said.err
    assert "oncurve train out/config.toml --out ANOTHER" in said.err


BLOWN_UP = {
    "updates that are not finite": (
        ["rewards=[{kind='regex', pattern='w1', weight=1e38}]", "advantage.scale=none"],
        "3 updates in a row were skipped",
    ),
    "weights that overflow": (["learner.learning_rate=1e30"], "the policy cannot be sampled from"),
}


@pytest.mark.parametrize("kind", BLOWN_UP)
def test_a_run_that_blows_up_stops_with_a_diagnosis_of_one_screen(command: Command, kind: str) -> None:
    settings, words = BLOWN_UP[kind]
    said = command("train", "recipe.toml", "run.steps=9", *settings, "--out", "out")
    assert (said.code, "Traceback" in said.err) == (1, False)
    assert words in said.err
    assert "a smaller learner.learning_rate" in said.err
    assert len(said.err.splitlines()) < 20
    if "skipped" in words:
        assert len(list(Path("out/incidents").iterdir())) == 3


def test_rewards_that_all_fail_stop_the_run_and_show_the_first_fault(command: Command) -> None:
    tried = "    if 'know' in completion or 'answer' in completion:\n        return 0.0\n"  # before the model loads
    Path("reward.py").write_text(f"def length(completion):\n{tried}    raise ValueError('of mine')\n")
    reward = "rewards=[{kind='python', path='reward.py:length', processes=1}]"
    said = command("train", "recipe.toml", reward, "--out", "out")
    assert said.code == 1
    assert "all rewards of 8 completions have a fault (8 exception)" in said.err
    assert "ValueError: of mine" in said.err
    assert "oncurve/" not in said.err  # of the traceback only what is the user's


def test_what_a_reward_prints_stays_out_of_the_output_and_what_it_asks_is_a_fault(command: Command) -> None:
    Path("reward.py").write_text("def length(completion):\n    print('noise')\n    return len(input())\n")
    reward = "rewards=[{kind='python', path='reward.py:length', processes=1}]"
    said = command("train", "recipe.toml", reward, "--out", "out")
    assert said.code == 2  # by its trial before the model loads
    assert "EOFError" in said.err
    assert "noise" not in said.out


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Sets the largest size a file may have, as a full disk would; lifted again at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_refuses_is_a_message_and_the_run_goes_on_once_there_is_room(
    command: Command, small_files: Callable[[int], None]
) -> None:
    small_files(100_000)  # the reference fits, the checkpoint does not
    said = command("train", "recipe.toml", "--out", "out")
    assert (said.code, "Traceback" in said.err) == (2, False)
    assert "cannot be written: File too large" in said.err
    small_files(resource.RLIM_INFINITY)
    assert command("resume", "out").code == 0
    assert command("train", "recipe.toml", "--out", "whole").code == 0
    name = "checkpoints/step-000003/learner.safetensors"
    assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()


def test_two_processes_are_not_at_one_run(command: Command) -> None:
    from oncurve.run.directory.folder import RunDirectory

    assert command("train", "recipe.toml", "--out", "out").code == 0
    held = RunDirectory.open(Path("out"))
    said = command("resume", "out")
    held.close()
    assert (said.code, "is in use by another oncurve run" in said.err) == (2, True)


def test_model_and_settings_that_look_alarming_are_noted_and_run(command: Command) -> None:
    said = command(
        "train",
        "recipe.toml",
        "learner.tokens_per_micro_batch=1",
        "data.prompts_per_step=9",
        "run.steps=1",
        "--out",
        "out",
    )
    assert (said.code, said.err) == (0, "")
    assert "note: data.prompts_per_step = 9 is more than the 6 prompts there are" in said.out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_plan_can_be_printed_whatever_the_terminal_can_write(
    command: Command, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    import sys

    monkeypatch.setattr(sys, "stdout", open("stdout", "w", encoding=encoding))  # noqa: SIM115 - closed below
    said = command("config", "explain", "grpo")
    sys.stdout.close()
    assert said.code == 0
    assert "min(" in Path("stdout").read_text(encoding=encoding, errors="replace")


def test_an_unknown_command_or_option_is_refused(command: Command) -> None:
    for words in (["trian"], ["train", "recipe.toml", "--ou", "x"], ["train"]):
        said = command(*words)
        assert said.code == 2
        assert "Usage" in said.err


ESCAPE = "\x1b[2J\x1b]0;title\x07\u202e\x9b1m"
HOSTILE = {
    "a recipe": ("train", f"re{ESCAPE}cipe"),
    "an option": ("train", "recipe.toml", f"--{ESCAPE}"),
    "a command": (f"tra{ESCAPE}in",),
    "a key": ("train", "recipe.toml", f"kl.{ESCAPE}=1"),
    "a value": ("train", "recipe.toml", f"run.steps={ESCAPE}"),
    "a path": ("resume", f"runs/{ESCAPE}"),
    "a model": ("train", "recipe.toml", f"model.path=./{ESCAPE}"),
    "a column": ("train", "recipe.toml", "data.path=hostile.jsonl"),
    "what a file raises": ("train", "recipe.toml", "rewards=[{kind='python', path='hostile.py:f', processes=1}]"),
    "a configuration": ("config", "show", "recipe.toml", f"data.system=a{ESCAPE}"),
}


@pytest.mark.parametrize("where", HOSTILE)
def test_what_a_message_quotes_does_not_steer_the_terminal(command: Command, where: str) -> None:
    Path("hostile.jsonl").write_text(json.dumps({f"que{ESCAPE}stion": "w3"}) + "\n")
    Path("hostile.py").write_text(f"raise ValueError({ESCAPE!r})\n")
    said = command(*HOSTILE[where])
    assert said.code == (0 if where == "a configuration" else 2), said
    for text in (said.out, said.err):
        assert not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}
        assert "Traceback" not in text or where == "what a file raises"
    assert "2J" in said.out + said.err
