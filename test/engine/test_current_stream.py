"""Blocks on a CUDA stream, compared with torch's own."""

from __future__ import annotations

import pytest
import torch

from vla_accel_ros.engine.current_stream import current_stream, on_stream

pytestmark = pytest.mark.gpu


def test_blocks_on_streams_nest_and_restore_the_one_before() -> None:
    first, second = (torch.cuda.Stream(priority=priority) for priority in (0, -1))
    device, before = first.device, torch.cuda.current_stream()
    with on_stream(first):
        assert torch.cuda.current_stream() == current_stream(device) == first
        with pytest.raises(ZeroDivisionError), on_stream(second):
            assert torch.cuda.current_stream() == second
            raise ZeroDivisionError
        with on_stream(first):
            assert torch.cuda.current_stream() == first
        assert torch.cuda.current_stream() == first
    assert torch.cuda.current_stream() == before


def test_work_goes_to_the_blocks_stream() -> None:
    stream, busy = torch.cuda.Stream(), torch.cuda.Stream()
    held, made = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    with on_stream(busy):
        torch.cuda._sleep(int(1e9))
    with on_stream(stream):
        made.copy_(held)
        stream.synchronize()
    assert not busy.query() and made.item() == 1.0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_a_block_on_another_device_restores_the_threads_device() -> None:
    other = torch.cuda.Stream(torch.device("cuda", 1))
    before = torch.cuda.current_device(), torch.cuda.current_stream(other.device)
    with on_stream(other):
        assert torch.cuda.current_device() == 1
    assert (torch.cuda.current_device(), torch.cuda.current_stream(other.device)) == before
