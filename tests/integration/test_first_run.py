"""A first run without a recipe, the recipe that `init` writes, and what `--help` says of both."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fakes.project import Command, lay_out, refused
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.base.paths import PRESETS, RECIPES, shipped
from oncurve.cli import app
from oncurve.cli.groups import RECIPE
from oncurve.cli.help import EXAMPLES
from oncurve.config import load_config, write_recipe
from oncurve.config.starting import starters
from oncurve.data import load_eval_rows
from oncurve.forecast import MACHINES
from oncurve.run import command_config

QUICK = ("run.steps=1", "rollout.group_size=2", "rollout.max_new_tokens=3", "data.prompts_per_step=2", "run.threads=1")


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("first run é"))


@pytest.fixture
def site(laid_out: Path, tmp_path: Path) -> Path:
    for name in ("model", "data.jsonl", "reward.py"):
        (tmp_path / name).symlink_to(laid_out / name)
    return tmp_path


def test_a_model_data_and_a_reward_are_a_run(command: Command) -> None:
    said = command(
        "train", "model", "--data", "data.jsonl", "--reward", "reward.py:length", *QUICK, "--out", "out"
    ).fine()
    assert "step 1/1" in said.out
    config, _ = load_config("out")
    assert config.model.path == os.path.abspath("model")
    assert config.rewards[0].model_dump()["path"] == os.path.abspath("reward.py") + ":length"
    assert len(Path("out/metrics.jsonl").read_text().splitlines()) == 1


def test_options_replace_what_a_recipe_or_a_preset_says(command: Command) -> None:
    config, _, name = command_config("task", ["run.steps=7"], rewards=["math", "reward.py:length"])
    assert [reward.default_name for reward in config.rewards] == ["math", "length"]
    assert config.run.steps == 7
    assert type(config.data).__name__ == "TaskRows"
    config, _, name = command_config("gsm8k", data="data.jsonl", presets=["dr_grpo", "lora"])
    assert config.advantage.model_dump()["scale"] == "none"
    assert config.lora.rank == 16
    assert name == "gsm8k"
    assert config.model.path == "Qwen/Qwen2.5-0.5B-Instruct"
    config, _, name = command_config("dr_grpo", data="data.jsonl", rewards=["math"])
    assert config.model.path == ""
    config, _, name = command_config("some-lab/a-model", data="data.jsonl", rewards=["math"])
    assert config.model.path == "some-lab/a-model"
    assert name == "grpo"
    assert config.kl.coef == load_config("grpo")[0].kl.coef


LOOKS = table("first_run", "looks")
"""Commands that look at what `train` would do: further words, and a part of what is printed."""


@pytest.mark.parametrize("name", LOOKS)
def test_what_train_takes_is_taken_by_every_command_that_looks_at_a_run(command: Command, name: str) -> None:
    more, printed = LOOKS[name]
    words = ("model", "--data", "data.jsonl", "--reward", "exact", "--preset", "dr_grpo", *QUICK, *more)
    said = command(*name.split(), *words).fine()
    assert printed in said.out


def test_every_command_with_a_recipe_has_the_options_of_train() -> None:
    def commands(group: Any) -> Iterator[Any]:
        for each in group.commands.values():
            yield from commands(each) if hasattr(each, "commands") else [each]

    taking = [each for each in commands(get_command(app)) if any(p.metavar == RECIPE for p in each.params)]
    assert {each.name for each in taking} >= {"train", "plan", "check", "show", "explain", "label"}
    for each in taking:
        assert {"--data", "--reward", "--preset"} <= {word for param in each.params for word in param.opts}, each.name


def test_a_file_of_rows_is_data_as_a_word_and_for_an_evaluation(command: Command) -> None:
    config, _, _ = command_config("model", ["data.jsonl", "run.steps=2"], rewards=["exact"])
    assert config.data.model_dump()["path"] == os.path.abspath("data.jsonl")
    one, two = (
        command("eval", "model", *words, "--reward", "exact", "--n", "1", "rollout.max_new_tokens=3")
        for words in (["--data", "data.jsonl"], ["data.jsonl"])
    )
    assert (one.code, one.out) == (0, two.out), one.err
    assert "prompts of data.jsonl" in one.out


def test_a_run_is_evaluated_on_all_rows_of_other_data(command: Command) -> None:
    held_out = ("data.eval_fraction=0.5", "eval.every=1", "checkpoint.best=eval/reward", "eval.patience=9")
    words = ("model", "data.jsonl", "--reward", "exact", *QUICK, *held_out, "--out", "out")
    assert command("train", *words).code == 0
    said = command("eval", "out", "--data", "data.jsonl", "--n", "1").fine()
    assert "6 prompts" in said.out


def test_a_tenth_of_enough_rows_is_held_out_and_evaluated_unless_a_word_says_otherwise(command: Command) -> None:
    def held_out(rows: int, *words: str, of: str = "model") -> tuple[int, int]:
        line = '{"prompt": "w3", "answer": "w4"}\n'
        Path("rows.jsonl").write_text(line * rows)
        config, base, _ = command_config(of, words, data="rows.jsonl", rewards=["exact"])
        return len(load_eval_rows(config.data, base)), config.eval.every

    assert held_out(199) == (0, 0)
    assert held_out(200) == (20, 50)
    assert held_out(5000) == (100, 50)
    assert held_out(200, "run.steps=5") == (20, 5)
    assert held_out(200, "run.epochs=2", "data.prompts_per_step=60") == (20, 6)
    assert held_out(200, "eval.every=0") == (0, 0)
    assert held_out(200, "data.eval_fraction=0") == (0, 0)
    assert held_out(100, "data.eval_fraction=0.5") == (50, 50)  # rows that are held out are evaluated
    assert held_out(200, "data.eval_fraction=0.5", "eval.every=7") == (100, 7)
    assert held_out(200, "data.template=null", of="gsm8k") == (4, 50)
    said = command("config", "explain", "model", "rows.jsonl", "--reward", "exact")
    assert "Evaluation before step 1 and every 50 steps on" in said.out
    assert "by default 0.1 of the rows is held out, and evaluated every 50 steps" in said.err


@pytest.mark.parametrize("name", starters())
def test_init_writes_a_recipe_that_means_what_the_shipped_one_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = write_recipe(name, Path("sub/my recipe.toml"))
    assert written[0] == Path("sub/my recipe.toml")
    text = written[0].read_text(encoding="utf-8")
    assert text.startswith("#")
    assert f"oncurve train {name} " not in text
    assert "oncurve train 'sub/my recipe.toml' " in text
    mine, shipped_one = load_config(written[0])[0], load_config(name)[0]
    texts = [repr(each.model_copy(update={"rewards": ()})) for each in (mine, shipped_one)]
    assert texts[0].replace(str(tmp_path / "sub"), "") == texts[1].replace(str(RECIPES), "")
    for here, there in zip(mine.rewards, shipped_one.rewards, strict=True):
        paths = [str(reward.model_dump().get("path")).rpartition(":") for reward in (here, there)]
        if paths[0][0].endswith(".py"):
            assert paths[0][0].startswith(str(tmp_path))
            assert Path(paths[0][0]).read_text() == Path(paths[1][0]).read_text()
        else:
            assert here == there


def test_init_never_writes_over_a_file_and_then_writes_none(command: Command) -> None:
    said = command("init")
    assert (said.code, said.out) == (
        0,
        "wrote own.toml\nwrote rewards/own.py\nedit it, then: oncurve train own.toml\n",
    )
    Path("own.toml").unlink()
    Path("rewards/own.py").write_text("mine")
    refused(command("init"), "rewards/own.py: there already", "--out")
    assert Path("rewards/own.py").read_text() == "mine"
    assert not Path("own.toml").exists()
    Path("link.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="there already"):
        write_recipe("task", Path("link.toml"))
    assert not Path("nowhere").exists()


def test_the_recipe_that_init_writes_trains(command: Command) -> None:
    assert command("init").code == 0
    row = {"question": "w3", "answer": "w4"}
    Path("rows.jsonl").write_text((json.dumps(row) + "\n") * 4)
    changes = ("data.path=rows.jsonl", "model.path=model", "data.template={question}", "eval.every=0", "run.threads=1")
    command("train", "own.toml", *changes, *QUICK, "--out", "out").fine()
    assert "rewards/reward" in Path("out/metrics.jsonl").read_text()


HELP = """
import sys
from oncurve.cli import main
for words in {commands!r}:
    sys.argv = ["oncurve", *words.split(), "--help"]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, None), words
    heavy = {{"torch", "transformers", "numpy", "datasets", "jinja2", "rich.live"}} & set(sys.modules)
    print("MODULES", words, len(sys.modules), sorted(heavy))
"""


def test_help_is_light_and_ends_with_two_examples_and_the_names_there_are() -> None:
    commands = ["", *EXAMPLES]
    program = HELP.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pages = dict(zip(commands, done.stdout.split("MODULES")[:-1], strict=True))
    for counted in done.stdout.split("MODULES")[1:]:
        assert counted.splitlines()[0].endswith("[]"), counted
        assert int(counted.split("[")[0].split()[-1]) < 700, counted
    for name, examples in EXAMPLES.items():
        assert len(examples) >= 2
        assert all(f"  {example}\n" in pages[name] and example.startswith(f"oncurve {name}") for example in examples)
    told = {name: " ".join(page.split()) for name, page in pages.items()}
    assert ", ".join(shipped(PRESETS)) in told["train"]
    assert all(name in told["init"] for name in shipped(RECIPES) if "/" not in name)
    assert ", ".join(MACHINES) in told["plan"]
