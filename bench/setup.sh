#!/bin/sh
# Makes the benchmark's own environment: $VENV with oncurve as it is here, and its peers. Called by make.
set -eu
PYTHON="$PYTHON" VENV="$VENV" TORCH="$TORCH" sh scripts/setup.sh run
printf '%s\n' "oncurve: installing the benchmark's peers" >&2
"$VENV/bin/python" -m pip --disable-pip-version-check install -q -c constraints.txt -r bench/requirements.txt
touch "$VENV/.installed-bench"
