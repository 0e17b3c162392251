"""The one table of declared metrics, and how a key finds its declaration."""

from __future__ import annotations

from oncurve.base.errors import suggest
from oncurve.metrics.metric import Metric
from oncurve.metrics.of_cluster import CLUSTER_METRICS
from oncurve.metrics.of_correction import CORRECTION_METRICS
from oncurve.metrics.of_reward_model import REWARD_MODEL_METRICS
from oncurve.metrics.of_rollout import ROLLOUT_METRICS
from oncurve.metrics.of_update import UPDATE_METRICS

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (*ROLLOUT_METRICS, *UPDATE_METRICS, *CORRECTION_METRICS, *CLUSTER_METRICS, *REWARD_MODEL_METRICS)
}

_FAMILIES: dict[str, Metric] = {metric.prefix: metric for metric in METRICS.values() if metric.prefix is not None}


def declared(key: str) -> Metric:
    """The declaration of `key`: its own, or that of the family whose prefix it has.

    Raises KeyError: `key` is not declared; the message has the nearest declared name.
    """
    if key in METRICS and METRICS[key].prefix is None:
        return METRICS[key]
    for prefix, family in _FAMILIES.items():
        if key.startswith(prefix) and len(key) > len(prefix) and key != family.name:
            return family
    raise KeyError(f"metric {key!r} is not declared in oncurve.metrics{suggest(key, METRICS)}")
