"""Which errors leave a GPU that can be used, and which do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vla_accel_ros.models.device import device_fault

SCRIPT = """
import torch
from vla_accel_ros.models.device import device_fault

def raised(what):
    try:
        what()
    except RuntimeError as error:
        return device_fault(error)
    raise SystemExit("nothing was raised")

ones = torch.ones(4, device="cuda")
assert not raised(lambda: ones + torch.ones(3, device="cuda"))
assert not raised(lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
assert not raised(lambda: ones + torch.ones(4))
assert (ones + ones).sum().item() == 8
assert raised(lambda: ones[torch.full((1,), 7, device="cuda")].cpu())  # a failed assertion in a kernel
assert raised(lambda: ones.cpu())
print("as expected")
"""


def test_an_error_on_a_cpu_is_no_fault_of_a_gpu():
    assert not device_fault(RuntimeError("CUDA error: device-side assert triggered"))
    assert not device_fault(ValueError("state has 3 values"))


@pytest.mark.gpu
def test_a_fault_in_a_kernel_lasts_and_wrong_shapes_and_too_much_memory_do_not():
    """In a process of its own, which nothing else can use after it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "as expected" in done.stdout, done.stderr
