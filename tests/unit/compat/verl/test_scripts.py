"""A script's call of verl is what its words give; what cannot be known is said with its line and the setting."""

from pathlib import Path

import pytest

from oncurve.base.errors import ConfigError
from oncurve.compat.verl import read

CALL = "python3 -m verl.trainer.main_ppo "


def script(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text, newline="")
    return path


def test_words_have_the_lines_of_their_array_or_call(tmp_path: Path) -> None:
    path = script(tmp_path, f"A=(\n  data.shuffle=True\n)\n{CALL}data.seed=1 \\\n  ${{A[@]}}\n")
    places = {name: each.place for name, each in read([str(path)]).said.items()}
    assert places == {"data.seed": f"{path} line 4", "data.shuffle": f"{path} line 2"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"\n{CALL}data.seed=$ONCURVE_NO\n", "line 2: data.seed: ONCURVE_NO is set nowhere"),
        (f"A=$(nvidia-smi)\n{CALL}data.seed=$A\n", "line 2: data.seed: line 1: the output of a command is not known"),
        (f'if [ "$(whoami)" = me ]; then\n  A=1\nfi\n{CALL}data.seed=$A\n', "A depends on what happens from line 1 on"),
        (f"for A in 1 2; do\n  B=$A\ndone\n{CALL}data.seed=$B\n", "B depends on what happens from line 1 on"),
        (f"for A in 1 2; do\n  {CALL}data.seed=$A\ndone\n", "A has several values in the loop of line 1"),
        (f"{CALL}data.seed=$((1 / 0))\n", "this sum is not known"),
        (f"{CALL}data.seed=${{!A}}\n", "is not read"),
        (f"{CALL}data.seed=$1\n", "the script's own argument"),
        (f"{CALL}data.seed=$1 trainer.project_name='a${{data.seed}}'\n", "trainer.project_name: $1"),
    ],
)
def test_a_value_that_is_not_known_says_the_line_and_why(text: str, why: str, tmp_path: Path) -> None:
    path = script(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read([str(path)])
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_value_that_is_given_after_the_script_need_not_be_known(tmp_path: Path) -> None:
    path = script(tmp_path, f"A=$(nvidia-smi)\n{CALL}data.seed=$A data.shuffle=True\n")
    assert read([str(path), "data.seed=3"]).said["data.seed"].value == 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo hello\n", "there is no call like: python3 -m verl.trainer.main_ppo"),
        (f"{CALL}a=1\n{CALL}a=2\n", "is called on lines 1, 2"),
        (f'{CALL}"a\n', 'the quote " is never closed'),
        ("A=(\n 'b\n", "the quote ' is never closed"),
        ("if [ x ]; then\n  A=1\n", "line 1: if has no fi"),
        ("case x in\n y) A=1 ;;\n", "case has no esac"),
        (f"{CALL}${{A\n", "never closed"),
        (f"{CALL}hello\n", "expected key=value"),
    ],
)
def test_a_script_that_cannot_be_used_is_said(text: str, why: str, tmp_path: Path) -> None:
    path = script(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read([str(path)])
    assert why in str(caught.value)
    assert str(path) in str(caught.value)


def test_nothing_is_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"A=$(touch {made})\ntouch {made}\n{CALL}data.seed=1 data.shuffle=$A `touch {made}`\n"
    with pytest.raises(ConfigError):
        read([str(script(tmp_path, text))])
    assert not made.exists()
