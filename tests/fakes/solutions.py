"""Right solutions of the arithmetic task, written in the styles that the tiny model was taught."""

from fakes.scripts import script

_taught = script("make_tiny_model")
STYLES, solution = _taught.STYLES, _taught.solution
