"""The README and the pages in docs/ are true: names, keys, links, numbers and code are checked against the source."""

import ast
import importlib
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import Tensor

import oncurve
from fakes.batches import rows_of
from fakes.scripts import site_page
from oncurve.advantages import (
    ADVANTAGE_KINDS,
    GroupAdvantage,
    ProcessAdvantage,
    gae,
    group_advantages,
    process_advantages,
)
from oncurve.advantages.gae import whiten
from oncurve.advantages.gdpo import decoupled_sums
from oncurve.batching import collate
from oncurve.cli import app
from oncurve.components import kind_of
from oncurve.config.layers import PRESETS
from oncurve.config.loading import load_config
from oncurve.config.sections import SECTIONS
from oncurve.config.sentences.plan import explain
from oncurve.kl import KL_KINDS, k1, k2, k3, kl_value, ratio_k3
from oncurve.losses import AGGREGATION_KINDS, OBJECTIVE_KINDS
from oncurve.losses.clipped import clipped_surrogate
from oncurve.losses.ratios import sequence_log_ratio
from oncurve.ops import clamped_ratio
from oncurve.reward_models import Preferences, StepLabels
from oncurve.run import load_reward_recipe
from oncurve.trainer import trainer
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
GENERATED = {f"docs/{name.replace('_', '-')}.md": name for name in ("configuration", "metrics", "coming_from")}
"""Pages that the site has whole; those of the repository say where."""
WRITTEN = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}


@cache
def texts() -> dict[str, str]:
    """Return the texts of all pages. The site's take seconds: they are made in the process that tests them."""
    return WRITTEN | {page: site_page(name) for page, name in GENERATED.items()}


ALGORITHM, PAPERS, EXTENDING, COMMANDS, PROMISES = (
    WRITTEN[f"docs/{name}.md"] for name in ("algorithm", "papers", "extending", "commands", "promises")
)
README = WRITTEN["README.md"]
LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"`(\w+)\.(\w+)(?: = ([^`]+))?`")
PROSE_WIDTH = 120
EXAMPLES = {"preferences": Preferences, "steps": StepLabels}
"""The kinds of data in a recipe for a reward model."""


def links(page: str) -> Iterator[tuple[str, str]]:
    return ((text, target) for text, target in LINK.findall(BLOCK.sub("", texts()[page])) if "://" not in target)


def anchors(page: Path) -> set[str]:
    text = texts().get(str(page.relative_to(ROOT))) or page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"<.*?>|[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(page: str, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(texts()[page]) if found == language]


def after(marker: str, text: str) -> str:
    """The block behind an HTML comment such as `<!-- explain: grpo -->`."""
    found = re.search(re.escape(f"<!-- {marker} -->") + r"\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found[1]


def table(name: str) -> list[list[str]]:
    """The rows of the table behind `<!-- table: name -->`, without head and rule."""
    found = re.search(rf"<!-- table: {name} -->\n((?:\|.*\n)+)", ALGORITHM)
    return [
        [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in found[1].splitlines()[2:]
    ]


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", cell)]


def arguments(cell: str, section: str) -> dict[str, Any]:
    return {key: json.loads(value) for found, key, value in SETTING.findall(cell) if found == section and value}


def batch_of(mask: list[list[int]]) -> TrainBatch:
    loss_mask = torch.tensor(mask, dtype=torch.bool)
    return rows_of(loss_mask).having(lengths=loss_mask.sum(1), valid=loss_mask.any(1))


def test_every_link_leads_somewhere() -> None:
    dead = []
    for page, path in PAGES.items():
        for _, target in links(page):
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append((page, target))
    assert dead == []


def test_every_python_name_in_a_link_is_there() -> None:
    missing = []
    for page, (text, target) in ((name, link) for name in PAGES for link in links(name)):
        if text.startswith("`") and "src/oncurve" in target and "/" not in text and "." in text[:-4]:
            home = Path(target.partition("src/")[2]).with_suffix("")
            parts = ("oncurve." + text.strip("`").removeprefix("oncurve.")).split(".")
            module = ".".join(part for part in home.parts if part != "__init__")
            named = parts[len(module.split(".")) :] if ".".join(parts).startswith(module) else parts[-1:]
            try:
                found = importlib.import_module(module)
                for part in named:
                    found = getattr(found, part)
            except (ImportError, AttributeError):
                missing.append((page, text))
    assert missing == []


def test_every_setting_exists() -> None:
    wrong = []
    for page, text in texts().items():
        if page == "docs/coming-from.md":  # most names on it are other tools'; test_coming_from.py checks ours
            continue
        for section, key, value in SETTING.findall(LINK.sub("", BLOCK.sub("", text))):
            if section in SECTIONS and key not in ("py", "json"):  # game.py, environment.json
                kinds = {**SECTIONS[section].kinds, **(EXAMPLES if section == "data" else {})}
                known = {name for cls in kinds.values() for name in cls.model_fields}
                there = key in known or (key == "kind" and SECTIONS[section].default is not None)
                if not there or (key == "kind" and value and value.strip('"') not in kinds):
                    wrong.append((page, f"{section}.{key} = {value}"))
    assert wrong == []


def test_prose_keeps_its_width_and_names_no_machine() -> None:
    wrong = [page for page, text in texts().items() if re.search(r"(?<![\w.])/(work|tmp|root|home)/", text)]
    for page in WRITTEN.keys() - GENERATED.keys():
        written = re.sub(r"<!-- begin (\w+) -->.*?<!-- end \1 -->", "", BLOCK.sub("", texts()[page]), flags=re.DOTALL)
        lines = [line for line in written.splitlines() if not line.startswith("|") and len(line) > PROSE_WIDTH]
        wrong += [f"{page}: {line}" for line in lines]
    assert wrong == []


@pytest.mark.parametrize(
    "page", [*(page for page, text in WRITTEN.items() if re.search("```(toml|python)", text)), *GENERATED]
)
def test_recipes_on_a_page_load_and_python_on_it_parses(page: str, tmp_path: Path) -> None:
    for language, body in BLOCK.findall(texts()[page]):
        named = re.match(r"# (\S+\.(?:py|toml))\n", body)
        (tmp_path / (named[1] if named else f"unnamed.{language}")).write_text(body, encoding="utf-8")
        if language == "toml":
            load = load_reward_recipe if tomllib.loads(body).get("data", {}).get("kind") in EXAMPLES else load_config
            load(tmp_path / (named[1] if named else "unnamed.toml"))
        if language == "python" and "excerpt" not in texts()[page].partition(body)[0].rpartition("\n\n")[2]:
            ast.parse(body)


def test_code_shown_is_the_code_there_is() -> None:
    shown = re.findall(r"<!-- excerpt: (\S+) -->", ALGORITHM)
    assert shown
    for path in shown:
        rest = "".join((ROOT / path).read_text(encoding="utf-8").split())  # the formatter may break lines
        for line in after(f"excerpt: {path}", ALGORITHM).splitlines():
            _, found, rest = rest.partition("".join(line.split()))
            assert found, line


def test_algorithm_1_is_the_same_on_the_page_and_in_the_trainer() -> None:
    lines = re.findall(r"^ ?\d+  .*$", str(trainer.__doc__), re.MULTILINE)
    assert len(lines) == 12
    assert "".join(f"    {line}\n" for line in lines) in ALGORITHM


def test_the_objective_shown_is_what_explain_prints() -> None:
    assert after("explain: grpo", ALGORITHM) == explain(load_config("grpo")[0]) + "\n"


def test_tables_name_every_kind_there_is() -> None:
    assert {row[0].strip("`") for row in table("kl")} == set(KL_KINDS)
    assert {row[0].split("`")[1] for row in table("aggregations")} == set(AGGREGATION_KINDS)
    assert all(f"| `{kind}` |" in ALGORITHM for kind in OBJECTIVE_KINDS)
    assert all(f'advantage.kind = "{kind}"' in ALGORITHM for kind in ADVANTAGE_KINDS)


def test_worked_advantages() -> None:
    rewards = torch.tensor([1, 0, 0, 1, 0.2, 0.5, 0.9, 0.4], dtype=torch.float64)
    group_ids, valid = torch.arange(8) // 4, torch.ones(8, dtype=torch.bool)
    for keys, _, first, second in table("advantages"):
        settings = GroupAdvantage(**arguments(keys, "advantage"))
        got = group_advantages(rewards, valid, group_ids, settings.scale, settings.ddof, settings.eps).tolist()
        size = numbers(first)[0]
        assert got[:4] == pytest.approx([size, -size, -size, size], abs=1e-8)
        assert got[4:] == pytest.approx(numbers(second), abs=1e-8)
    seven = torch.full((8,), 0.7)
    assert f"{((seven - seven.mean()) / (seven.std() + 1e-6))[0]:.3f}" == "0.056"
    assert "0.056" in ALGORITHM
    assert "0.056" in PROMISES


def test_worked_advantages_of_the_family() -> None:
    for keys, _, binary, graded in table("family"):
        given = arguments(keys, "advantage")
        for rewards, shown in (((1.0, 0.0, 0.0, 1.0), binary), ((0.2, 0.5, 0.9, 0.4), graded)):
            completions = tuple(Completion((1,) * (i + 1), "", (0.0,) * (i + 1), "eos", i, 0) for i in range(4))
            batch = collate([Group(Prompt(0, "", (1,)), completions, tuple(map(Score, rewards)))])
            got = ADVANTAGE_KINDS[given["kind"]](**{key: given[key] for key in given if key != "kind"})(batch)[:, 0]
            expected = numbers(shown)
            size = expected[0]
            assert got.tolist() == pytest.approx(
                [size, -size, -size, size] if len(expected) == 1 else expected, abs=1e-8
            )
    values = torch.tensor([[1, 0.2], [0, 0.5], [0, 0.9], [1, 0.4]], dtype=torch.float64)
    valid, group_ids = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    sums = decoupled_sums(values, torch.ones_like(values), valid, group_ids, eps=0.0).tolist()
    assert ", ".join(f"{round(x, 8):.8g}" for x in sums) in " ".join(ALGORITHM.split())
    to_go, _ = gae(torch.tensor([[0.0, 0.0, 1.0]]), torch.zeros(1, 3), valid[None, :3], 0.9, 1.0)
    for x in whiten(to_go, valid[None, :3])[0].tolist():
        assert f"{round(x, 8):.8g}" in ALGORITHM


def test_worked_surrogates() -> None:
    for keys, advantage, ratio, loss, gradient, _ in table("surrogate"):
        log_ratio = torch.tensor(math.log(float(ratio)), dtype=torch.float64, requires_grad=True)
        given = torch.tensor(float(advantage), dtype=torch.float64)
        value = clipped_surrogate(clamped_ratio(log_ratio), given, **arguments(keys, "objective"))
        (slope,) = torch.autograd.grad(value, log_ratio)
        assert (value.item(), slope.item()) == pytest.approx((float(loss), float(gradient)), abs=1e-12)
    whole = sequence_log_ratio(torch.tensor([[0.1, -0.2, 0.3]], dtype=torch.float64), torch.ones(1, 3).bool()).exp()
    assert f"{whole.item():.8f}" in ALGORITHM
    assert f"its tokens carries {clipped_surrogate(whole, torch.ones(1, 1)).item() / 3:.1f}" in ALGORITHM


def test_worked_kl_estimators() -> None:
    for name, _, _, *examples, _ in table("kl"):
        points = [(-1.0, -1.5), (-1.5, -1.0)] if name != "`full`" else []
        for (logprob, reference), cell in zip(points, examples, strict=False):
            x = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
            value = kl_value(name.strip("`"), x, torch.tensor(reference, dtype=torch.float64))
            (slope,) = torch.autograd.grad(value, x)
            assert [value.item(), slope.item()] == pytest.approx(numbers(cell), abs=1e-8)


def test_enumerated_kl() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log()

    def mean(estimate: Any) -> tuple[Tensor, Tensor]:
        """The estimator's mean value and mean gradient over what the policy samples."""
        policy = torch.log_softmax(logits, 0)
        sampled = estimate(policy, reference)
        (slope,) = torch.autograd.grad((policy.detach().exp() * sampled).sum(), logits)
        return (policy.exp() * sampled).sum().detach(), slope

    policy = torch.log_softmax(logits, 0)
    kl = (policy.exp() * (policy - reference)).sum()
    (exact,) = torch.autograd.grad(kl, logits)
    kl = kl.detach()
    for estimate, value, slope in (
        (k1, kl, torch.zeros(3)),
        (k2, None, exact),
        (k3, kl, policy.exp() - reference.exp()),
        (ratio_k3, kl, exact),
    ):
        got, gradient = mean(estimate)
        assert value is None or float(got) == pytest.approx(float(value), abs=1e-12)
        torch.testing.assert_close(gradient, slope.double().detach(), atol=1e-12, rtol=0)
    text = " ".join(ALGORITHM.split())
    assert f"KL = {float(kl):.8f}" in text
    assert f"mean of k2 is {float(mean(k2)[0]):.8f}" in text
    for gradient in (exact, mean(k3)[1]):
        assert "[" + ", ".join(f"{round(x, 8) + 0.0:.8g}" for x in gradient.tolist()) + "]" in text


def test_worked_process_supervision() -> None:
    rewards = torch.tensor([[0.2, 0.8, 0], [0.6, 0, 0], [0.1, 0.9, 0.5]], dtype=torch.float64)
    counts, groups = torch.tensor([2, 1, 3]), torch.zeros(3, dtype=torch.int64)
    ends = torch.arange(3).expand(3, 3)
    for keys, *columns in table("process"):
        settings = ProcessAdvantage(**arguments(keys, "advantage"))
        got = process_advantages(rewards, ends, counts, counts > 0, groups, 3, ddof=settings.ddof, eps=settings.eps)
        for step, shown in enumerate(columns):
            assert got[counts > step, step].tolist() == pytest.approx(numbers(shown), abs=1e-8)


def test_worked_aggregations() -> None:
    batch, losses = batch_of([[1, 1, 1], [1, 0, 0]]), torch.tensor([[1.0, 2, 3], [4, 0, 0]])
    for keys, _, example, _ in table("aggregations"):
        weights = AGGREGATION_KINDS[keys.split("`")[1]](**arguments(keys, "aggregation"))(batch)
        assert float((losses * weights).sum()) == pytest.approx(float(example), abs=1e-8)


def peers() -> list[tuple[str, list[str]]]:
    """The rows of the page's table of other tools: the tool, and `section.key=value` for each setting with a value."""
    table = PAPERS.partition("## The same settings in other tools")[2]
    rows = re.findall(r"^\| (verl|TRL)(.*?) \| (.*) \|$", table, re.MULTILINE)
    return [(tool + rest, [f"{s}.{k}={v}" for s, k, v in SETTING.findall(cell) if v]) for tool, rest, cell in rows]


def test_the_settings_of_every_other_tool_load_over_the_default_preset() -> None:
    rows = dict(peers())
    assert len(rows) == 4
    for overrides in rows.values():
        assert overrides
        load_config("grpo", overrides)
    assert set(rows["verl, its GRPO page"]) == {"objective.dual_clip=3.0", "learner.weight_decay=0.01"}
    trl = {"advantage.eps=1e-4", 'learner.schedule="linear"'}
    assert set(rows["TRL 1.16"]) == {"kl.coef=0.0", *trl}
    assert set(rows["TRL 1.16 with `beta` > 0"]) == {'kl.estimator="ratio_k3"', *trl}
    assert set(rows["TRL 1.16 with `sync_ref_model=True`"]) == {"reference.every=512", "reference.mixup_alpha=0.6"}


def test_a_presets_block_is_the_preset() -> None:
    shown = re.findall(r"\*\*Preset `(\w+)`\*\*[^`]*?```toml\n(.*?)```", PAPERS, re.DOTALL)
    prose = {"grpo", "grpo_iterative"}  # described in sentences
    assert {name for name, _ in shown} == {preset.stem for preset in PRESETS.glob("*.toml")} - prose
    for name, block in shown:
        config, _ = load_config(name)
        for section, keys in tomllib.loads(block).items():
            part = config.token_weights if section == "aggregation" else getattr(config, section)
            kind = kind_of(part, SECTIONS[section].kinds)
            assert {key: kind if key == "kind" else getattr(part, key) for key in keys} == keys


def test_every_preset_is_named() -> None:
    assert all(preset.stem in PAPERS for preset in PRESETS.glob("*.toml"))


@pytest.mark.slow
def test_extending_runs_as_it_stands(tmp_path: Path) -> None:
    session, expected = [], []
    for language, body in BLOCK.findall(EXTENDING):
        named = re.match(r"# (\S+\.(?:py|toml))\n", body)
        if named:
            (tmp_path / named[1]).write_text(body, encoding="utf-8")
        elif language == "python":
            session.append(body)
            expected += re.findall(r"^print\(.*\)  # (.*)$", body, re.MULTILINE)
    printed = python(session, tmp_path)
    assert [line for line in printed if line in expected] == expected


def test_the_rows_of_new_kinds_name_files_of_the_page_and_tables_of_the_package() -> None:
    rows = re.findall(r"^\| [\w ]+ \| `(\S+)` \| .*`oncurve/(\S+)` \| `\"[\w-]+\": (\w+)` \|$", EXTENDING, re.MULTILINE)
    files = {body.partition("\n")[0]: body for body in blocks("docs/extending.md", "python")}
    assert len(rows) == 8
    for file, home, name in rows:
        assert re.search(rf"^(class )?{name}\b", files[f"# {file}"], re.MULTILINE), file
        table_of_kinds = (ROOT / "src" / "oncurve" / home).read_text(encoding="utf-8")
        assert re.search(r"^\w+_KINDS: dict\[str, .*\] = \{", table_of_kinds, re.MULTILINE), home


def test_the_smallest_api_runs_as_it_stands(tmp_path: Path) -> None:
    (snippet,) = [body for body in blocks("docs/python.md", "python") if "GRPO(" in body]
    bigram = next(body for body in blocks("docs/extending.md", "python") if body.startswith("# bigram.py"))
    given = (
        "import torch\nmodel, ref_model = Bigram(), Bigram()\nprompt_tensor = torch.zeros(2, 3, dtype=torch.int64)\n"
        "def reward_fn(completions, prompts):\n    return [float(c[0]) for c in completions]\n"
    )
    assert len(python([bigram, given, snippet], tmp_path)) == 1


def python(pieces: list[str], folder: Path) -> list[str]:
    """The lines that a script of these pieces prints, run by itself in `folder`; warnings are errors."""
    script = folder / "page.py"
    script.write_text("\n".join(pieces), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_readme_calls_train_with_arguments_it_has() -> None:
    (block,) = [body for body in blocks("README.md", "python") if "oncurve.train(" in body]
    (call,) = [
        node
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "oncurve.train"
    ]
    known = {*oncurve.train.__annotations__}
    assert {keyword.arg for keyword in call.keywords} <= known


def test_the_pages_commands_are_the_commands() -> None:
    command: Any = typer.main.get_command(app)
    groups = ("config", "data", "reward", "reward-model")
    real = {name: found for name, found in command.commands.items() if name not in groups}
    real |= {f"{group} {name}": found for group in groups for name, found in command.commands[group].commands.items()}
    rows = re.findall(
        r"^\| `oncurve ((?:(?:config|data|reward|reward-model) )?[\w-]+) ?(.*?)` \|", COMMANDS, re.MULTILINE
    )
    assert {name for name, _ in rows} == set(real)
    for name, usage in rows:
        shown = [parameter for parameter in real[name].params if not getattr(parameter, "hidden", False)]
        options = {option for parameter in shown for option in parameter.opts if option.startswith("--")}
        assert set(re.findall(r"--[\w-]+", usage)) == options, name


def test_the_readme_has_the_two_commands_and_names_what_exists() -> None:
    assert "make demo" in README
    assert "make test" in README
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    for name in re.findall(r"`oncurve\.(\w+)`", README + WRITTEN["docs/python.md"]):
        assert hasattr(oncurve, name), name


def test_the_readme_stays_short() -> None:
    assert len(README.encode()) <= 12_000


def test_the_readme_leads_to_every_page() -> None:
    listed = {"docs/package.md"} | {target.partition("#")[0] for _, target in links("README.md")}
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")} <= listed


def test_the_tree_of_the_layout_is_the_tree() -> None:
    (tree,) = [body for body in blocks("CONTRIBUTING.md", "text") if body.startswith("src/oncurve/")]
    shown = re.findall(r"^  (\S+?)/?  +\S.*$", tree, re.MULTILINE)
    there = {path.name for path in (ROOT / "src" / "oncurve").iterdir() if not path.name.startswith("_")} - {"py.typed"}
    assert sorted(shown) == sorted(there)


def test_the_counts_of_the_promises_are_right() -> None:
    counted = (
        f"{len(OBJECTIVE_KINDS)} objectives × {len(KL_KINDS)} KL estimators × {len(AGGREGATION_KINDS)} aggregations"
    )
    assert counted in " ".join(PROMISES.split())
    oracle = (ROOT / "tests" / "oracles" / "plain_grpo").glob("*.py")
    assert sum(file.read_text(encoding="utf-8").count("\n") for file in oracle) <= 460
