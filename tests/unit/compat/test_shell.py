"""The words of a call in a shell script are those that bash gives it, and unknown ones are said with their line."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from oncurve.base.errors import ConfigError
from oncurve.compat.shell import Program, Word, find_call

PROGRAM = Program(re.compile(r"\S* (\S*/)?tool\.main"), "python3 -m tool.main")
ENVIRONMENT = {"HOME": "/home/me", "PATH": os.defpath, "GIVEN": "from outside", "EMPTY": ""}

PRELUDE = """
python3() { if [ "$1" = -c ]; then false; else printf '%s\\0' "$@" >> "$SAID"; fi; }
uv() { shift; "$@"; }
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
    "continued of settings": ('python3 -m tool.main \\\n  a=1 \\\n  b="two words" \\\n  c=\'["x","y"]\' $@\n'),
    "defaults of settings": (
        'A=${NO:-7}\npython3 -m tool.main ${A:+yes} x=${GIVEN:-d} "y=${EMPTY:-$A b}" z=${EMPTY-d} ${NO:="q r"} $NO\n'
    ),
    "nested": ("A=1\nB=${NO:-${NONE:-x_${A}}}\npython3 -m tool.main b=$B\n"),
    "cut of settings": (
        "P=/a/b/c.tar.gz\npython3 -m tool.main ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P%/*} ${P//a/_} ${#P}\n"
    ),
    "letters": ("A=Qwen\npython3 -m tool.main ${A,,} ${A^^} ${A,} ${A:1:2}\n"),
    "sums of settings": (
        "A=6 B=4\n"
        "python3 -m tool.main n=$((A * B)) m=$((${A} / $B + 1)) "
        "k=$(( -7 / 2 )) j=$((-7 % 3)) i=$(((A+B)*2)) c=$((A > B))\n"
    ),
    "arrays of settings": (
        "A=(\n"
        "  one=1 # said\n"
        "  # two=2\n"
        '  "three=a b"\n'
        ")\n"
        "A+=(four)\n"
        'python3 -m tool.main ${A[@]} "${A[@]}" ${A[0]} ${#A[@]}\n'
    ),
    "escapes of settings": "python3 -m tool.main a\\ b \"q\\\"q\\\\ \\n\" 'it'\\''s' x#y # comment\n",
    "document of settings": ("cat <<'EOF' > /dev/null\nA=2\npython3 -m tool.main no\nEOF\npython3 -m tool.main yes\n"),
    "branches of settings": (
        "A=1\n"
        'if [ "$A" = 2 ]; then\n'
        "  B=x\n"
        'elif [[ $GIVEN == from* && -z "$NO" ]]; then\n'
        "  B=y\n"
        "else\n"
        "  B=z\n"
        "fi\n"
        "python3 -m tool.main b=$B\n"
    ),
    "cases": (
        "N=gpu\n"
        'case "${N}" in\n'
        "  npu | tpu) M=1 ;;\n"
        "  g*)\n"
        "    M=2\n"
        '    case "$M" in 2) K=3;; *) K=4;; esac\n'
        "    ;;\n"
        "  *) M=9 ;;\n"
        "esac\n"
        "python3 -m tool.main m=$M k=$K\n"
    ),
    "chains": (
        '[ -n "$NO" ] && A=1 || A=2\n[ -d / ] && B=1\n! [ -z x ] || C=3\npython3 -m tool.main a=$A b=$B c=${C:-none}\n'
    ),
    "groups": (
        "A=1\n"
        'if [ "$A" = 1 ] && { [ "$A" = 2 ] || [ "$A" = 1 ]; }; then\n'
        "  L=(uv run python3)\n"
        "fi\n"
        '"${L[@]}" -m tool.main a\n'
    ),
    "functions": ("run() {\n  python3 -m tool.main n=$N\n}\nN=3\nrun\n"),
    "prefixed of settings": "PYTHONUNBUFFERED=1 X=$GIVEN python3 -m tool.main a=1 && echo done; wait\n",
    "numbers": ("N=8\nif [ $N -gt 4 ] && [[ $N -le 8 ]]; then T=2; fi\npython3 -m tool.main t=$T\n"),
    "unset of settings": ("A=1\nunset A\npython3 -m tool.main ${A-gone} ${A:-}x\n"),
    "names": ("F=$(basename /a/b.parquet)\nD=$(dirname /a/b.parquet)\nE=`echo hi`\npython3 -m tool.main $F $D $E\n"),
    "imports": (
        "D=${D:-$(python3 -c 'import no_such_module_here' 2>/dev/null && echo npu || echo gpu)}\n"
        "python3 -m tool.main d=$D\n"
    ),
    "function arguments": (
        'run() {\n  local A=$1\n  shift\n  python3 -m tool.main a=$A n=$# "$@"\n}\nA=0\nrun 1 "x y" z\n'
    ),
    "local": ("A=1\nf() { local A=2; B=$A; }\nf\npython3 -m tool.main a=$A b=$B\n"),
    "returns": ('f() { if [ "$1" = x ]; then A=1; return 0; fi; A=2; }\nf x\npython3 -m tool.main a=$A\n'),
    "prefix is not kept": ("A=1\nA=2 true\nA=3 python3 -m tool.main a=$A\n"),
    "subshell": ("A=1\n(A=2)\necho x | { A=3; cat; } >/dev/null\npython3 -m tool.main a=$A\n"),
    "no turns": ("while [ $# -gt 5 ]; do\n  A=$1\n  shift\ndone\npython3 -m tool.main a=${A:-0} $#\n"),
    "until": ("A=1\nuntil [ -d / ]; do A=2; done\npython3 -m tool.main a=$A\n"),
    "numbers of C": (
        "A=3\npython3 -m tool.main $((010 + 0x1f)) $((A > 2 && A < 4 ? 7 : 8)) $((!A)) $((-A * -(2 - 5))) $((1 || 0))\n"
    ),
    "number test": ("A=3\nif (( A > 2 )); then B=1; else B=2; fi\npython3 -m tool.main b=$B\n"),
    "exit": ("python3 -m tool.main a\nexit 0\npython3 -m tool.main b\n"),
    "exit in a branch": ('A=1\nif [ -n "$NO" ]; then\n  exit 1\nelse\n  A=2\nfi\npython3 -m tool.main a=$A\n'),
    "process": ("exec 3> >(cat)\nA=1\npython3 -m tool.main a=$A\n"),
    "eval": ('A="python3 -m tool.main"\neval "B=2; $A b=\\$B"\n'),
    "bash -c": ('A=1\nbash() { eval "$2"; }\nbash -c "python3 -m tool.main a=$A \'b c\'"\n'),
    "test in brackets": (
        'A="[x]"\nif [[ $A == *x* && ! -n "$NO" ]]; then B=1; else B=2; fi\npython3 -m tool.main ${B:0:1}\n'
    ),
    "falls": ("case a in a) A=1 ;; a) A=2 ;; esac\npython3 -m tool.main $A\n"),
    "function keyword": ("function f {\n python3 -m tool.main $*\n}\nf 1 2\n"),
    "array of one name": ('A=(x y)\npython3 -m tool.main $A ${#A[@]} ${A[1]} "${A[@]:-}" ${A[@]+"${A[@]}"}\n'),
    "quoted document": ("read -r -d '' W <<'EOF'\ntool.main --a $GIVEN\nEOF\npython3 -m $W\n"),
    "replaced": ("P=a.b.c\npython3 -m tool.main ${P/./_} ${P//./_} ${P//[ab]/} ${P/.*/x}\n"),
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
        check=False,
        capture_output=True,
        timeout=60,
    )
    words = said.read_text().split("\0")[:-1]
    words = words[next(index for index, word in enumerate(words) if word.endswith("tool.main")) + 1 :]
    found = find_call(SCRIPTS[name], PROGRAM, ENVIRONMENT, ["first", "second one"])
    assert [word.known() for word in found] == words


def test_words_have_the_lines_of_their_array_or_call() -> None:
    script = "A=(\n  --one 1\n  --two\n)\npython3 tool.main x \\\n  ${A[@]}\n"
    assert find_call(script, PROGRAM, {}) == [
        Word("x", 5), Word("--one", 2), Word("1", 2), Word("--two", 3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "line", "why"),
    [
        ("\npython3 tool.main a=$NO\n", 2, "NO is set nowhere"),
        ("A=$(date)\n\npython3 tool.main a=$A\n", 3, "line 1: the output of a command is not known"),
        ("A=`date`\npython3 tool.main a=$A\n", 2, "the output of a command is not known"),
        (
            'if [ "$(whoami)" = me ]; then\n  A=1\nfi\npython3 tool.main a=$A\n',
            4,
            "A depends on what happens from line 1",
        ),
        (
            "if whoami; then\n  A=1\nelse\n  A=2\nfi\npython3 tool.main a=$A\n",
            6,
            "A depends on what happens from line 1",
        ),
        ("case $(uname) in\n y) A=1;;\nesac\npython3 tool.main a=$A\n", 4, "A depends on what happens from line 1"),
        ("[ `date` = x ] && A=1\npython3 tool.main a=$A\n", 2, "A depends on what happens from line 1"),
        ("for A in 1 2; do\n  python3 tool.main a=$A\ndone\n", 2, "A has several values in the loop of line 1"),
        ("for A in 1 2; do\n  B=$A\ndone\npython3 tool.main a=$B\n", 4, "B depends on what happens from line 1"),
        ("A=1\nwhile true; do\n python3 tool.main $A\n A=2\ndone\n", 3, "A depends on what happens from line 2"),
        ("A=1\nwhile true; do A=2; whoami && break; A=1; done\npython3 tool.main $A\n", 3, "A depends on"),
        ("f() { if whoami; then A=1; return; fi; A=2; }\nf\npython3 tool.main $A\n", 3, "A depends on"),
        ("if whoami; then set -- a b; fi\npython3 tool.main $1\n", 2, "the arguments depend on"),
        ("f() {\n  python3 tool.main $1\n}\nf\n", 2, "the script's own argument"),
        ("python3 tool.main ${A@Q}\n", 1, "such an expansion is not read"),
        ("python3 tool.main ${!A}\n", 1, "such an expansion is not read"),
        ("python3 tool.main $((2 ** 9))\n", 1, "this sum is not known"),
        ("python3 tool.main $((1 / 0))\n", 1, "this sum is not known"),
        ("A=1\n((A++))\npython3 tool.main $A\n", 3, "A is set in (( ))"),
        ("A=(1)\nA[0]=2\npython3 tool.main ${A[0]}\n", 3, "A is set element by element"),
        ("read A\npython3 tool.main $A\n", 2, "A is read from an input"),
        ("IFS=,\nA=a,b\npython3 tool.main $A\n", 3, "IFS is set"),
    ],
)
def test_a_word_that_is_not_known_says_the_line_and_why(script: str, line: int, why: str) -> None:
    (word,) = find_call(script, PROGRAM, {})
    assert (word.line, why in word.why) == (line, True), word
    with pytest.raises(ConfigError, match=f"^line {line}: "):
        word.known()


def test_what_all_ways_agree_on_is_known() -> None:
    script = (
        "A=1\nif whoami; then A=2; B=3; else A=2; B=3; fi\nwhile whoami; do C=1; done\nif x; then C=2; exit 1; fi\n"
    )
    found = find_call(script + "if whoami; then D=4; python3 tool.main $A $B $D; fi\n", PROGRAM, {})
    assert [word.known() for word in found] == ["2", "3", "4"]


def test_nothing_is_executed(tmp_path: Path) -> None:
    script = f"A=$(touch {tmp_path}/made)\ntouch {tmp_path}/made\npython3 tool.main a=$A `touch {tmp_path}/made`\n"
    assert len(find_call(script, PROGRAM, {})) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["ray job submit -- python3", "python3"])
def test_a_call_inside_quotes_is_found(inside: str) -> None:
    script = f'M=model\nsrun --mpi=none bash -c "cd /x; \\\n  {inside} -m tool.main --pretrain $M \\\n  --bf16"\n'
    assert [word.known() for word in find_call(script, PROGRAM, {})] == ["--pretrain", "model", "--bf16"]
    (word,) = find_call("ray job submit -- 'python3 -m tool.main a=$NO'\n", PROGRAM, {})
    assert word == Word("a=$NO", 1, word.why)
    assert "NO is set nowhere" in word.why


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo tool.main\n", "there is no call like: python3 -m tool.main"),
        ("python3 tool.main a\nif x; then python3 -m tool.main b; fi\n", "is called on lines 1, 2"),
        ('python3 tool.main "a\n', 'line 1: the quote " is never closed'),
        ("A=(\n 'b\n", "line 2: the quote ' is never closed"),
        ("A=(\n b\n", r"line 1: \( is never closed"),
        ("\npython3 tool.main ${A", "line 2: { is never closed"),
        ("if [ x ]; then\n  A=1\n", "line 1: if has no fi"),
        ("case x in\n y) A=1 ;;\n", "line 1: case has no esac"),
        ("while x; do\n", "line 1: while has no done"),
        ("f() {\n f\n}\nf\n", "call each other without an end"),
        ("A=x\n" + "A=$A$A\n" * 40, "a value is longer than"),
        ("A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40, "words are longer than 30,000"),
        ("f0() { :; }\n" + "".join(f"f{n}() {{ f{n - 1}; f{n - 1}; }}\n" for n in range(1, 40)) + "f39\n", "too long"),
        ("if x; then " * 3000, "nested too deeply"),
        ("A=" + "$(" * 3000 + ")" * 3000, "no call"),
        ("A=" + "${A:-" * 1000 + "}" * 1000, "nested too deeply"),
        ("A=(" * 3000 + ")" * 3000, "nested too deeply"),
        ("A=$((" + "(" * 3000 + "1" + ")" * 3000 + "))\n", "no call"),
        ("while true; do " * 100 + ":; " + "done; " * 100, "no call"),
        ("A=" + "${A:-" * 100000 + "}" * 100000, "too long to be followed"),
        ("A=" + "a" * 20000 + "\nB=${A##*a*a*a*b}\n", "no call"),
        ("eval " + "'eval " * 20 + "x" + "'" * 20, "no call"),
        ('A=\'eval "$A"\'\neval "$A"\n', "call each other without an end"),
    ],
)
def test_a_script_that_cannot_be_used_is_said(script: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_call(script, PROGRAM, {})


@settings(max_examples=60)
@given(st.text(alphabet="ab=$(){}[]\"'`\\;&|<>#! \n1", max_size=60))
def test_no_text_is_anything_but_a_call_or_a_message(text: str) -> None:
    try:
        found = find_call(f"{text}\npython3 -m tool.main a=1\n", PROGRAM, {})
    except ConfigError as error:
        assert str(error)  # noqa: PT017 - either is right
    else:
        assert found
