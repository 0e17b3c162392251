"""`python -m oncurve` is the `oncurve` command."""

from oncurve.cli import main

main()
