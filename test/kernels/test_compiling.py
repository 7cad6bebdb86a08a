"""Every kernel compiles for the devices we name, within what they have, without such a device at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from architectures import ARCHITECTURES, REGISTERS

SCRIPT = Path(__file__).with_name("compiling.py")
TUNING = Path(__file__).parents[2] / "vla_accel_ros" / "kernels" / "tuning"


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_kernels_compile_and_fit(capability: str) -> None:
    """In the shapes of the device's table, or where it has none in the safe ones."""
    table = TUNING / f"sm_{capability}.json"
    command = [sys.executable, str(SCRIPT), capability, *([str(table)] if table.exists() else [])]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert done.returncode == 0, done.stderr
    needs = [json.loads(line) for line in done.stdout.splitlines()]
    # Where few processors are, keys are in one part, which nothing combines.
    parted = ARCHITECTURES[capability].processors > 16
    assert len(needs) == 8 + 9 + 5 + 11 + 3 - (0 if parted else 2)
    assert any(need["kernel"] == "_combine" for need in needs) == parted
    assert not [need for need in needs if need["fused"]]
    for need in needs:
        assert need["shared"] <= ARCHITECTURES[capability].shared_bytes, need
        assert need["registers"] * need["threads"] <= REGISTERS, need
        # What was measured to be the fastest of the attentions spills a little.
        assert need["stack"] <= (128 if table.exists() and need["kernel"].startswith("_attend") else 0), need
