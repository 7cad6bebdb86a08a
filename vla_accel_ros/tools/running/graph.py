"""A ROS graph of a program's own, so that it neither hears nor moves a robot that is running here.

A ROS domain belongs to whoever holds the lock on its file, for as long as that process lives; test runs take
theirs the same way. Discovery stays on this machine, and what the caller's shell says about other graphs
(discovery servers, peers, a namespace) is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import IO

from vla_accel_ros.nodes.environment import additional_environment, discovery_environment
from vla_accel_ros.private_files import open_private, private_folder

# Domains up to 101 keep their ports below Linux' ephemeral range; 0 is everybody's default.
DOMAINS = range(1, 102)
_DOMAINS = "domains"
OTHER_GRAPHS = (
    "ROS_DISCOVERY_SERVER",
    "ROS_LOCALHOST_ONLY",
    "ROS_NAMESPACE",
    "ROS_STATIC_PEERS",
    "ROS_SUPER_CLIENT",
)


def claim_domain() -> tuple[int, IO[str]]:
    """A ROS domain that no other demo or test run of this user holds, and the open lock that keeps it.

    Raises RuntimeError when all are taken, and where another user has made what the locks lie in.
    """
    start = os.getpid() % len(DOMAINS)
    for domain in (*DOMAINS[start:], *DOMAINS[:start]):
        lock = open_private(_DOMAINS, str(domain))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return domain, lock
    folder = private_folder(_DOMAINS)
    raise RuntimeError(
        f"all {len(DOMAINS)} ROS domains are locked in {folder}: end other demos or give --domain"
    )


def graph_environment(domain: int, current: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The whole environment of a process in that graph: Fast DDS profile and allocator included."""
    kept = {name: value for name, value in current.items() if name not in OTHER_GRAPHS}
    own = {"ROS_DOMAIN_ID": str(domain), **discovery_environment("localhost", kept)}
    return {**kept, **additional_environment(kept), **own}


def enter(environment: Mapping[str, str]) -> None:
    """Bring this process into the graph of an environment; before its first ROS context."""
    for name in OTHER_GRAPHS:
        os.environ.pop(name, None)
    os.environ.update(environment)


@contextlib.contextmanager
def own_graph(domain: int | None = None) -> Iterator[dict[str, str]]:
    """This process in a graph of its own; gives the environment of processes in it. domain: None for one that
    nobody uses, which is kept while the context lasts."""
    with contextlib.ExitStack() as closing:
        if domain is None:
            domain, lock = claim_domain()
            closing.enter_context(lock)
        environment = graph_environment(domain)
        enter(environment)
        yield environment
