"""The kernels of packed forwards compile for the devices we name, within what they have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from architectures import ARCHITECTURES, REGISTERS

SCRIPT = Path(__file__).with_name("compiling_packed.py")


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_kernels_compile_and_fit(capability: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(SCRIPT), capability]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert done.returncode == 0, done.stderr
    needs = [json.loads(line) for line in done.stdout.splitlines()]
    assert [need["kernel"] for need in needs] == [
        *("_rms_norm", "_rotary_write", "_attend", "_gated"),
        *("_rms_norm", "_rotary_write", "_attend", "_combine", "_gated"),
    ]
    for need in needs:
        assert need["shared"] <= ARCHITECTURES[capability].shared_bytes and need["stack"] == 0, need
        assert need["registers"] * need["threads"] <= REGISTERS, need
