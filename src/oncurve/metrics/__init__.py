"""Every number that a run logs: declared with its reduction, formula and advice, and accumulated as (sum, count).

Loaded lazily: the declarations alone need no torch.
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.metrics.accumulator import Metrics
    from oncurve.metrics.metric import METRICS, Metric, declared
    from oncurve.metrics.numbers import share, short

__getattr__, __all__ = lazily(__name__)
