"""The words of verl's call in a script are those that bash gives it; what cannot be known is said with its line."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from oncurve.compat.verl import read
from oncurve.compat.verl.script import call_in
from oncurve.errors import ConfigError

PRELUDE = 'python3() { if [ "$1" = -m ]; then printf \'%s\\0\' "$@" >> "$SAID"; fi; }\nuv() { shift; "$@"; }\n'
CALL = "python3 -m verl.trainer.main_ppo "
SCRIPTS = {
    "continued": CALL + "\\\n  a=1 \\\n  b=\"two words\" \\\n  c='[\"x\",\"y\"]' $@\n",
    "variables": f"A=1\nexport B=\"x y\"\n{CALL}a=$A b=$B c=\"$B\" d=${{A}}0 e=\"${{B}}\" f='$A'\n",
    "defaults": (
        f'A=${{NO:-7}}\n{CALL}${{A:+yes}} x=${{GIVEN:-d}} "y=${{EMPTY:-$A b}}" z=${{EMPTY-d}} ${{NO:="q r"}} $NO\n'
    ),
    "nested": f"A=1\nB=${{NO:-${{NONE:-x_${{A}}}}}}\n{CALL}b=$B\n",
    "cut": f"P=/a/b/c.tar.gz\n{CALL}${{P##*/}} ${{P#*/}} ${{P%.*}} ${{P%%.*}} ${{P%/*}} ${{P//a/_}} ${{#P}}\n",
    "letters": f"A=Qwen\n{CALL}${{A,,}} ${{A^^}} ${{A,}} ${{A:1:2}}\n",
    "sums": (
        f"A=6 B=4\n"
        f"{CALL}n=$((A * B)) m=$((${{A}} / $B + 1)) k=$(( -7 / 2 )) j=$((-7 % 3)) i=$(((A+B)*2)) c=$((A > B))\n"
    ),
    "arrays": (
        f'A=(\n  one=1 # said\n  # two=2\n  "three=a b"\n)\nA+=(four)\n'
        f'{CALL}${{A[@]}} "${{A[@]}}" ${{A[0]}} ${{#A[@]}}\n'
    ),
    "no array": f'A=()\n{CALL}"${{A[@]}}" $EMPTY "$EMPTY" end\n',
    "redirected": f"{CALL}a=1 2>&1 >/dev/null b=2 > /dev/null | tee /dev/null\n",
    "lists": f"P=/d/a.parquet\nF=\"['$P', 'b']\"\n{CALL}files=\"$F\" g=$F\n",
    "escapes": f"{CALL}a\\ b \"q\\\"q\\\\ \\n\" 'it'\\''s' x#y # comment\n",
    "document": f"cat <<'EOF' > /dev/null\nA=2\n{CALL}no\nEOF\n{CALL}yes\n",
    "branches": (
        f"A=1\nif [ \"$A\" = 2 ]; then\n  B=x\nelif [[ $GIVEN == from* && -z \"$NO\" ]]; then\n  B=y\nelse\n  B=z\nfi\n"
        f"{CALL}b=$B\n"
    ),
    "cases": (
        f'N=gpu\ncase "${{N}}" in\n  npu | tpu) M=1 ;;\n  g*)\n'
        f'    M=2\n    case "$M" in 2) K=3;; *) K=4;; esac\n    ;;\n'
        f"  *) M=9 ;;\nesac\n{CALL}m=$M k=$K\n"
    ),
    "chains": f"[ -n \"$NO\" ] && A=1 || A=2\n[ -d / ] && B=1\n! [ -z x ] || C=3\n{CALL}a=$A b=$B c=${{C:-none}}\n",
    "groups": (
        'A=1\nif [ "$A" = 1 ] && { [ "$A" = 2 ] || [ "$A" = 1 ]; }; then\n  L=(uv run python3)\n'
        'fi\n"${L[@]}" -m verl.trainer.main_ppo a\n'
    ),
    "functions": f"run() {{\n  {CALL}n=$N\n}}\nN=3\nrun\n",
    "prefixed": f"PYTHONUNBUFFERED=1 X=$GIVEN {CALL}a=1 && echo done; wait\n",
    "appended": f'A="x"\nA+=" y"\n{CALL}"$A" $A\n',
    "numbers": f"N=8\nif [ $N -gt 4 ] && [[ $N -le 8 ]]; then T=2; fi\n{CALL}t=$T\n",
    "unset": f"A=1\nunset A\n{CALL}${{A-gone}} ${{A:-}}x\n",
    "names": f"F=$(basename /a/b.parquet)\nD=$(dirname /a/b.parquet)\nE=`echo hi`\n{CALL}$F $D $E\n",
    "imports": (
        f"D=${{D:-$(python3 -c 'import no_such_module_here' 2>/dev/null && echo npu || echo gpu)}}\n{CALL}d=$D\n"
    ),
    "windows": f"A=1\r\n{CALL}\\\r\n  a=$A\r\n",
}  # fmt: skip


def script(folder: Path, text: str) -> Path:
    path = folder / "run.sh"
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_words_are_those_of_bash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    said = tmp_path / "said"
    given = {"HOME": "/home/me", "GIVEN": "from outside", "EMPTY": ""}
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    for variable in ("NO", "NONE", "A", "B", "C", "D", "E", "F", "K", "L", "M", "N", "P", "T", "X"):
        monkeypatch.delenv(variable, raising=False)
    text = SCRIPTS[name]
    probe = text.replace("$(python3 -c 'import no_such_module_here' 2>/dev/null", "$(false")
    subprocess.run(
        [bash, "--norc", "-c", PRELUDE + probe.replace("\r\n", "\n")],
        env=given | {"SAID": str(said), "PATH": os.defpath},
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert [word.text for word in call_in(script(tmp_path, text))] == said.read_text().split("\0")[2:-1]


def test_words_have_the_lines_of_their_array_or_call(tmp_path: Path) -> None:
    path = script(tmp_path, f"A=(\n  data.shuffle=True\n)\n{CALL}data.seed=1 \\\n  ${{A[@]}}\n")
    places = {name: each.place for name, each in read([str(path)]).said.items()}
    assert places == {"data.seed": f"{path} line 4", "data.shuffle": f"{path} line 2"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"\n{CALL}data.seed=$ONCURVE_NO\n", "line 2: data.seed: line 2: $ONCURVE_NO is set neither"),
        (f"A=$(nvidia-smi)\n{CALL}data.seed=$A\n", "line 2: data.seed: line 1: $(nvidia-smi) is a command"),
        (f'if [ "$(whoami)" = me ]; then\n  A=1\nfi\n{CALL}data.seed=$A\n', "line 1: its condition is not known"),
        (f"for A in 1 2; do\n  B=$A\ndone\n{CALL}data.seed=$B\n", "it stands in a loop"),
        (f"for A in 1 2; do\n  {CALL}data.seed=$A\ndone\n", "whether verl is called here is not known"),
        (f"{CALL}data.seed=$((1 / 0))\n", "no expression of whole numbers"),
        (f"{CALL}data.seed=${{!A}}\n", "is not read"),
        (f"{CALL}data.seed=$1\n", "the script's own argument"),
        (f"{CALL}data.seed=$1 trainer.project_name='a${{data.seed}}'\n", "trainer.project_name: line 1: $1"),
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
        ("echo hello\n", "calls no trainer of verl"),
        (f"{CALL}a=1\n{CALL}a=2\n", "calls verl several times, on lines 1, 2"),
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


@settings(max_examples=60)
@given(st.text(alphabet="ab=$(){}[]\"'`\\;&|<>#! \n1", max_size=60))
def test_no_text_is_anything_but_a_call_or_a_message(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = script(tmp_path_factory.getbasetemp(), text + f"\n{CALL}data.seed=1\n")
    try:
        found = call_in(path)
    except ConfigError as error:
        assert str(error)  # noqa: PT017 - either is right
    else:
        assert found
