"""Who runs the tests without what they need is told what to install, in one sentence."""

from __future__ import annotations

from importlib.util import find_spec as there

import lacking
import pytest


def test_what_is_not_installed_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacking.sentence() == ""
    monkeypatch.setattr(
        lacking, "find_spec", lambda name: None if name in ("hypothesis", "torch", "rclpy") else there(name)
    )
    assert lacking.sentence() == (
        "the tests lack hypothesis, torch: pip install -r requirements/robot.txt -r requirements/test.txt; "
        "rclpy: build msg/ with this package and source install/setup.bash, or run make test"
    )
