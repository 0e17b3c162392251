"""verl's documented GSM8K commands run here: every setting is accounted for, and the run is a hand-written recipe's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fakes.project import RECIPES
from fakes.tables import table
from fakes.verl_commands import COMMANDS, sized, words, write_rows
from oncurve.compat import config_of
from oncurve.compat.verl import DIALECT, read, train_verl
from oncurve.config import RunConfig, load_config
from oncurve.run import train_recipe

FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, letter="e"):
    return float(solution_str.count(letter) % 2)
"""

SHARED = (RECIPES / "verl.toml").read_text(encoding="utf-8")
OWN = table("verl_commands", "own")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    """A folder with a small model that has a chat template, rows of GSM8K in verl's form, and a reward."""
    folder = tmp_path_factory.mktemp("verl")
    shutil.copytree(test_data / "models" / "stories260k", folder / "model")
    file = folder / "model" / "tokenizer_config.json"
    template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    write_rows(test_data / "gsm8k" / "train.jsonl", folder / "data")
    (folder / "score.py").write_text(FUNCTION)
    return folder


def by_hand(name: str, room: Path, *more: str) -> RunConfig:
    recipe = room / f"{name}.toml"
    recipe.write_text(SHARED.format(model=room / "model", data=room / "data"))
    return load_config(recipe, [*OWN[name], *more])[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_of_a_command_is_counted_and_the_configuration_is_the_recipes(name: str, room: Path) -> None:
    settings = sized(COMMANDS[name], room / "model", room / "data", room / "out")
    translation = DIALECT.translate(read(words(settings)).said)
    tables = {key.lstrip("+").partition(".override_config.")[0] for key in settings}
    lines = {line.key.theirs.removesuffix(".override_config") for line in translation.given()}
    assert lines == tables
    assert translation.counted().startswith(f"{len(lines)} keys of verl: ")
    assert config_of(translation)[0] == by_hand(name, room)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_translated_as_it_is_documented(name: str) -> None:
    translation = DIALECT.translate(read(words(COMMANDS[name])).said)
    config, _ = config_of(translation)
    assert config.data.prompts_per_step == 1024
    assert config.model.path == "Qwen/Qwen3-8B"


def tensors(run: Path) -> dict[str, bytes]:
    """The bits of all that an update leaves: weights, and AdamW's averages of the gradient."""
    files = sorted(run.glob("checkpoints/step-*/*.safetensors"))
    return {name: value.numpy(force=True).tobytes() for file in files for name, value in load_file(file).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_its_updates_are_those_of_the_recipe_bit_for_bit(
    name: str, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, score = room / "model", room / "data", room / "score.py"
    said = sized(COMMANDS[name], model, data, tmp_path / "verl") | {"custom_reward_function.path": str(score)}
    said |= {"custom_reward_function.reward_kwargs.letter": "a", "trainer.logger": "console"}
    assert train_verl(words(said)) is None
    assert f"{len(read(words(said)).said)} keys of verl: " in capsys.readouterr().out
    first = f'rewards.0={{kind="python", path="{score}:compute_score", kwargs={{letter="a"}}}}'
    verifier = ["eval.verifier=compute_score"] if name == "dapo" else []
    config = by_hand(name, room, "tracking.to=[]", first, *verifier)
    assert train_recipe(config, room, tmp_path / "own") is None
    metrics = [json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[-1]) for run in ("verl", "own")]
    assert metrics[0]["optim/grad_norm"] == metrics[1]["optim/grad_norm"] > 0
    assert tensors(tmp_path / "verl") == tensors(tmp_path / "own") != {}


@pytest.mark.slow
def test_a_script_with_its_call_exchanged_continues_its_run_and_prints_its_recipe(room: Path, tmp_path: Path) -> None:
    settings = sized(COMMANDS["grpo"], room / "model", room / "data", tmp_path / "run") | {"trainer.logger": "console"}
    given = " \\\n  ".join(f"'{word}'" for word in words(settings) if not word.startswith("trainer.total_training"))
    call = f"$ONCURVE \\\n  {given} \\\n  trainer.total_training_steps=$N $@\n"
    (tmp_path / "run me.sh").write_text(f"set -x\nN=1\n{call}")

    def run(command: str, *more: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"ONCURVE": f"{sys.executable} -m oncurve {command}"}
        script = ["bash", "run me.sh", *more]
        return subprocess.run(script, capture_output=True, text=True, timeout=600, cwd=tmp_path, env=environment)

    assert "keys of verl: " in run("train --verl").stdout
    assert "is finished: all 1 steps are done" in run("train --verl").stdout
    changed = run("train --verl", "actor_rollout_ref.actor.optim.lr=1e-5")
    assert changed.returncode == 2 or "without effect on a finished run" in changed.stdout
    assert run("config from-verl", "--out", "mine.toml").returncode == 0
    written = load_config(tmp_path / "mine.toml")[0]
    assert written == config_of(DIALECT.translate(read(words(settings)).said))[0]
    assert run("config from-verl", "--out", "mine.toml").returncode == 2
