"""Where the groups of a step come from: collected at once, or with a lag, with or without a surplus."""
