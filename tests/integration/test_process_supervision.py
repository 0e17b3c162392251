"""A run with process supervision: steps are scored, located in the tokens, compared in their group, and recorded."""

from pathlib import Path

import pytest

from oncurve.config.loading import load_config
from oncurve.report import read_run, write_report
from oncurve.rollout.stopping import Detokenizer
from oncurve.run.assembly import assemble
from oncurve.run.session import create_directory
from oncurve.steps import pieces
from oncurve.tasks.arithmetic import check_steps
from oracles.plain_process import plain_process_advantages

PROCESS = Path(__file__).parents[1] / "recipes" / "process.toml"
SMALL = [
    "run.steps=2",
    "data.prompts_per_step=4",
    "data.eval_size=4",
    "rollout.group_size=6",
    "rollout.max_new_tokens=48",
    "eval.every=0",
]


def test_every_line_is_graded_among_all_lines_of_its_group(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config, base = load_config(PROCESS, SMALL)
    with assemble(config, base) as run:
        create_directory(run, out)
        run.train()
        text_of = Detokenizer(run.loaded.tokenizer)
    record = read_run(out)
    scored = 0
    for step in record.steps:
        for group in record.groups(step):
            question, plain = group["prompt"]["columns"]["question"], []
            for item in group["completions"]:
                checked = check_steps(item["text"], question)
                assert item.get("step_offsets", []) == [end for end, _ in checked]
                assert item.get("step_rewards", []) == [float(right) for _, right in checked]
                ends = item.get("step_ends", [len(item["ids"]) - 1])
                texts = pieces(item["text"], item.get("step_offsets", []))
                for end, text in list(zip(ends, texts, strict=False))[:-1]:
                    written = text_of(item["ids"][: end + 1])
                    assert written.endswith(text)
                    assert not text_of(item["ids"][:end]).endswith(text)
                assert ends[-1] == len(item["ids"]) - 1
                rewards = item.get("step_rewards", [item["reward"]])
                plain.append((len(item["ids"]), list(zip(ends, rewards, strict=True))))
                scored += len(checked)
            for item, wanted in zip(group["completions"], plain_process_advantages([plain])[0], strict=True):
                got = item.get("advantages", [item["advantage"]] * len(item["ids"]))
                assert got == pytest.approx(wanted, abs=1e-9)
    assert scored > 50
    assert all(line["completions/scored_steps"] > 1 for line in record.metrics)
    assert all(0 <= line["reward/step_mean"] <= 1 for line in record.metrics)
    write_report(out)
    assert '<span class="step ' in (out / "report.html").read_text(encoding="utf-8")
