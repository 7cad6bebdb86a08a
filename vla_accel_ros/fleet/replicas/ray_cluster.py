"""The Ray cluster in which replicas run: one of this process's own, on this machine alone, or one to join.

A cluster of its own has neither dashboard nor usage reports, and ends with this process, however that ends.
Ray listens on all addresses of the machine, so it asks for a token (from 2.59 on), which only this process
and what it started have. A cluster that was joined is only left: `ray stop` would end it for others, too.
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
from typing import Any

LEAST_STORE_BYTES, MOST_STORE_BYTES = 100 << 20, 1 << 30
"""Of Ray's object store, where what robots saw lies until its chunk is made: two pictures of 640x480 are
1.8 MB, and two replicas of `staggered: 20` hold 56 requests. A full store has the scheduler wait."""
CPUS = 2
"""Of Ray's own accounts; replicas take none of them."""
OWN = ""
"""Address of a cluster of one's own."""


class Cluster:
    """Joined or started when it is made, which must be in a thread that lives as long as the process: a
    cluster of its own ends with that. address: OWN, auto, or host:port. tiers: of one's own, how many
    replicas there may be of each; gpus: of one's own.

    Raises ValueError, one sentence, where Ray is not installed, does not start, or there is no such cluster.
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
        """Of all its hosts."""
        return float(self._ray.cluster_resources().get("GPU", 0.0))

    def close(self) -> None:
        """Leave it; a cluster of one's own ends."""
        with _signals_kept():
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def store_bytes(shared: str = "/dev/shm") -> int:
    """Of the object store of a cluster of one's own: half of what the folder for shared memory has free,
    within bounds."""
    try:
        free = shutil.disk_usage(shared).free
    except OSError:
        free = 0
    return min(max(free // 2, LEAST_STORE_BYTES), MOST_STORE_BYTES)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
