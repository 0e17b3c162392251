#!/bin/sh
# Makes $VENV and installs oncurve with pinned dependencies. `setup.sh run` installs what the demo needs, `setup.sh dev`
# also the test tools, `setup.sh docs` what builds the site, `setup.sh torch` torch alone. Called by make; where something
# is missing, it prints the command that installs it.
set -eu
want=${1:-run}
say() { printf '%s\n' "oncurve: $*" >&2; }

command -v "$PYTHON" >/dev/null 2>&1 || {
    say "$PYTHON was not found. Install it with:  sudo apt-get install python3 python3-venv"; exit 2; }
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "$("$PYTHON" --version) is too old: oncurve needs 3.11. Use another with:  make $(test "$want" = dev && echo test || echo demo) PYTHON=python3.11"; exit 2; }
if ! test -x "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making $VENV"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV" >"${TMPDIR:-/tmp}/oncurve-venv.log" 2>&1 || {
        rm -rf "$VENV"
        if "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then cat "${TMPDIR:-/tmp}/oncurve-venv.log" >&2; exit 2; fi
        say "this Python cannot make environments. Install venv with:  sudo apt-get install python3-venv"; exit 2; }
fi
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

torch_version=$(sed -n 's/^torch==//p' constraints.txt)
choice=$TORCH
if test "$choice" = auto; then
    choice=cpu
    if test "$(uname -s)" != Linux || command -v nvidia-smi >/dev/null 2>&1 || test -e /dev/nvidia0; then choice=default; fi
fi
if ! "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
    say "installing torch $torch_version ($choice build; make ... TORCH=cpu or TORCH=default chooses)"
    case $choice in
        cpu)
            # The CPU build, without the gigabytes of CUDA, is in the configured index or in PyTorch's own.
            pip install -q -c constraints.txt "torch==$torch_version+cpu" 2>/dev/null ||
                pip install -q --no-deps --index-url https://download.pytorch.org/whl/cpu "torch==$torch_version" || {
                say "no CPU build of torch is available. Use the default build (several GB) with:  TORCH=default make demo"; exit 2; }
            ;;
        default) pip install -q -c constraints.txt "torch==$torch_version" ;;
        *) say "TORCH is '$TORCH'; it must be auto, cpu or default"; exit 2 ;;
    esac
fi
if test "$want" = torch; then exit 0; fi
case $want in run) extra='' ;; *) extra="[$want]" ;; esac
say "installing oncurve$extra and its pinned dependencies"
pip install -q -c constraints.txt -e ".$extra"
if test "$want" = run; then touch "$VENV/.installed"; else touch "$VENV/.installed-$want"; fi
