"""Gives a program a private ROS graph, so that it neither hears nor moves a robot on this machine.

A process owns a ROS domain while it holds the lock on the domain's file; test runs take theirs in the same
way. Discovery stays on this machine. Variables of the caller's shell about other graphs (discovery servers,
peers, a namespace) are dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import IO

from vla_accel_ros.nodes.running.environment import additional_environment, discovery_environment
from vla_accel_ros.private_files import open_private, private_folder

# Domains up to 101 keep their ports below Linux' ephemeral range; 0 is the default one.
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
    """Return a free ROS domain and the open lock that keeps it.

    Raises RuntimeError if all domains are taken, or if another user owns the folder of the locks.
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
    """Return the whole environment of a process in that graph, with the Fast DDS profile and the
    allocator."""
    inherited = {name: value for name, value in current.items() if name not in OTHER_GRAPHS}
    discovery = {"ROS_DOMAIN_ID": str(domain), **discovery_environment("localhost", inherited)}
    return {**inherited, **additional_environment(inherited), **discovery}


def enter(environment: Mapping[str, str]) -> None:
    """Move this process into the graph of an environment; call it before the first ROS context."""
    for name in OTHER_GRAPHS:
        os.environ.pop(name, None)
    os.environ.update(environment)


@contextlib.contextmanager
def own_graph(domain: int | None = None) -> Iterator[dict[str, str]]:
    """Enter a private graph, and yield the environment of its processes.

    domain: a ROS domain, or None for a free one, which stays locked while the context lasts.
    """
    with contextlib.ExitStack() as closing:
        if domain is None:
            domain, lock = claim_domain()
            closing.enter_context(lock)
        environment = graph_environment(domain)
        enter(environment)
        yield environment
