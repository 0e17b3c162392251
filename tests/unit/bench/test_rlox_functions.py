"""The comparison with the installed rlox: none differs, and a difference is seen."""

import importlib.util

import numpy
import pytest
from bench.compare import rlox_functions

import oncurve.compat.rlox as compat

needs_rlox = pytest.mark.skipif(importlib.util.find_spec("rlox") is None, reason="rlox is for the benchmark only")


@needs_rlox
def test_nothing_differs_from_the_rlox_that_is_installed() -> None:
    found = dict(rlox_functions.differences())
    assert len(found) > 12
    assert {what: problem for what, problem in found.items() if problem} == {}


@pytest.mark.parametrize(("theirs", "seen"), [(1.0, False), (1 + 1e-11, True), (numpy.ones(2), True)])
def test_a_difference_is_seen(theirs: object, seen: bool) -> None:
    assert bool(rlox_functions._difference(theirs, 1.0, 1e-12)) is seen


def test_every_call_is_of_a_function_that_is_here() -> None:
    called = {name for name, arguments in rlox_functions._calls() if getattr(compat, name)(*arguments) is not None}
    assert called == {name for name in compat.__all__ if name.startswith("compute_")}
