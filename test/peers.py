"""Programs of others, each in an environment of its own (make test-peers)."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

WAIT_S = 300.0


def python(peer: str) -> str:
    """The interpreter of a peer's environment; skips the test where there is none."""
    path = Path(os.environ["PEERS"]) / peer / "bin" / "python"
    if not path.exists():
        pytest.skip(f"{path} is absent: make test-peers installs it")
    return str(path)


def free_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run(peer: str, script: str, *arguments: object, **environment: str) -> str:
    """What a script prints there."""
    result = subprocess.run(
        [python(peer), "-c", script, *map(str, arguments)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout
