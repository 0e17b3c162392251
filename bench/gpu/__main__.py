"""`python -m bench.gpu day A|B|C --out DIR` measures a card; `python -m bench.gpu wheels DIR` gathers what it lacks."""

import sys

from bench.gpu import day, wheels

COMMANDS = {"day": day.main, "wheels": wheels.main}

if (command := COMMANDS.get("".join(sys.argv[1:2]))) is None:
    print("usage: python -m bench.gpu day A|B|C --out DIR, or python -m bench.gpu wheels DIR", file=sys.stderr)
    sys.exit(2)
sys.exit(command(sys.argv[2:]))
