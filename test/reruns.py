"""A test that passed only when it was run again has a race, in itself or in what it tests: a pytest plugin.

Such tests are listed under a heading of their own, and with RACES=fail they fail the run. What starts nodes
is still run again, so that the report tells a race from a fault, and shows both.
"""

from __future__ import annotations

import os
from typing import Any

import pytest


class Reruns:
    """Remembers, in the process that prints the report, which tests were run again and which failed."""

    def __init__(self) -> None:
        self._again = dict[str, None]()
        self._failed = set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("@")[0] or report.nodeid  # xdist adds the group
        if report.outcome == "rerun":  # pytest_rerunfailures has this one
            self._again[name] = None
        elif report.failed:
            self._failed.add(name)

    @property
    def passed(self) -> list[str]:
        """Tests that passed, but not at once."""
        return [name for name in self._again if name not in self._failed]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.passed and os.environ.get("RACES") == "fail" and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.passed:
            terminalreporter.section("passed only when run again: a race to fix", red=True)
            for name in self.passed:
                terminalreporter.write_line(f"RACE {name}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reruns())
