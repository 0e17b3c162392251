"""Single measurements, each a command of its own."""
