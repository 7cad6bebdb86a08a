"""Inputs go up and results come down through memory that is allocated once; no call overwrites another."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_config, make_model

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.memory.host_buffers import BLOCKS, HostRing, Inputs, Readback
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.flow.rtc import Guidance, Inpainting

STEPS = 3
FIELDS = {
    "noise": (torch.float32, (2, 3)),
    "tokens": (torch.int64, (2, 5)),
    "slots": (torch.int32, (2,)),
    "one": (torch.int32, ()),
}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def test_inputs_are_what_was_put_last(device: torch.device) -> None:
    inputs = Inputs(device, FIELDS)
    pointers = {name: field.data_ptr() for name, field in inputs.fields.items()}
    for number in range(7):
        noise = torch.full((2, 3), float(number), device=device if number % 2 else "cpu")
        tokens = np.arange(10).reshape(2, 5) + number
        inputs.put(noise=noise, tokens=tokens, slots=[number, -number], one=torch.tensor(number))
        assert torch.equal(inputs.fields["noise"].cpu(), noise.cpu())
        assert torch.equal(inputs.fields["tokens"].cpu(), torch.from_numpy(tokens))
        assert inputs.fields["slots"].tolist() == [number, -number]
        assert inputs.fields["one"].item() == number
    assert {name: field.data_ptr() for name, field in inputs.fields.items()} == pointers


@pytest.mark.gpu
def test_inputs_for_a_busy_device_are_not_overwritten_before_they_are_read() -> None:
    inputs, found = Inputs(torch.device("cuda"), FIELDS), list[torch.Tensor]()
    torch.cuda._sleep(400_000_000)
    for number in range(5 * BLOCKS + 1):
        inputs.put(slots=[number, -number])
        found.append(inputs.fields["slots"].clone())
    assert [one.tolist() for one in found] == [[number, -number] for number in range(5 * BLOCKS + 1)]


def test_blocks_of_a_ring_take_turns() -> None:
    ring = HostRing(torch.device("cpu"), FIELDS, blocks=3)
    seen = []
    for _ in range(12):
        block = ring.fill()
        assert block.fields["noise"].data_ptr() == block.memory.data_ptr()
        seen.append(block.memory.data_ptr())
        ring.sent()
    assert seen[:6] == seen[6:] and len(set(seen)) == 6


def test_a_result_is_its_owners_own(device: torch.device) -> None:
    readback = Readback(device, batch=2, horizon=3, dims=4, steps=5)
    found = []
    for number in range(4):
        readback.x.fill_(number)
        readback.magnitudes.copy_(torch.arange(30).view(2, 5, 3) + number)
        found.append((readback.all(), *readback.some([1])))
    readback.x.fill_(-1.0)
    for number, (both, one) in enumerate(found):
        samples, row = both.wait(), one.wait()
        assert both.ready() and both.wait() is samples
        assert samples.actions.dtype == np.float32 and samples.actions.shape == (2, 3, 4)
        assert samples.magnitudes.shape == (5, 2, 3) and row.magnitudes.shape == (5, 1, 3)
        assert (samples.actions == number).all()
        assert (samples.magnitudes[:, 1] == np.arange(15, 30).reshape(5, 3) + number).all()
        assert (row.actions == number).all() and (row.magnitudes == samples.magnitudes[:, 1:]).all()
        samples.actions.fill(99.0)
    assert (found[0][1].wait().actions == 0).all()


@pytest.mark.gpu
def test_host_blocks_are_as_many_as_results_under_way() -> None:
    readback = Readback(torch.device("cuda"), batch=1, horizon=3, dims=4, steps=5)
    for _ in range(20):
        readback.all().wait()
    assert readback.made == 1
    pending = [readback.all() for _ in range(3)]
    assert readback.made == 3
    del pending
    gc.collect()
    for _ in range(20):
        first, second = readback.all(), readback.all()
        first.wait(), second.wait()
    assert readback.made == 3


def make_stages(kind: str, device: torch.device) -> tuple[Stages, int]:
    config = make_config(kind)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = make_model(config).to(device).set_precision(dtype)
    stages = Stages(model, KVPool(config.prefix, 2, config.max_tokens, device, dtype))
    images = np.zeros((1, 28, 28, 3), np.uint8)
    return stages, stages.observe([images], [torch.tensor([5, 6, 7])], [1])[0]


def test_a_call_writes_where_the_last_one_did(kind: str, device: torch.device) -> None:
    stages, length = make_stages(kind, device)
    config = stages.model.config
    guide = Inpainting.of(Guidance(torch.ones(4, 8), 1, 3), config.horizon, config.action_dim)
    noise, state = torch.randn(1, config.horizon, config.action_dim), torch.randn(1, config.state_dim)
    stage, pointers = stages.denoise(1, STEPS), set()
    for _ in range(3):
        for given in (None, [guide]):
            stages.submit(noise, state, [1], [length], STEPS, given).wait()
            tensors = (stage.noise, stage.state, stage.slots, stage.x, stage.update, stage.guide.target)
            pointers.add(tuple(tensor.data_ptr() for tensor in tensors))
    assert len(pointers) == 1


@pytest.mark.gpu
def test_a_submitted_chunk_waits_for_nothing_and_allocates_nothing(kind: str) -> None:
    """The host comes back while the device is still busy with something long that was put before."""
    stages, length = make_stages(kind, torch.device("cuda"))
    config = stages.model.config
    guide = Inpainting.of(Guidance(torch.ones(4, 8), 1, 3), config.horizon, config.action_dim)
    noise, state = torch.randn(1, config.horizon, config.action_dim), torch.randn(1, config.state_dim)
    for given in (None, [guide]):
        wanted = stages.submit(noise, state, [1], [length], STEPS, given).wait()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        made = stages.denoise(1, STEPS).readback.made
        torch.cuda._sleep(400_000_000)
        pending = stages.submit(noise, state, [1], [length], STEPS, given)
        assert not pending.ready()
        found = pending.wait()
        assert np.array_equal(found.actions, wanted.actions)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        assert stages.denoise(1, STEPS).readback.made == made


@pytest.mark.gpu
def test_calls_in_other_streams_are_in_order() -> None:
    stages, length = make_stages("pi05", torch.device("cuda"))
    config = stages.model.config
    draws = [torch.randn(1, config.horizon, config.action_dim) for _ in range(8)]
    wanted = [stages.submit(draw, None, [1], [length], STEPS).wait().actions for draw in draws]
    streams = [torch.cuda.Stream() for _ in draws]
    pending = list[Any]()
    for draw, stream in zip(draws, streams, strict=True):
        with torch.cuda.stream(stream):
            if len(pending) % 2 == 0:
                torch.cuda._sleep(50_000_000)
            pending.append(stages.submit(draw, None, [1], [length], STEPS))
    for one, want in zip(pending, wanted, strict=True):
        assert np.array_equal(one.wait().actions, want)
