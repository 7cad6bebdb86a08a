"""Ends a test process that no longer runs Python: a pytest plugin.

A native call that holds the interpreter's lock and never returns holds up pytest's own timeout, too. It
happens: Fast DDS 3.2.3, built against a glibc before 2.30, spins with a lock held when a participant is
destroyed while it discovers another's endpoint. faulthandler's thread needs no interpreter: it writes where
every thread is, and ends the process. With xdist another worker takes the tests that are left. A test that
starts nodes is tried again once then, as after any other failure.

There is one such timer in a process. `leave_graph` (nodes.running.shutdown) sets it anew, and clears it.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from typing import Any

import pytest
from workers import STARTING

STUCK_S = "VLA_ACCEL_TEST_STUCK_S"
"""The variable that says after how long; by default a minute after the timeout of pyproject.toml."""
_DEFAULT_S = 660.0
_STDERR = pytest.StashKey[int]()
_ENDED = pytest.StashKey[set[str]]()
"""Tests whose worker was ended."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = stderr = os.dup(2)  # pytest captures what goes to 2 during a test
    config.add_cleanup(lambda: os.close(stderr))


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = float(os.environ.get(STUCK_S, _DEFAULT_S))
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_STDERR])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    ended = sched.config.stash.setdefault(_ENDED, set[str]())
    if crashitem.rpartition("@")[2] in STARTING and crashitem not in ended:
        ended.add(crashitem)
        report.outcome = "rerun"  # type: ignore[assignment]  # pytest_rerunfailures has this one
