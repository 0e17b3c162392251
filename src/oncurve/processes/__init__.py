"""Processes: one place that starts them, talks to them, and notices their end with its first cause.

spawn.py     start a process, tie its end to this one's, and say why a process or a call has ended
shared.py    bytes that several processes of a machine read
minder.py    a program that ends with all that it has started
pool/        workers that run user code with a deadline and a memory limit
fleets/      processes of a cluster that are placed, watched and replaced
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.processes.minder import Minder
    from oncurve.processes.spawn import LateError, environment_of, headline, kind_of_fault, last_words, place_of

__getattr__, _ = lazily(__name__)  # a process that is started imports its own side alone
