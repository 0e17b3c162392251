"""The systems under measurement, each a `serve(case, channel)` that takes one training step per command."""
