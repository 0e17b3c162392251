"""Every number a run logs: declared with its reduction, formula and advice, and accumulated as (sum, count)."""

from oncurve.metrics.accumulator import Metrics
from oncurve.metrics.metric import Metric, Reduction
from oncurve.metrics.table import METRICS, declared

__all__ = ["METRICS", "Metric", "Metrics", "Reduction", "declared"]
