"""Every kernel compiles for the devices we name, within what they have, without such a device at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vla_accel_ros.kernels.tuning import SHARED_BYTES

SCRIPT = Path(__file__).with_name("compiling.py")
TUNING = Path(__file__).parents[2] / "vla_accel_ros" / "kernels" / "tuning"
HOPPER_SHARED_BYTES = 227 << 10


@pytest.mark.parametrize(
    ("capability", "table", "shared"), [("80", None, SHARED_BYTES), ("90", "sm_90.json", HOPPER_SHARED_BYTES)]
)
def test_kernels_compile_and_fit(capability: str, table: str | None, shared: int) -> None:
    command = [sys.executable, str(SCRIPT), capability, *([] if table is None else [str(TUNING / table)])]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert done.returncode == 0, done.stderr
    needs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(needs) == 8 + 9 + 5 + 11 + 3
    assert not [need for need in needs if need["fused"]]
    for need in needs:
        # Attention of a whole prefix is compiled in a shape of its own here.
        assert need["shared"] <= shared or (need["kernel"] == "_attend" and need["shared"] <= 160 << 10), need
        # What was measured to be the fastest of the many sequences' attention spills a little.
        spills = capability == "80" or need["kernel"] == "_attend_rotary"
        assert need["stack"] <= (128 if spills else 64), need
