"""Where replicas run in Ray: the cluster, a private one on this machine or an existing one to join, and the
options of an actor: its resources, the deadlines of its calls, and the pauses before a restart.

A private cluster has no dashboard and no usage reports, and ends with this process, however that ends. Ray
listens on all addresses of the machine, so the cluster requires a token (from Ray 2.59 on) that only this
process and its children have. A joined cluster is left, never stopped: `ray stop` would end it for others
too.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LEAST_STORE_BYTES, MOST_STORE_BYTES = 100 << 20, 1 << 30
"""Bounds of Ray's object store, which holds an observation until its chunk is made. Two images of 640x480 are
1.8 MB, and two replicas with `staggered: 20` hold 56 requests. If the store is full, the scheduler waits."""
CPUS = 2
"""CPUs in Ray's own accounting; replicas take none of them."""
OWN = ""
"""Address that stands for a private cluster."""


class Cluster:
    """Joins or starts a cluster on construction. A private cluster ends with the constructing thread, so use
    one that lives as long as the process. address: OWN, auto, or host:port. tiers: replicas allowed in each
    tier of a private cluster. gpus: of a private cluster.

    Raises ValueError, with one sentence, if Ray is not installed or does not start, or the cluster cannot be
    reached.
    """

    def __init__(self, address: str = OWN, tiers: Mapping[str, int] | None = None, gpus: int = 0) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if address == OWN:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        try:
            import ray
        except ModuleNotFoundError:
            raise ValueError("replicas is ray, but Ray is not installed: pip install ray") from None
        self._ray: Any = ray
        self._folder = tempfile.mkdtemp(prefix="vla-ray-") if address == OWN else ""
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "address": address}
        if address == OWN:
            options |= {
                "address": "local",
                "include_dashboard": False,
                "num_cpus": CPUS,
                "num_gpus": gpus,
                "object_store_memory": store_bytes(),
                "resources": {tier: float(count) for tier, count in (tiers or {}).items()},
                "_temp_dir": self._folder,
            }
        try:
            with _signals_kept():
                ray.init(**options)
        except ConnectionError as error:
            self.close()
            raise ValueError(f"there is no Ray cluster at {address}: {error}") from None
        except Exception as error:  # Ray raises Exception itself where its processes are not up in time
            self.close()
            raise ValueError(f"the Ray cluster did not start: {error}") from error

    def gpus(self) -> float:
        """Return the number of GPUs on all hosts of the cluster."""
        return float(self._ray.cluster_resources().get("GPU", 0.0))

    def close(self) -> None:
        """Leave the cluster; a private one ends."""
        with _signals_kept():
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def store_bytes(shared: str = "/dev/shm") -> int:
    """Return the size of a private cluster's object store: half of the free shared memory, within bounds."""
    try:
        free = shutil.disk_usage(shared).free
    except OSError:
        free = 0
    return min(max(free // 2, LEAST_STORE_BYTES), MOST_STORE_BYTES)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the SIGTERM handler, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@dataclass(frozen=True)
class Where:
    """Where a replica runs, and what it takes of that host. tier: the Ray resource of which it takes one,
    such as edge or cloud. gpus, cpus: in Ray's own accounting. network_s: round trip with an observation;
    None means measured at each start."""

    tier: str
    gpus: float = 0.0
    cpus: float = 0.0
    network_s: float | None = None


@dataclass(frozen=True)
class Deadlines:
    """Deadlines of each call [s]. serve: a request. ask: a question. describe: a robot. alive: calls that are
    answered at once. start: loading and measuring the engine. again, longest_again: first and longest pause
    before a lost replica is restarted; the pause starts over at `again` after a replica has lived for
    longest_again."""

    serve: float = 5.0
    ask: float = 30.0
    describe: float = 30.0
    alive: float = 2.0
    start: float = 300.0
    again: float = 0.5
    longest_again: float = 30.0


USUAL = Deadlines()


class Pauses:
    """Pauses before a replica is restarted; each is twice as long as the one before."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s, self._next_s = first_s, longest_s, first_s

    def after(self, lived_s: float) -> float:
        """Return the pause [s] after a replica that served for lived_s; 0 for one that did not start."""
        if lived_s >= self._longest_s:
            self._next_s = self._first_s
        pause_s, self._next_s = self._next_s, min(2.0 * self._next_s, self._longest_s)
        return pause_s
