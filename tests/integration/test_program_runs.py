"""Whole runs whose episodes are programs: a step trains on all rows of an episode, and two runs are the same."""

import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

import oncurve
import oncurve.models.tiny
from fakes import agents
from fakes.killed_runs import compare, finish, kill_all, start, until_checkpoints
from fakes.tables import table
from oncurve import durable
from oncurve.base.errors import ConfigError
from oncurve.config.trust import brought

TEMPLATE = (
    "{% for m in messages %}<bos>{{ m.role }} {{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant {% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(Path(oncurve.models.tiny.__file__).parent, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return folder


def trained(model, name, steps=2, **environment):
    settings = {
        "rollout": {"group_size": 2, "max_new_tokens": 40},
        "data": {"prompts_per_step": 2},
        "environment": {"program": f"{Path(agents.__file__)}:{name}", "processes": 1, **environment},
    }
    rows = [{"prompt": f"{number}", "aside": number % 2} for number in range(4)]
    groups = []
    run = oncurve.train(
        model=model, data=rows, steps=steps, settings=settings, on_step=lambda result: groups.extend(result.groups)
    )
    return [line["optim/grad_norm"] for line in run.metrics], groups


@pytest.mark.slow
def test_a_run_trains_on_every_row_of_an_episode_and_is_the_same_again(model):
    (norms, groups), again = (trained(model, "talk") for _ in range(2))
    assert (norms, groups) == again
    assert max(len(group.completions) for group in groups) > 2
    for group in groups:
        rewards = {(c.sample_index, s.reward) for c, s in zip(group.completions, group.scores, strict=True)}
        assert len(rewards) == len(group.firsts()) == 2
        assert all(score.valid for score in group.scores)


def test_a_program_that_cannot_work_is_found_before_the_run(model):
    with pytest.raises(ConfigError, match="it made no call"):
        trained(model, "never")
    with pytest.raises(ConfigError, match=r"takes 'text', and it can be given: prompt, aside, row, base_url"):
        trained(model, "call")


def test_the_command_of_a_folder_from_elsewhere_is_named_before_it_runs():
    said = brought([(("environment", "command"), ["python", "agent.py"]), (("environment", "program"), "agent.py:run")])
    assert said == ['environment.command = ["python", "agent.py"]', "code agent.py:run (environment.program)"]


@pytest.mark.slow
def test_a_run_that_is_killed_with_its_programs_leaves_none_and_goes_on_to_the_same_bits(model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{number}", "aside": number % 2}) + "\n" for number in range(12)))
    program = f"environment.program={Path(agents.__file__)}:talk"
    words = [f"data.path={rows}", f"model.path={model}", program, *table("program_runs", "words")]
    finish("train", "grpo", *words, "--out", str(tmp_path / "whole"))
    out, chance = tmp_path / "killed", random.Random(3)
    arguments = ["train", "grpo", *words, "--out", str(out)]
    for _ in range(int(os.environ.get("ONCURVE_KILLS", "2"))):
        if (done := len(durable.numbered(out / "checkpoints"))) > 5:
            break
        process = start(*arguments)
        until_checkpoints(process, out, done + 1)
        time.sleep(chance.random() / 2)
        kill_all(process)
        arguments = ["resume", str(out)]
    finish("resume", str(out))
    compare(tmp_path / "whole", out, 6)
