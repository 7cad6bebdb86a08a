"""What stands in for the stream of a GPU that a thread computes in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vla_accel_ros.engine import current_stream


def computing_in(monkeypatch: pytest.MonkeyPatch, stream: Callable[[], object]) -> None:
    """Have `stream` say which one is current, on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: id(stream()), raising=False)
    monkeypatch.setattr(current_stream, "_MADE", {})
