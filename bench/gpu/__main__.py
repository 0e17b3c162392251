"""`python -m bench.gpu` runs `bench.gpu.measure`."""

import sys

from bench.gpu.measure import main

sys.exit(main())
