"""The disturbed engine of the study: what it samples from is what it records, and without noise it is the local one."""

import math

import pytest
import torch
from bench.science.disturbed import Disturbed, disturbed_logits
from bench.science.off_policy import STUDY
from bench.science.page import PAGE, STUDIES, filled
from bench.science.study import Study, interval, merged

import oncurve
from oncurve.config import load_config
from oncurve.models import LocalWeights
from oncurve.rollout import Sampling
from oncurve.run import assemble
from oncurve.types import Prompt

SMALL = {"data": {"prompts_per_step": 2}, "rollout": {"group_size": 4, "max_new_tokens": 40}, "eval": {"every": 0}}


def trained(method: str, size: float, study: Study = STUDY) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """The weights after two steps, and the metrics."""
    with oncurve.train("task", steps=2, seed=1, settings=merged(study.settings_of(method, size), SMALL)) as run:
        return {name: value.clone() for name, value in run.model.state_dict().items()}, run.metrics


def test_without_noise_every_way_to_correct_is_the_same_run():
    weights = [trained(method, 0.0)[0] for method in STUDY.methods]
    assert all(torch.equal(each[name], weights[0][name]) for each in weights for name in each)


def test_with_noise_the_sampler_is_another_distribution_and_the_weights_are_seen():
    (plain, said), (corrected, seen) = trained("none", 3.0), trained("truncated", 3.0)
    assert said[0]["policy/mismatch"] == seen[0]["policy/mismatch"] > 0.05
    assert seen[0]["correction/effective_sample_size"] < 1
    assert any(not torch.equal(plain[name], corrected[name]) for name in plain)


def test_the_noise_is_standard_normal_and_a_function_of_the_uniform():
    uniforms = torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = disturbed_logits(torch.zeros(500, 100), uniforms, 1.0)
    assert float(noise.mean()) == pytest.approx(0, abs=5 / math.sqrt(noise.numel()))
    assert float(noise.std()) == pytest.approx(1, abs=0.02)
    assert torch.equal(noise[:7], disturbed_logits(torch.zeros(7, 100), uniforms[:7], 1.0))
    logits = torch.randn(500, 100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(disturbed_logits(logits, uniforms, 0.0), logits)
    torch.testing.assert_close(disturbed_logits(logits, uniforms, 2.5), logits + 2.5 * noise)


def test_evaluations_are_not_disturbed():
    config, base = load_config("task", settings=merged(STUDY.settings_of("none", 4.0), SMALL))
    with assemble(config, base) as run:
        engine = Disturbed(size=4.0).build(config.rollout, run.loaded.tokenizer, run.loaded.eos_ids, 0)
        prompts = [Prompt(7, "", run.prompts[0].ids)]
        engine.follow(LocalWeights(run.loaded.model, 0))
        again = Sampling(group_size=4, max_new_tokens=40)
        (disturbed,), (whole,) = engine.generate(prompts, 0), engine.generate(prompts, 0, again)
        run.engine.follow(LocalWeights(run.loaded.model, 0))
        plain = Disturbed().build(config.rollout, run.loaded.tokenizer, run.loaded.eos_ids, 0)
        plain.follow(LocalWeights(run.loaded.model, 0))
        assert whole.completions == plain.generate(prompts, 0)[0].completions != disturbed.completions
        engine.close()


def test_the_table_has_means_and_intervals_over_seeds():
    def runs(method: str, size: float, ends: list[float]) -> list[dict]:
        curves = [{"eval/accuracy": [0.1, end], "policy/mismatch": [0.25, 9.0]} for end in ends]
        return [{"method": method, "size": size, "seed": seed, "curves": each} for seed, each in enumerate(curves)]

    # the mean of .1, .2, .3 is .2, their deviation .1, and Student's t of two degrees of freedom 4.30
    assert interval([0.1, 0.2, 0.3]) == pytest.approx((0.2, 4.30 * 0.1 / math.sqrt(3)))
    lines = STUDY.table(
        {"runs": runs("none", 0.0, [0.1, 0.2, 0.3]) + runs("masked", 2.0, [0.5, 0.5]) + runs("none", 2.0, [0, 1])}
    )
    assert lines.splitlines()[2:] == [
        "| 0 | 0.25 | 0.200 ± 0.248 | 0.200 ± 0.248 |",
        "| 2 | 0.25 | 0.500 ± 6.355 | 0.500 ± 0.000 |",
    ]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_the_page_says_what_the_results_say(study: Study):
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, study, study.read()) == page, "run: python -m bench.science.page"
    assert (PAGE.parent / "science" / f"{study.name}.svg").is_file()
