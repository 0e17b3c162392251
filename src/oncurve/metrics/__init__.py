"""Every number that a run logs: declared with its reduction, formula and advice, and accumulated as (sum, count)."""

from oncurve.metrics.accumulator import Metrics as Metrics
from oncurve.metrics.metric import METRICS as METRICS, Metric as Metric, Reduction as Reduction, declared as declared
from oncurve.metrics.numbers import share as share, short as short
