"""`python -m bench.gpu day A|B|C --out DIR` runs `bench.gpu.day`."""

import sys

from bench.gpu.day import main

if sys.argv[1:2] != ["day"]:
    print("usage: python -m bench.gpu day A|B|C --out DIR", file=sys.stderr)
    sys.exit(2)
sys.exit(main(sys.argv[2:]))
