"""Fleets: processes that are placed, watched and replaced, whatever they compute.

fleet.py        a fleet, which has a spawner of its processes; health.py: when they are started and ended
host_fleet.py   the spawner on this machine: a nursery (nursery.py) forks the processes
ray_fleet.py    the spawner on a Ray cluster (ray_session.py): keepers start the processes
serving.py      messages between both sides, and a process's: how it makes its object, and does calls
devices.py      which GPU each process has
"""

from oncurve.processes.fleets.devices import CPU, Gpus, Placement, gpus_of, memory_share, placed
from oncurve.processes.fleets.fleet import Failed, Fleet, Replied
from oncurve.processes.fleets.health import ProcessEnded
from oncurve.processes.fleets.host_fleet import HostFleet
from oncurve.processes.fleets.ray_fleet import RayFleet
from oncurve.processes.fleets.ray_session import MISSING, check_address
from oncurve.processes.fleets.serving import ProcessorPickler, pickled
