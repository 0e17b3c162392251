"""The sources of a step's groups: collected at once, or with a lag, with or without a surplus."""
