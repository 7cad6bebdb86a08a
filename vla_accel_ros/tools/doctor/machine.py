"""Judge the machine below the nodes: environment, Fast DDS profile, shared memory, allocator.

A process reads these when it starts, so the running nodes' environments count; they are read from /proc if
the nodes are this user's and on this machine. An image leaves through its sender's shared-memory segment: a
driver started without the profile loses images whatever the receivers have, and its stock-sized segment in
/dev/shm shows it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vla_accel_ros.contract.checks.findings import Finding, error, ok, warning
from vla_accel_ros.nodes.running.environment import MALLOC, PROFILES, lost_ports
from vla_accel_ros.nodes.running.processes import Process, domain

STOCK_SEGMENT = 1 << 20
_LAUNCH = "start it with our launch files, which set it, or see the README"


@dataclass(frozen=True)
class Memory:
    """Shared memory. size, free: of /dev/shm in bytes. small: live Fast DDS segments of the stock size. lost:
    processes of this user, of any program, that Fast DDS can no longer reach (lost_ports)."""

    size: int
    free: int
    small: int
    lost: tuple[str, ...] = ()


def shared_memory(folder: Path = Path("/dev/shm"), proc: Path = Path("/proc")) -> Memory:
    """Inspect /dev/shm: small segments, free space, and processes whose part is gone."""
    status = os.statvfs(folder)
    small = 0
    for path in folder.glob("fast*_*"):
        if re.fullmatch(r"fast(dds|rtps)_[0-9a-f]{16}", path.name) and path.stat().st_size < STOCK_SEGMENT:
            small += _is_locked(path.with_name(f"{path.name}_el"))
    lost = tuple(_named(process) for process in proc.glob("[0-9]*") if lost_ports(process))
    return Memory(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, small, lost)


def judge(
    rmw: str, own: Mapping[str, str], running: Sequence[Process], memory: Memory, image_bytes: int
) -> list[Finding]:
    """Return findings on environment and shared memory. own: this process's environment. image_bytes: of the
    largest image seen, 0 for none."""
    domain_id = domain(own)
    local = [process for process in running if domain(process.environment) == domain_id]
    findings = [
        ok("environment", f"{rmw}, ROS_DOMAIN_ID {domain_id}, {len(local)} of our nodes on this machine")
    ]
    for process in local:
        findings += _of_process(process, own, rmw, image_bytes)
    if not local:
        findings.append(_elsewhere(running, domain_id))
    return findings + (_memory(memory, image_bytes) if rmw.startswith("rmw_fastrtps") else [])


def _elsewhere(running: Sequence[Process], domain_id: str) -> Finding:
    domains = sorted({domain(process.environment) for process in running})
    if domains:
        fact = (
            f"our nodes on this machine are in ROS_DOMAIN_ID {', '.join(domains)}, this shell in {domain_id}"
        )
        return warning("environment", fact, f"export ROS_DOMAIN_ID={domains[0]}, or give --domain")
    fact = "no process of our nodes is visible on this machine, so their environment is unknown"
    return warning("environment", fact, "run vla doctor where they run, as the user who started them")


def _of_process(process: Process, own: Mapping[str, str], rmw: str, image_bytes: int) -> Iterator[Finding]:
    about = f"{process.node} (process {process.pid})"
    environment = process.environment
    process_rmw, shell_rmw = (env.get("RMW_IMPLEMENTATION", "") for env in (environment, own))
    if process_rmw != shell_rmw:
        fact = f"has RMW_IMPLEMENTATION {process_rmw or 'unset'}, this shell {shell_rmw or 'unset'}"
        yield warning(about, fact, "give every process of the robot the same")
    lacking = [name for name in MALLOC if name not in environment]
    if lacking:
        fact = f"runs without {' and '.join(lacking)}, so that every large image costs page faults"
        yield warning(about, fact, _LAUNCH)
    if not rmw.startswith("rmw_fastrtps"):
        return
    profiles = [environment[name] for name in PROFILES if environment.get(name)]
    if not profiles:
        fact = "runs without a Fast DDS profile, whose stock segment of 549 KB loses larger images"
        yield warning(about, fact, _LAUNCH)
        return
    try:
        text = Path(profiles[0]).read_text(errors="replace")
    except OSError as problem:
        fact = f"was given the Fast DDS profile {profiles[0]}, which cannot be read ({problem.strerror})"
        yield error(about, fact, "fix the path in its environment")
        return
    sizes = [int(size) for size in re.findall(r"<segment_size>\s*(\d+)\s*</segment_size>", text)]
    if not sizes or max(sizes) < image_bytes:
        content = f"a segment of {max(sizes)} bytes" if sizes else "no segment_size"
        fact = f"its Fast DDS profile {profiles[0]} has {content}, an image has {image_bytes}"
        yield warning(about, fact, "raise segment_size to hold a few images")


def _memory(memory: Memory, image_bytes: int) -> list[Finding]:
    fact = "receives nothing of this machine: Fast DDS has lost its shared memory after another was killed"
    findings = [error(process, fact, "start it again") for process in memory.lost]
    if memory.small and image_bytes > STOCK_SEGMENT // 2:
        fact = f"{memory.small} living processes have Fast DDS's stock segment of 549 KB"
        fix = "start camera drivers with config/fastdds.xml, too: a segment belongs to the sender"
        findings.append(warning("shared memory", f"{fact}, an image has {image_bytes / 1e3:.0f} KB", fix))
    room = f"/dev/shm has {memory.free / 1e6:.0f} MB left of {memory.size / 1e6:.0f} MB"
    if memory.free < max(4 * image_bytes, 16 << 20):
        fix = "give the container a larger --shm-size, or remove what dead processes left there"
        findings.append(warning("shared memory", room, fix))
    return findings or [ok("shared memory", room)]


def _named(process: Path) -> str:
    try:
        return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    except OSError:
        return f"process {process.name}"


def _is_locked(path: Path) -> bool:
    """Return whether a segment's process lives: Fast DDS keeps a lock on a file beside each segment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
