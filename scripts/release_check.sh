#!/bin/sh
# What must hold before a version is tagged: the source distribution and the wheel are built and checked, and each is
# installed in a clean environment of every Python of $PYTHONS and trains there, outside of this folder; the site has no
# warning; the notebooks run, and a model card is what the hub's library reads.
#   PYTHONS="python3.11 python3.12 python3.13"    TORCH=cpu|default    VENV=.venv, which `make` has made
set -eu
say() { printf '\n== %s\n' "$*"; }
root=$(pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/oncurve-release.XXXXXX")
trap 'rm -rf "$work"' EXIT
torch=$(sed -n 's/^torch==//p' constraints.txt)

say "build and check"
"$PYTHON" -m venv "$work/build"
"$work/build/bin/python" -m pip --disable-pip-version-check install -q build twine
"$work/build/bin/python" -m build -o "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$work/build/bin/twine" check --strict "$work"/dist/*

for python in $PYTHONS; do
    "$python" -c "" 2>/dev/null || { say "$python is not here: not tried"; continue; }
    for made in "$work"/dist/*.whl "$work"/dist/*.tar.gz; do
        say "$("$python" --version): ${made##*/}"
        rm -rf "$work/clean"
        "$python" -m venv "$work/clean"
        pip="$work/clean/bin/python -m pip --disable-pip-version-check install -q -c $root/constraints.txt"
        if test "$TORCH" != default; then
            $pip "torch==$torch+cpu" 2>/dev/null ||
                $pip --no-deps --index-url https://download.pytorch.org/whl/cpu "torch==$torch" || {
                say "$("$python" --version): no CPU build of torch $torch is to be had: not tried"; continue 2; }
        fi
        $pip "$made"
        (cd "$work" && rm -rf run && "$work/clean/bin/oncurve" train task run.steps=2 eval.every=0 --out run >log 2>&1 &&
            "$work/clean/bin/oncurve" export run >>log 2>&1 && test -f run/model/README.md) || { cat "$work/log"; exit 1; }
    done
done

say "site, notebooks, model card"
"$VENV/bin/python" -m mkdocs build -q -d "$work/site"
"$VENV/bin/python" -m pytest -q -n 2 tests/integration/test_notebook.py tests/integration/test_model_card.py \
    tests/integration/test_stability.py -m "slow or not slow"
say "all of it holds"
