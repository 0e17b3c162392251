"""What a reward model learns from, in the spellings that people have it in; what is wrong is said with its line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import DataError
from oncurve.reward_models import LabelledSteps, PreferencePair, example_from_json, example_to_json
from oncurve.reward_models.examples import Preferences, StepLabels

ASKED = {"role": "user", "content": "2+2?"}
FOUR = {"role": "assistant", "content": "4"}
FIVE = {"role": "assistant", "content": "5"}


def written(folder: Path, rows: Sequence[Any], name: str = "rows.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def all_of(kind: Any, folder: Path, rows: Sequence[Any], **settings: Any) -> list[Any]:
    train, held_out = kind(path=written(folder, rows), eval_fraction=0.0, **settings).read(folder)
    assert held_out == []
    return train


@pytest.mark.parametrize(
    ("row", "pair"),
    [
        ({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, PreferencePair("2+2?", "4", "5")),
        ({"prompt": [ASKED], "chosen": [FOUR], "rejected": [FIVE]}, PreferencePair((ASKED,), (FOUR,), (FIVE,))),
        ({"prompt": [ASKED], "chosen": "4", "rejected": "5"}, PreferencePair((ASKED,), "4", "5")),
        ({"chosen": "2+2?4", "rejected": "2+2?5"}, PreferencePair("", "2+2?4", "2+2?5")),
        ({"chosen": [ASKED, FOUR], "rejected": [ASKED, FIVE]}, PreferencePair((), (ASKED, FOUR), (ASKED, FIVE))),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 2}, PreferencePair("a", "b", "c", 2.0)),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "0.5"}, PreferencePair("a", "b", "c", 0.5)),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": None}, PreferencePair("a", "b", "c")),
        ({"prompt": "a", "chosen": "", "rejected": "c", "id": 7}, PreferencePair("a", "", "c")),
    ],
)
def test_pairs_in_the_forms_of_trl(tmp_path: Path, row: dict[str, Any], pair: PreferencePair) -> None:
    assert all_of(Preferences, tmp_path, [row]) == [pair]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ([True, False, True], (1.0, 0.0, 1.0)),
        ([1, 0, None], (1.0, 0.0, None)),
        ([0.25, 1.0, 0.5], (0.25, 1.0, 0.5)),
        (None, (1.0, 1.0, 1.0)),
        (0, (0.0, None, None)),
        (2, (1.0, 1.0, 0.0)),
    ],
)
def test_steps_and_their_labels(tmp_path: Path, labels: Any, wanted: tuple[float | None, ...]) -> None:
    row = {"prompt": "7*8+31-2\n", "completions": ["56", "87 now", "85"], "labels": labels}
    (example,) = all_of(StepLabels, tmp_path, [row])
    assert example == LabelledSteps("7*8+31-2\n", "56\n87 now\n85", (3, 10, 12), wanted)


@pytest.mark.parametrize("name", ["multistep_arithmetic", "word_sorting"])
def test_big_bench_mistake(test_data: Path, name: str) -> None:
    path = test_data / "process" / f"{name}.jsonl"
    settings = StepLabels(
        path=str(path), prompt_column="input", steps_column="steps", labels_column="mistake_index", eval_fraction=0.0
    )
    examples, _ = settings.read()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(examples) == len(rows) == 300
    for example, row in zip(examples, rows, strict=True):
        assert example.prompt == row["input"]
        pieces = [example.completion[a:b] for a, b in zip((0, *example.ends), example.ends, strict=False)]
        assert [piece.removesuffix("\n") for piece in pieces[:-1]] + pieces[-1:] == row["steps"]
        mistake = row["mistake_index"]
        right = len(row["steps"]) if mistake is None else mistake
        assert example.labels[:right] == (1.0,) * right
        assert set(example.labels[right : right + 1]) <= {0.0}
        assert set(example.labels[right + 1 :]) <= {None}


def rows_of(prompts: Sequence[str]) -> list[dict[str, str]]:
    return [{"prompt": prompt, "chosen": f"good {n}", "rejected": f"bad {n}"} for n, prompt in enumerate(prompts)]


def test_rows_of_one_prompt_are_held_out_together_and_always_the_same(tmp_path: Path) -> None:
    prompts = [f"question {n % 20}" for n in range(60)]
    settings = Preferences(path=written(tmp_path, rows_of(prompts)), eval_fraction=0.25)
    train, held_out = settings.read(tmp_path)
    assert (len(train), len(held_out)) == (45, 15)
    assert not {pair.prompt for pair in train} & {pair.prompt for pair in held_out}
    assert len({pair.prompt for pair in held_out}) == 5
    order = [pair.chosen for pair in train]
    assert order == sorted(order, key=lambda text: int(text.split()[1]))
    assert settings.read(tmp_path) == (train, held_out)


@pytest.mark.parametrize(
    "example",
    [
        PreferencePair("2+2?", "4", "5", 0.5),
        PreferencePair((), (ASKED, FOUR), (ASKED, FIVE)),
        PreferencePair((ASKED,), "4", "5"),
        LabelledSteps("2+2+1=", "4+1\n6", (4, 5), (1.0, None)),
        LabelledSteps((ASKED,), "ü\n✓", (2, 3), (0.25, 0.0)),
    ],
)
def test_examples_come_back_from_json(tmp_path: Path, example: Any) -> None:
    record = json.loads(json.dumps(example_to_json(example)))
    assert example_from_json(record) == example
    kind = Preferences if isinstance(example, PreferencePair) else StepLabels
    assert all_of(kind, tmp_path, [record]) == [example]  # and is a row of a recipe's data


PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
LABELLED = {"prompt": "a", "completions": ["b", "c"], "labels": [1, 0]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        *table("reward_examples", "wrong"),
        ({**PAIR, "prompt": None}, "prompt: expected a text, or chat messages, got None"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_file_and_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    kind, good = (Preferences, PAIR) if row.keys() & {"chosen", "rejected"} else (StepLabels, LABELLED)
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(row)}\n")
    said = message_of(DataError, kind(path=str(path)).read)
    assert said.startswith(f"{path} line 3: ")
    assert message in said
