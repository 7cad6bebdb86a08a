"""What an offload report says of figures."""

from __future__ import annotations

import pytest

from vla_accel_ros.engine.stages.memory.offload_report import OffloadReport

SLOW = OffloadReport(27, 27, 823_000_000, 823_000_000, 762_000_000, 50e9, 2e-3, 16.5e-3)
FAST = OffloadReport(63, 63, 8_555_000_000, 8_555_000_000, 8_284_000_000, 50e9, 0.2, 0.201)


def test_a_bandwidth_below_s_over_t_hides_a_part() -> None:
    assert SLOW.needed_bandwidth == pytest.approx(411.5e9)
    assert SLOW.hidden_share == pytest.approx(50 / 411.5) and not SLOW.hidden
    assert str(SLOW) == (
        "offload: the weights of 27 of 27 vision layers (823 MB of 823 MB) are in host memory, which frees "
        "762 MB of the GPU; a bandwidth of 50.0 GB/s does not hide all weights (S/T is 411.5 GB/s), it can "
        "hide 12% of them; vision takes 2.00 ms without copies and 16.50 ms with them (+725.0%)"
    )


def test_one_above_hides_all() -> None:
    assert FAST.hidden_share == 1.0 and FAST.hidden
    assert "50.0 GB/s hides all weights (S/T is 42.8 GB/s), it can hide 100% of them" in str(FAST)
    assert str(FAST).endswith("201.00 ms with them (+0.5%)")


def test_nothing_measured_is_not_hidden() -> None:
    assert not OffloadReport(2, 2, 10, 10, 0).hidden
