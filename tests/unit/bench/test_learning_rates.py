"""The study of learning rates: verdicts on curves made by hand, and what its page says of the committed results."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from bench.learning.presets import RECIPE
from bench.learning.rates import CASES, GRID, OUT, words_of
from bench.learning.rates_page import PAGE, exponent, page_of, rows, standard_error
from bench.learning.runs import STEP_KL, run_here

from oncurve.config import load_config

STEPS = 16


def run(end: float, kl: float, last_kl: float | None = None, best: float | None = None) -> dict[str, Any]:
    """A run whose reward ends at `end`, was `best` at steps 5 to 12, and whose KL is `kl` until the last quarter."""
    rewards = [0.1] * 4 + [end if best is None else best] * 8 + [end] * 4
    curve = [kl] * 12 + [kl if last_kl is None else last_kl] * 4
    constant = {"policy/kl_coef": [0.001] * STEPS, "policy/entropy": [0.5] * STEPS, "optim/grad_norm": [1.0] * STEPS}
    curves = {"policy/kl": curve, "step_kl": [9.0] + [kl / 10] * 15, "optim/learning_rate": [1e-4] * STEPS, **constant}
    return {"reward_mean": rewards, "curves": curves}


def results(**by_rate: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "runs": {
            f"task {rate.replace('_', '-')}": {str(n): one for n, one in enumerate(by_rate[rate])} for rate in by_rate
        }
    }


def verdicts(found: dict[str, Any]) -> list[str]:
    return [row.verdict for row in rows(found)]


def test_a_rate_is_good_within_two_standard_errors_of_the_best() -> None:
    # Deviations of 0.02/sqrt(2) per rate: the error of a difference is 0.0141, and twice that 0.0283.
    spread = {"1e_5": (0.50, 0.52), "1e_4": (0.76, 0.78), "1e_3": (0.78, 0.80)}
    found = results(**{rate: [run(end, 0.01) for end in ends] for rate, ends in spread.items()})
    assert math.isclose(standard_error([list(ends) for ends in spread.values()]), 0.02 / math.sqrt(2))
    assert verdicts(found) == ["slow", "good", "good"]


def test_a_rate_is_too_high_where_half_of_the_reward_is_lost_or_the_policy_has_left_its_model() -> None:
    lost, left = run(0.2, 0.5, best=0.6), run(0.9, 0.5, last_kl=1.2)
    sound = [run(0.7, 0.05), run(0.72, 0.05)]
    assert verdicts(results(**{"1e_4": sound, "1e_3": [lost, lost], "1e_2": [left, left]})) == [
        "good",
        "too high",
        "too high",
    ]


def test_the_kl_of_a_step_leaves_out_the_first_and_is_read_next_to_that_from_the_reference() -> None:
    (row,) = rows(results(**{"1e_4": [run(0.7, 0.05, last_kl=0.08), run(0.7, 0.05, last_kl=0.08)]}))
    assert (row.kl, row.last_kl) == (0.05, 0.08)
    assert math.isclose(row.step_kl, 0.005)


def test_the_exponent_is_the_slope_of_the_logarithms_over_rates_that_do_not_break() -> None:
    sound = {f"1e_{n}": [run(0.5, 0.9 * 100.0 ** (3 - n)), run(0.6, 0.9 * 100.0 ** (3 - n))] for n in (3, 4, 5)}
    broken = {"1e_2": [run(0.1, 3.0, best=0.8)] * 2}
    assert math.isclose(exponent(rows(results(**sound, **broken))), 2.0)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.story])
def test_the_settings_of_a_run_are_those_of_a_recipe_at_a_constant_rate(name: str) -> None:
    config, _ = load_config(RECIPE, words_of(CASES[name], 3e-4, 1, None))
    assert (config.learner.learning_rate, config.learner.schedule, config.learner.warmup_steps) == (3e-4, "constant", 0)
    assert (config.run.seed, config.data.prompts_per_step, config.rollout.group_size) == (1, 16, 8)


def test_the_kl_of_a_step_is_what_its_next_update_finds() -> None:
    """The mean of `policy/kl_old` over two updates on one batch is half of the first one's KL: at first it is 0."""
    small = ["run.steps=1", "data.prompts_per_step=2", "learner.ppo_epochs=2", "learner.warmup_steps=0", "eval.every=0"]
    found = run_here(str(RECIPE), [*small, "checkpoint.every=0"], False, (STEP_KL, "policy/kl_old"))
    first, _ = found["curves"][STEP_KL]
    assert first > 0
    assert math.isclose(first / 2, found["curves"]["policy/kl_old"][0], rel_tol=1e-3)


def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8"))
    return found


def test_the_committed_results_have_every_rate_of_every_case() -> None:
    assert {(row.case, row.rate) for row in rows(committed())} == {
        (name, rate) for name, case in CASES.items() for rate in case.rates
    }
    assert all(rate in GRID for case in CASES.values() for rate in case.rates)


def test_the_page_says_what_the_results_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_of(page, committed()) == page, "run: python -m bench.learning.rates_page"
    assert (PAGE.with_suffix("") / "rates.svg").is_file()


def test_the_doctor_agrees_with_the_measured_rates() -> None:
    """Each rate that breaks has an alarm of the rules of rates, and no other has one."""
    for row in rows(committed()):
        high = {"rate-too-high", "kl-runaway"} & row.alarms.keys()
        assert bool(high) == (row.verdict == "too high"), row
        assert "rate-too-low" not in row.alarms, row


def test_the_kl_of_the_page_separates_slow_good_and_too_high() -> None:
    """Within a case: a higher rate has a higher KL at step 10, and what is too high has more than what is good."""
    made = rows(committed())
    for case in CASES:
        own = [row for row in made if row.case == case]
        assert [row.kl for row in own] == sorted(row.kl for row in own) or own[-1].kl > 1
        order = [{"slow": 0, "good": 1, "too high": 2}[row.verdict] for row in own]
        assert order == sorted(order), case
        assert "good" in {row.verdict for row in own}


def test_the_page_is_linked() -> None:
    root = Path(PAGE).parents[1]
    for name in ("README.md", "docs/faq.md", "docs/tutorial.md", "docs/algorithm.md", "docs/doctor.md"):
        assert "learning-rates.md" in (root / name).read_text(encoding="utf-8"), name
