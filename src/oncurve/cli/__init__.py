"""The `oncurve` command."""

from oncurve.cli.root import app, main
