"""Keeps a test run to itself: its own ROS domain and log folder, nothing of the caller's ROS.

Two runs on one machine must not hear each other's nodes, so each claims a domain by locking a file for as
long as it lives; processes that tests start inherit it. Tests marked `gpu` are deselected where there is no
CUDA device, those marked `launch` where there is no `ros2`, those marked `peers` without PEERS. What is not
installed is told at once where all tests are to run.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reruns
import stuck
from installed import install
from lacking import sentence
from pairwise import EVERY_CASE, FOLDERS, enough
from workers import STARTING, group, order, quick

try:
    import hypothesis
except ModuleNotFoundError:
    pytest.exit(sentence(), returncode=pytest.ExitCode.USAGE_ERROR)

from vla_accel_ros.tools.running.graph import claim_domain

# The same examples in every run and no clock: a loaded machine must not fail a property.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")
hypothesis.settings.register_profile(
    "unshrunk",  # of test/mutations.py, which only asks whether there is a counterexample
    hypothesis.settings.get_profile("repeatable"),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "bench"), str(ROOT / "test" / "control")]  # training/, bench/, executed

PART = os.environ.get("TESTS", "")
"""Which tests to run: "quick" (`make test`), "slow" (`make test-slow`), else all that are named."""

# What would make a test depend on the shell it was started from.
CALLERS = (
    "CYCLONEDDS_URI",
    "FASTDDS_DEFAULT_PROFILES_FILE",
    "FASTRTPS_DEFAULT_PROFILES_FILE",
    "RMW_IMPLEMENTATION",
    "ROS_DISCOVERY_SERVER",
    "ROS_LOCALHOST_ONLY",
    "ROS_NAMESPACE",
    "ROS_STATIC_PEERS",
    "ROS_SUPER_CLIENT",
)


def pytest_configure(config: pytest.Config) -> None:
    # Who names the tests to run may want those that need no ROS, on a machine that has none.
    if config.args_source is not pytest.Config.ArgsSource.ARGS and (lacks := sentence()):
        pytest.exit(lacks, returncode=pytest.ExitCode.USAGE_ERROR)
    config.pluginmanager.register(stuck)
    config.pluginmanager.register(reruns.Reruns())
    for name in CALLERS:
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    domain, lock = claim_domain()
    logs = tempfile.TemporaryDirectory(prefix="vla_accel_ros-log-")
    config.add_cleanup(lock.close)
    config.add_cleanup(logs.cleanup)
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    os.environ["ROS_LOG_DIR"] = logs.name
    os.environ["XDG_STATE_HOME"] = str(Path(logs.name) / "state")
    os.environ.setdefault(RETRIES, str(Path(logs.name) / "retries"))  # of all workers


@pytest.hookimpl(tryfirst=True)  # before xdist, in its workers, reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    groups = {item: group(item.path.relative_to(root)) for item in items}
    reruns = config.pluginmanager.hasplugin("rerunfailures")
    for item, name in groups.items():
        item.add_marker(pytest.mark.xdist_group(name))
        if reruns and name in STARTING:
            item.add_marker(pytest.mark.flaky(reruns=AGAIN))
    if PART:
        selected, deselected = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            (selected if quick(groups[item]) == (PART == "quick") else deselected).append(item)
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected
    items.sort(key=lambda item: order(groups[item]))
    for marker, available in (("launch", shutil.which("ros2")), ("peers", os.environ.get("PEERS"))):
        absent = [item for item in items if item.get_closest_marker(marker) and not available]
        if absent:
            config.hook.pytest_deselected(items=absent)
            items[:] = [item for item in items if item not in absent]
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    grids = [item for item in items if any(item.path.is_relative_to(root / folder) for folder in FOLDERS)]
    if not gpu and not grids:
        return
    import torch

    if torch.cuda.is_available():
        return
    left_out = set(gpu)
    if not EVERY_CASE:
        grids = [item for item in grids if item not in left_out]
        left_out |= set(grids) - enough(grids)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("@")[2]
    LASTED_S[name if name in STARTING else OTHERS] += report.duration


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What one worker runs one after another, so that the longest is seen."""
    if terminalreporter.config.getoption("numprocesses", None):
        terminalreporter.section("durations of the groups of test/workers.py")
        for name, seconds in LASTED_S.items():
            terminalreporter.write_line(f"{seconds:7.0f} s {name}")


def pytest_collection_finish() -> None:
    """Garbage is looked for seldom: simulations make objects by the million, and keep them."""
    gc.set_threshold(*SELDOM)


AGAIN = 2
"""How often a test that starts nodes is tried again that failed: its processes share a machine whose load is
not ours. Meanwhile no other test with nodes runs. If it then passes, reruns.py lists it."""
RETRIES = "VLA_ACCEL_TEST_RETRIES"
"""The variable that names the file whose lock a test with nodes holds: shared, or alone if tried again."""

SELDOM = (20_000, 20, 20)
"""Thresholds of the garbage collector."""

LASTED_S, OTHERS = defaultdict[str, float](float), "all others"
"""By group, seconds of its tests."""

_EASY = 10
_FILE = pytest.StashKey[Path]()
"""Of the newest test."""
_LOCK = pytest.StashKey[int]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A worker that starts no nodes leaves the processor to those whose nodes must keep up with a clock.

    In what there was before a file of tests no garbage is looked for, as it stays: half a second each time
    that a test or a bench has garbage collected.
    """
    if item.config.stash.get(_FILE, None) != item.path:
        item.config.stash[_FILE] = item.path
        gc.collect()
        gc.freeze()
    starts = group(item.path.relative_to(Path(__file__).parent)) in STARTING
    if starts:
        item.stash[_LOCK] = os.open(os.environ[RETRIES], os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(item.stash[_LOCK], fcntl.LOCK_EX if is_retry(item) else fcntl.LOCK_SH)
    elif "PYTEST_XDIST_WORKER" in os.environ and os.getpriority(os.PRIO_PROCESS, 0) < _EASY:
        os.setpriority(os.PRIO_PROCESS, 0, _EASY)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Another test with nodes may be tried again alone when this one's are gone."""
    yield
    if (lock := item.stash.get(_LOCK, None)) is not None:
        del item.stash[_LOCK]
        os.close(lock)


def is_retry(item: pytest.Item) -> bool:
    """Whether pytest-rerunfailures runs a test again that has failed."""
    return getattr(item, "execution_count", 1) > 1


@pytest.fixture(params=["pi0", "pi05"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of pi, each."""
    return request.param


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a package that adds to this one is installed; nobody has it on the path yet."""
    return install(tmp_path_factory.mktemp("added"))


@pytest.fixture
def ros_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A further ROS domain, for a test that must not hear the nodes of the tests before it."""
    yield from further_domain(monkeypatch)


@pytest.fixture(scope="module")
def shared_domain() -> Iterator[int]:
    """As `ros_domain`, for all tests of a module that has this as its `ros_domain`."""
    with pytest.MonkeyPatch.context() as patch:
        yield from further_domain(patch)


def further_domain(patch: pytest.MonkeyPatch) -> Iterator[int]:
    domain, lock = claim_domain()
    patch.setenv("ROS_DOMAIN_ID", str(domain))
    with lock:
        yield domain
