"""The connection to Ray. This is the only file that imports Ray, and it does so where a fleet is made: importing
oncurve imports no Ray.

Without an address a Ray of this process is started: without a dashboard, without usage reports, and open only with the
token that its processes inherit. It ends with this process, however that ends. A process uses one Ray: Ray forks its
processes, and in one that has had a Ray before, with its threads, a fork may wait for ever.
"""

import atexit
import contextlib
import functools
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import psutil

from oncurve.base.errors import ConfigError
from oncurve.base.output import urgent
from oncurve.durable import hold, is_held
from oncurve.processes.fleets.devices import VISIBLE
from oncurve.processes.spawn import environment_of, in_a_line

MISSING = "cluster.kind: \"ray\" needs Ray; install it with: pip install 'oncurve[cluster]'"
"""The message where Ray is not installed."""

TAKE_SECONDS = 60.0
"""In which a GPU that is free is found among those of this machine."""

_PROBE_SECONDS = 10.0
_START_SECONDS = 100.0
_CONNECT_SECONDS = 180.0
_SHUTDOWN_SECONDS = 30.0
_TURN_SECONDS = 60.0
_OBJECT_STORE_BYTES = 512 * 2**20
_SHORT = "/tmp"


class _Session:
    """The process's connection to Ray, shared by its fleets: made with the first, and kept until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: _RayThread | None = None
        self._address: str | None = None
        self._token = ""
        self._ray: Any = None
        self._gpus = dict[str, Any]()

    def use(self, address: str, nbytes: int) -> Any:
        """Return the module `ray`, connected. `nbytes`: of the largest object of a Ray that is started here. Raises
        ConfigError."""
        with self._lock:
            if self._address not in (None, address):
                raise ConfigError(
                    f"cluster.address: this process uses {self._address or 'a Ray of its own'} already; "
                    "use another one from a new process"
                )
            with environment_of({} if address else self._of_own_ray()):
                import ray

                self._ray = ray
                if not self._ray.is_initialized():  # the program may have a Ray of its own
                    self._connect(address, nbytes)
            self._address = address
            return self._ray

    def keep_gpu(self, entry: str) -> None:
        """Have Ray give this process's GPU to no other until the process ends. Raises ConfigError (`take_gpu`)."""
        with self._lock:
            if entry not in self._gpus:
                self._gpus[entry] = take_gpu(self._ray, entry)

    def end(self) -> None:
        """End a Ray of this process, or the connection to one."""
        with self._lock:
            if self._held is not None:
                self._held.leave()
            self._held = self._address = None
            self._gpus.clear()

    def _of_own_ray(self) -> dict[str, str]:
        """Return the variables under which Ray is imported and started here: its library reads them when it is
        imported.
        """
        if "ray" in sys.modules and not self._token:
            urgent(
                "oncurve: Ray was imported before, so the one that starts here is open to all of this machine's users"
            )
            return {}
        self._token = self._token or secrets.token_hex(32)
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_gcs_server_port_wait_time_s": f"{_START_SECONDS:.0f}",  # Ray's own 30 s have passed on busy machines
        }

    def _connect(self, address: str, nbytes: int) -> None:
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # what goes wrong is said by the fleets
        settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "critical"}
        room = min(max(_OBJECT_STORE_BYTES, 2 * nbytes), psutil.virtual_memory().available // 2)
        stop = self._ray.shutdown
        try:
            if not address:
                private = private_folder(Path(os.environ.get("RAY_TMPDIR", _SHORT)))
                settings |= {"num_cpus": 1, "include_dashboard": False, "object_store_memory": room}
                settings["_temp_dir"] = f"{private}/ray"  # Ray opens what is in it to all users
                stop = functools.partial(_stop_in, private, stop)
                atexit.register(stop)
            start = functools.partial(self._ray.init, address=address or "local", **settings)
            self._held = _RayThread(start, stop)
        except Exception as error:
            what = f"Ray at {address} cannot be used" if address else "Ray cannot be started on this machine"
            raise ConfigError(f"cluster.address: {what}: {in_a_line(error)}") from error
        with contextlib.suppress(ImportError, AttributeError):
            from ray._private.ray_logging import global_worker_stdstream_dispatcher

            global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")


def private_folder(above: Path) -> Path:
    """Return a new folder for Ray's files, until this process ends, and remove those of this user's that have ended."""
    for lock in above.glob("oncurve-ray-*/lock"):
        if lock.parent.lstat().st_uid == os.geteuid() and not is_held(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="oncurve-ray-", dir=above))
    hold(folder / "new", b"")
    return (folder / "new").rename(folder / "lock").parent  # it is held by the time that others see it


def _stop_in(folder: Path, stop: Callable[[], Any]) -> None:
    stop()
    shutil.rmtree(folder, ignore_errors=True)


SESSION = _Session()
"""The session of this process."""


def check_address(address: str) -> None:
    """Raises ConfigError: nothing listens at `address`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"cluster.address: no Ray answers at {address}: {error}; start one there (`ray start --head`), correct the "
            'address, or set it to "" for a Ray on this machine'
        ) from error


class _RayThread:
    """Ray, started and ended by one thread. It lives as long as Ray does: the kernel ends what it has started with it.
    In the main thread Ray would take SIGTERM for itself."""

    def __init__(self, start: Callable[[], Any], stop: Callable[[], Any]) -> None:
        self._started = Future[None]()
        self._left, self._stopped = threading.Event(), threading.Event()
        threading.Thread(target=self._run, args=(start, stop), daemon=True).start()
        if not wait([self._started], _CONNECT_SECONDS).done:
            self._left.set()
            raise TimeoutError(f"no answer within {_CONNECT_SECONDS:g} seconds")
        self._started.result(0)

    def _run(self, start: Callable[[], Any], stop: Callable[[], Any]) -> None:
        try:
            start()
            self._started.set_result(None)
            while not self._left.wait(_TURN_SECONDS):
                pass
        except BaseException as error:
            self._started.set_exception(error)
        with contextlib.suppress(Exception):  # it has ended
            stop()
        self._stopped.set()

    def leave(self) -> None:
        """End Ray, or the connection to it."""
        self._left.set()
        self._stopped.wait(_SHUTDOWN_SECONDS)


def take_gpu(ray: Any, entry: str, seconds: float = TAKE_SECONDS) -> Any:
    """Return an actor that has the GPU which CUDA_VISIBLE_DEVICES of this process calls `entry`; `ray.kill` frees it.

    Ray knows nothing of a process that it has not started, and would give its GPU to another one. So an actor that does
    nothing takes it as long as the run uses the cluster.
    Ray chooses which GPU an actor gets, so they are taken one by one, and those that are not wanted are given back.

    Raises ConfigError: Ray has no free GPU of this name here.
    """
    strategies = ray.util.scheduling_strategies
    here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

    class Holder:  # here, so that Ray sends it by value: its process imports nothing of oncurve
        def card(self, variable: str) -> str:

            return os.environ.get(variable, "")

    holder = ray.remote(num_cpus=0, num_gpus=1, max_restarts=0, scheduling_strategy=here)(Holder)
    others, found, until = [], None, time.monotonic() + seconds
    try:
        while found is None:
            taken = holder.remote()
            others.append(taken)
            if ray.get(taken.card.remote(VISIBLE), timeout=max(0.1, until - time.monotonic())) == entry:
                found = others.pop()
    except ray.exceptions.RayError as error:
        raise ConfigError(
            f"cluster.address: this process computes on GPU {entry}, which Ray cannot keep for it within {seconds:g} "
            f"seconds: it is in use, or Ray was started without it; set {VISIBLE} to a GPU of this machine that Ray "
            "has free"
        ) from error
    finally:
        for other in others:
            with contextlib.suppress(Exception):  # it has ended
                ray.kill(other, no_restart=True)
    return found
