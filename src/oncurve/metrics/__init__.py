"""Every number that a run logs: declared with its reduction, formula and advice, and accumulated as (sum, count)."""

from oncurve.metrics.accumulator import Metrics as Metrics
from oncurve.metrics.metric import Metric as Metric, Reduction as Reduction
from oncurve.metrics.numbers import share as share, short as short
from oncurve.metrics.table import METRICS as METRICS, declared as declared
