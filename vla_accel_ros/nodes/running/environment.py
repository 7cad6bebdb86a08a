"""The environment that a node process needs: malloc thresholds, Fast DDS profile, launcher, working ports.

These are read when a process starts, so a node cannot set them for itself; launch files, the demo and the
tests start the nodes with `process_environment()`. Without the malloc thresholds every image costs page
faults (12 % of a core become 31 % at 720p); with the stock Fast DDS shared-memory segment (549 KB) most
larger images are lost. A killed launcher (also `ros2 launch` on SIGTERM) does not end its children, and an
arm would go on. So each node is told which process launched it, and ends with that process. A node started by
hand is told nothing and survives its shell. No rclpy here: launch files import this module.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

NETWORKS = ("localhost", "subnet")
LAUNCH_ARGUMENTS = (
    ("log_level", "info", "debug, info, warn, error or fatal."),
    (
        "fastdds_profile",
        "",
        "Fast DDS profile (XML). Empty: the one in your environment, else the package's.",
    ),
    (
        "network",
        "",
        "From where the nodes can be found and commanded: localhost or subnet. Empty: as in your "
        "environment, else subnet.",
    ),
)
"""Name, default and description of the arguments that every launch file takes for its nodes' environment."""

LAUNCHER = "VLA_LAUNCHER"
"""The variable that names the launching process, with which a node ends; see this_process."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}

PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
FAST_DDS = ("", "rmw_fastrtps_cpp", "rmw_fastrtps_dynamic_cpp")
# Fast DDS 2 calls its files fastrtps_...
_PORT = re.compile(r"/fast(?:dds|rtps)_port(\d+)( \(deleted\))?$")
_LOCK = re.compile(r"/fast(?:dds|rtps)_port(\d+)_el( \(deleted\))?$")


def share_path(relative: str) -> Path:
    """A data file of the package (`config/...`, `launch/...`), in the source tree or an installation.

    Raises FileNotFoundError that names all places tried.
    """
    source = Path(__file__).resolve().parents[3] / relative
    if source.exists():
        return source
    tried = [str(source)]
    for prefix in filter(None, (*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix)):
        installed = Path(prefix) / "share" / "vla_accel_ros" / relative
        if installed.exists():
            return installed
        tried.append(str(installed))
    raise FileNotFoundError(
        f"{relative} is neither at {' nor at '.join(tried)}: build or install vla_accel_ros again"
    )


def fastdds_profile() -> Path:
    """The Fast DDS profile of the package, with a shared-memory segment that holds camera frames."""
    return share_path("config/fastdds.xml")


def demo_contract() -> Path:
    """The contract of the simulated arm."""
    return share_path("config/contracts/sim_arm.yaml")


def demo_model() -> Path:
    """The checkpoint folder of the bundled demo policy. Raises FileNotFoundError if it is absent."""
    folder = Path(__file__).resolve().parents[2] / "sim" / "policy"
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"the bundled demo policy is not at {folder}: train it with `vla train-demo` or set the "
            "parameter `model`"
        )
    return folder


@cache
def passing_state() -> Path:
    """A folder for state that nodes keep over a restart (XDG_STATE_HOME), deleted when this process ends: a
    hold in one demo does not hold the next."""
    folder = tempfile.mkdtemp(prefix="vla_accel_ros-demo-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def additional_environment(current: Mapping[str, str] = os.environ, profile: str = "") -> dict[str, str]:
    """The variables to add for a node process that ends with this one; those that the user has set do not
    change.

    profile: a Fast DDS profile that overrides both the user's variable and the package's file.
    """
    defaults = {**MALLOC, profile_variable(current): profile or str(fastdds_profile())}
    added = {name: value for name, value in defaults.items() if name not in current or value == profile}
    return {**added, LAUNCHER: this_process()}


def profile_variable(environment: Mapping[str, str]) -> str:
    """The one of PROFILES that Fast DDS reads in a process with this environment: 2 and 3, whose libraries
    have different names, have one each. Without either, that of 3."""
    folders = [*environment.get("LD_LIBRARY_PATH", "").split(os.pathsep), os.path.join(sys.prefix, "lib")]
    for folder in filter(None, folders):
        for variable, library in zip(PROFILES, ("libfastdds.so", "libfastrtps.so")):
            if os.path.exists(os.path.join(folder, library)):
                return variable
    return PROFILES[0]


def this_process() -> str:
    """The unique name of this process: its id, which may be reused, and its start time."""
    return f"{os.getpid()}:{_began(os.getpid())}"


def is_running(process: str) -> bool:
    """Whether the process with this name (see `this_process`) still runs."""
    number, _, started = process.partition(":")
    if started:
        return _began(int(number)) == started
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _began(number: int) -> str:
    """When a process started, by the kernel's clock; empty if it has ended, or without /proc."""
    try:
        state, *fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]


def discovery_environment(network: str, current: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that make a process discoverable from this machine only (`localhost`), or from its whole
    network (`subnet`). Empty for "": the caller's own settings hold. Raises ValueError for another word."""
    if not network:
        return {}
    if network not in NETWORKS:
        raise ValueError(f"network is {network!r}: give {' or '.join(NETWORKS)}")
    older = "1" if network == "localhost" else "0"
    if current.get("ROS_DISTRO") == "humble":
        return {"ROS_LOCALHOST_ONLY": older}
    # Later distributions warn about the older variable, and let it override the newer one.
    localhost = {"ROS_LOCALHOST_ONLY": "0"} if current.get("ROS_LOCALHOST_ONLY", "0") != "0" else {}
    return {**localhost, "ROS_AUTOMATIC_DISCOVERY_RANGE": network.upper()}


def who_may_command(environment: Mapping[str, str]) -> str:
    """One log line: from where the nodes of a process with this environment can be commanded."""
    newer = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET").upper()
    if environment.get("ROS_DISTRO") == "humble":
        newer = "SUBNET"
    reach = "LOCALHOST" if environment.get("ROS_LOCALHOST_ONLY", "0") != "0" else newer
    domain = environment.get("ROS_DOMAIN_ID") or "0"
    if environment.get("ROS_SECURITY_ENABLE") == "true":
        enforced = environment.get("ROS_SECURITY_STRATEGY") == "Enforce"
        keys = "holders of a keystore key" if enforced else "anyone (ROS_SECURITY_STRATEGY is not Enforce)"
    else:
        keys = "anyone, without a key"
    where = {
        "LOCALHOST": "on this machine only",
        "OFF": "in the same process or by static peers only",
        "SUBNET": "on this machine and its network",
    }.get(reach, "by the middleware's own settings")
    return f"network: ROS domain {domain} {where} ({reach.lower()}): {keys} may command these nodes"


def enclave(namespace: str, node: str) -> str:
    """The SROS2 enclave of a node: its full name. It has no effect without ROS_SECURITY_ENABLE."""
    return "/".join(["", *filter(None, namespace.split("/")), node])


def process_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a node process: this one's, the additions above, and `extra`, which overrides
    both."""
    return {**os.environ, **additional_environment(), **(extra or {})}


def lacks_profile(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a process with this environment has Fast DDS's stock segment, which loses images."""
    if environment.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp") not in FAST_DDS:
        return False
    return not any(environment.get(name) for name in PROFILES)


def lost_ports(process: Path = Path("/proc/self")) -> frozenset[int]:
    """The ports that a process reads but nobody can write to any more. Empty without /proc.

    Every process receives through Fast DDS's shared memory in a port: a file in /dev/shm with a number, and a
    lock that shows its reader. When a process is killed, its ports stay behind, and another process may
    delete one and create it again. If two do that at the same time (the restarted process, and one that still
    sends to the dead one), the reader's port may be deleted while the sender writes into another of the same
    name. Neither notices: the process looks alive, sees every topic in the graph, and receives nothing from
    its own machine for as long as it lives. This is rare, and happens on a busy machine. A sender that has
    not yet noticed that a port was created again does not count: it reads nothing there.
    """
    try:
        mapped = {(match[1], bool(match[2])) for match in map(_PORT.search, _maps(process)) if match}
        read = {match[1] for match in map(_LOCK.search, _open_files(process)) if match}
    except OSError:
        return frozenset()
    mapped_ports = {port for port, deleted in mapped if not deleted}
    return frozenset(int(port) for port, deleted in mapped if deleted and port in read - mapped_ports)


def _maps(process: Path) -> list[str]:
    return (process / "maps").read_text().splitlines()


def _open_files(process: Path) -> list[str]:
    files = []
    for link in (process / "fd").iterdir():
        try:
            files.append(str(link.readlink()))
        except OSError:
            continue  # closed meanwhile
    return files
