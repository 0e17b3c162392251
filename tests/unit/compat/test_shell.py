"""The words of a call in a shell script are those that bash gives it, and unknown ones are said with their line."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from oncurve.compat.shell import Word, find_call
from oncurve.errors import ConfigError

ENVIRONMENT = {"HOME": "/home/me", "PATH": os.defpath, "GIVEN": "from outside", "EMPTY": ""}

PRELUDE = """
python3() { printf '%s\\0' "$@" >> "$SAID"; }
ray() { while [ "$1" != -- ]; do shift; done; shift; "$@"; }
"""

SCRIPTS = {
    "continued": ('set -x\npython3 -m tool.main \\\n  a=1 \\\n  b="two words" \\\n  c=\'["x","y"]\' $@\n'),
    "variables": ('A=1\nexport B="x y"\npython3 -m tool.main a=$A b=$B c="$B" d=${A}0 e="${B}" f=\'$A\'\n'),
    "defaults": (
        'A=${NO:-7}\npython3 tool.main ${A:+yes} x=${GIVEN:-d} "y=${EMPTY:-$A b}" z=${EMPTY-d} ${NO:="q r"} $NO\n'
    ),
    "cut": ("P=/a/b/c.tar.gz\npython3 tool.main ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P%/*}\n"),
    "sums": (
        "A=6 B=4\npython3 tool.main n=$((A * B)) m=$((${A} / $B + 1)) k=$(( -7 / 2 )) j=$((-7 % 3)) i=$(((A+B)*2))\n"
    ),
    "arrays": (
        "A=(\n"
        "  --one 1 # said\n"
        "  # --two 2\n"
        '  --three "a b"\n'
        ")\n"
        "A+=(--four)\n"
        'python3 tool.main ${A[@]} "${A[@]}" ${A[0]}\n'
    ),
    "no array": ('A=()\npython3 -m tool.main "${A[@]}" $EMPTY "$EMPTY" end\n'),
    "ray": (
        "ray job submit --address='http://x' --runtime-env-json='{\"a\": \"b c\"}' \\\n"
        " -- python3 -m tool.main --flag\n"
    ),
    "redirected": "python3 -m tool.main a=1 2>&1 >/dev/null b=2 > /dev/null | tee /dev/null\n",
    "lists": ("P=/d/a.parquet\nF=\"['$P', 'b']\"\npython3 -m tool.main files=\"$F\" g=$F\n"),
    "escapes": "python3 tool.main a\\ b \"q\\\"q\\\\ \\n\" 'it'\\''s' $'l\\n' x#y # comment\n",
    "document": ("read -r -d '' W <<EOF\ntool.main --a 1 \\\n  --b $GIVEN\nEOF\npython3 -m $W --c\n"),
    "cat": ("cat <<'EOF' > /dev/null\nA=2\npython3 -m tool.main no\nEOF\npython3 -m tool.main yes\n"),
    "branches": ("A=1\nif [ -d /nowhere ]; then\n  B=2\n  A=1\nelse\n  C=3\nfi\npython3 -m tool.main a=$A\n"),
    "in a branch": ('N=1\ncase "$N" in\n  1)\n    M=2\n    python3 -m tool.main m=$M\n    ;;\n  *) M=3 ;;\nesac\n'),
    "prefixed": "CUDA=0 X=$GIVEN nohup_=1 python3 -m tool.main a=1 &&  echo done; wait\n",
    "arguments": ('N=$1\nshift\nset -- "$@" z\npython3 -m tool.main n=$N "$@" $#\n'),
    "tilde": ("D=~/data\npython3 -m tool.main ~lora.rank d=$D +a.b=null\n"),
    "unset": ("A=1\nunset A\npython3 -m tool.main ${A-gone}\n"),
    "quoted empties": (
        'A=()\npython3 -m tool.main "${A[@]}" $EMPTY "$EMPTY" "" x"${A[@]}" "${A[@]}$EMPTY" ""$EMPTY b\n'
    ),
    "stars": ('A=("a b" c)\npython3 -m tool.main ${A[*]} "${A[*]}" "$*" $* "x${A[@]}y" z${A[@]}z\n'),
    "path": "A=1; python3 /opt/tool.main a=$A\n",
    "appended": ('A="x"\nA+=" y"\npython3 -m tool.main "$A" $A\n'),
    "windows": ("A=1\r\npython3 -m tool.main \\\r\n  a=$A\r\n"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_words_are_those_of_bash(name: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    said = tmp_path / "said"
    script = SCRIPTS[name].replace("\r\n", "\n")
    subprocess.run(
        [bash, "--norc", "-c", PRELUDE + script, "script", "first", "second one"],
        env=ENVIRONMENT | {"SAID": str(said)},
        check=True,
        capture_output=True,
        timeout=60,
    )
    words = said.read_text().split("\0")[:-1]
    words = words[next(index for index, word in enumerate(words) if word.endswith("tool.main")) + 1 :]
    found = find_call(SCRIPTS[name], ["tool.main"], ENVIRONMENT, ["first", "second one"])
    assert [word.known() for word in found] == words


def test_words_have_the_lines_of_their_array_or_call() -> None:
    script = "A=(\n  --one 1\n  --two\n)\npython3 tool.main x \\\n  ${A[@]}\n"
    assert find_call(script, ["tool.main"], {}) == [
        Word("x", 5), Word("--one", 2), Word("1", 2), Word("--two", 3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "line", "why"),
    [
        ("\npython3 tool.main a=$NO\n", 2, "NO is set nowhere"),
        ("A=$(date)\n\npython3 tool.main a=$A\n", 3, "the output of a command is not known"),
        ("A=`date`\npython3 tool.main a=$A\n", 2, "the output of a command is not known"),
        (
            "if [ -n x ]; then\n  A=1\nfi\npython3 tool.main a=$A\n",
            4,
            "A depends on what happens between lines 1 and 3",
        ),
        ("case x in\n y) A=1;;\nesac\npython3 tool.main a=$A\n", 4, "A depends on what happens between lines 1 and 3"),
        ("for A in 1 2; do\n  python3 tool.main a=$A\ndone\n", 2, "A has several values in the loop of line 1"),
        ("f() {\n  python3 tool.main $1\n}\nf a\n", 2, "$1 is an argument of a function"),
        ("python3 tool.main ${A/x/y}\n", 1, "such an expansion is not read"),
        ("python3 tool.main $((2 ** 9))\n", 1, "this sum is not known"),
        ("python3 tool.main $((1 / 0))\n", 1, "this sum is not known"),
    ],
)
def test_a_word_that_is_not_known_says_the_line_and_why(script: str, line: int, why: str) -> None:
    (word,) = find_call(script, ["tool.main"], {})
    assert (word.line, why in word.why) == (line, True)
    with pytest.raises(ConfigError, match=f"^line {line}: "):
        word.known()


def test_nothing_is_executed(tmp_path: Path) -> None:
    script = f"A=$(touch {tmp_path}/made)\ntouch {tmp_path}/made\npython3 tool.main a=$A `touch {tmp_path}/made`\n"
    assert len(find_call(script, ["tool.main"], {})) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_call_inside_quotes_is_found() -> None:
    script = "M=model\n"
    script += (
        'srun --mpi=none bash -c "cd /x; \\\n  ray job submit -- python3 -m tool.main --pretrain $M \\\n  --bf16"\n'
    )
    assert [word.known() for word in find_call(script, ["tool.main"], {})] == ["--pretrain", "model", "--bf16"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo tool.main\n", "there is no call of tool.main or other"),
        ("python3 tool.main a\nif x; then python3 -m other b; fi\n", "is called on lines 1, 2"),
        ('python3 tool.main "a\n', 'line 1: the quote " is not closed'),
        ("A=(\n 'b\n", "line 2: the quote ' is not closed"),
        ("A=(\n b\n", "'\\)' is missing before the end"),
        ("\npython3 tool.main ${A", r"line 2: \$\{ is not closed"),
    ],
)
def test_a_script_that_cannot_be_used_is_said(script: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_call(script, ["tool.main", "other"], {})
