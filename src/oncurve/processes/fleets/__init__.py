"""Fleets: processes that are placed, watched and replaced, whatever they compute.

fleet.py        the interface of a fleet, and the health of its processes as a state machine
host_fleet.py   a fleet on this machine, forked from a nursery (nursery.py, host_nursery.py), over sockets (channel.py)
                and shared memory (shared.py)
ray_fleet.py    a fleet on the machines of a Ray cluster (ray_session.py), where a keeper (keeper.py) starts the process
                that computes (kept.py)
devices.py      which GPU each process has; ray_gpus.py: which one Ray must leave to the run's own process
"""

from oncurve.processes.fleets.channel import ProcessorPickler as ProcessorPickler
from oncurve.processes.fleets.devices import (
    CPU as CPU,
    Gpus as Gpus,
    Placement as Placement,
    check_settings as check_settings,
    gpus_of as gpus_of,
    placed as placed,
)
from oncurve.processes.fleets.fleet import (
    Ended as Ended,
    Event as Event,
    Failed as Failed,
    Fleet as Fleet,
    Health as Health,
    Kill as Kill,
    Replied as Replied,
    Start as Start,
)
from oncurve.processes.fleets.host_fleet import HostFleet as HostFleet
from oncurve.processes.fleets.ray_fleet import RayFleet as RayFleet
from oncurve.processes.fleets.ray_session import check_address as check_address, missing as missing
