"""What `make sanitize` looks at, without a GPU: every kernel, few cases of a test, and what is wrong."""

from __future__ import annotations

import re

import pytest
import sanitize


def test_every_cuda_kernel_is_looked_at() -> None:
    kernels = sum(file.read_text().count("__global__") for file in sanitize.CUDA.glob("*.cu"))
    named = [name for name in sanitize.ours() if name.startswith("kernel_name=")]
    assert len(named) == kernels + 1 and "kernel_name=planted" in named
    triton = re.compile(sanitize.ours()[0].removeprefix("regex="))
    assert triton.match("_gated_up") and not triton.match("_ZN2at6native") and not triton.match("nvjet_hsh")


@pytest.mark.parametrize(("count", "kept"), [(1, [0]), (3, [0, 1, 2]), (4, [0, 1, 3]), (64, [0, 31, 63])])
def test_of_many_cases_a_few_are_run(count: int, kept: list[int]) -> None:
    assert sanitize.spread(range(count)) == kept


def test_errors_are_wrong_but_those_that_were_planted() -> None:
    cases, planted = sanitize.Run("racecheck", planted=False), sanitize.Run("racecheck", planted=True)
    assert cases.verdict(0) == planted.verdict(sanitize.FOUND) == ""
    assert cases.verdict(sanitize.FOUND) == "found errors"
    assert "status 1" in cases.verdict(1) and "did not end" in cases.verdict(None)
    assert "does not find what was planted" in planted.verdict(0)
