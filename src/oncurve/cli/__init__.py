"""The `oncurve` command."""

from oncurve.cli.app import main as main
