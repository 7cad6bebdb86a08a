"""Results are right with other instructions than torch picks kernels for here: AVX2 instead of AVX-512.

A processor without AVX-512 runs other kernels than the one that a test was written on. Torch chooses when it
is imported, so a part of the tests runs again in processes of its own. oneDNN chooses by itself, and where it
has AMX torch packs for it with AVX-512, which it then says is missing: it is told the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SUITE = (
    "smolvla/test_smolvla.py",
    "openvla/test_openvla.py",
    "processing/test_conventions.py",
    "test_oracles.py::test_actions",
    "test_oracles.py::test_prefix_keys_and_values",
)


def test_a_part_of_the_model_tests_passes_with_other_kernels() -> None:
    chosen = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **chosen}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run(
        [*pytest_, *SUITE], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 30
