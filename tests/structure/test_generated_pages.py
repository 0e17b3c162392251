"""The reference pages of the site, which are made from the code, and `oncurve config explain KEY`, have everything."""

import re

import pytest

from fakes.scripts import script
from oncurve.base.errors import ConfigError
from oncurve.config import RUN, explain_key
from oncurve.metrics import METRICS
from oncurve.rewards import REWARD_KINDS


def test_every_metric_is_on_its_page_with_its_formula_and_advice() -> None:
    text = script("site/metrics_page").page()
    parts = [part for name, metric in METRICS.items() for part in (f"\n## `{name}`\n", metric.formula, metric.advice)]
    assert [part for part in parts if part not in text] == []
    for name, metric in METRICS.items():
        assert " ".join(metric.advice.split()) in " ".join(str(explain_key(name)).split())


def test_every_key_is_on_its_page_and_is_explained() -> None:
    text = script("site/configuration_page").page()
    kinds = {name: section.kinds for name, section in RUN.sections.items()} | {"rewards": REWARD_KINDS}
    for section, classes in kinds.items():
        for name in {name for cls in classes.values() for name in cls.model_fields}:
            assert f"| `{name}` |" in text, f"{section}.{name}"
            said = str(explain_key(f"rewards.0.{name}" if section == "rewards" else f"{section}.{name}"))
            assert re.search(rf"^{section}\.{name}\n  default ", said), said
            assert "\n  meaning  " in said
    assert explain_key("rollout") is not None
    assert explain_key("no_such") is None
    with pytest.raises(ConfigError, match=r"did you mean 'rollout\.top_p'"):
        explain_key("rollout.topp")
    with pytest.raises(ConfigError, match="did you mean 'reward/mean'"):
        explain_key("reward/meen")
