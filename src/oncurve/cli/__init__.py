"""The `oncurve` command."""

from oncurve.cli.root import app as app, main as main
