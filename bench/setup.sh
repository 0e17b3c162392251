#!/bin/sh
# Makes the benchmark's own environment: $VENV with this oncurve, TRL and rlox. Called by make.
set -eu
PYTHON="$PYTHON" VENV="$VENV" TORCH="$TORCH" sh scripts/setup.sh run
printf '%s\n' "oncurve: installing TRL and rlox" >&2
"$VENV/bin/python" -m pip --disable-pip-version-check install -q -c constraints.txt -r bench/requirements.txt
touch "$VENV/.installed-bench"
