"""Chunks denoised together, each in its seat, are the chunks that each would be alone."""

from __future__ import annotations

import pytest
import torch
from builders import make_config, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from seated import Seated

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart, PlainSeats
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.flow.sampling import TIME_RULES, Flow, sample
from vla_accel_ros.models.flow.solver import EULER, SOLVERS
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import FlowStep, Span
from vla_accel_ros.models.pi.model import Pi


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def model(request: pytest.FixtureRequest) -> Pi:
    return make_model(make_config(request.param))


@torch.inference_mode()
def make_chunk(model: Pi, seed: int) -> FlowStep:
    """Noise, state and prefix of a chunk; prefixes differ in length."""
    config, made = model.config, torch.Generator().manual_seed(seed)
    length = 3 + seed % 5
    _, kv = model.prefix(torch.randn(1, length, config.prefix.width, generator=made))
    noise = torch.randn(1, config.horizon, config.action_dim, generator=made)
    state = torch.randn(1, config.state_dim, generator=made) if config.kind == "pi0" else None
    return FlowStep(noise, torch.ones(1), state, kv)


@torch.inference_mode()
def alone(model: Pi, chunk: FlowStep, steps: int, rule: str = "openpi", solver: str = EULER) -> Flow:
    kv = chunk.kv
    assert isinstance(kv, KV)

    def velocity(x: torch.Tensor, t: float) -> torch.Tensor:
        return model.velocity(x, torch.full((1,), t), chunk.state, kv)

    return sample(velocity, chunk.x, steps, rule, solver)


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    steps=st.integers(1, 5),
    count=st.integers(1, 5),
    rule=st.sampled_from(TIME_RULES),
    together=st.booleans(),
    solver=st.sampled_from(SOLVERS),
)
def test_any_schedule_gives_each_chunk_its_own_flow(
    model: Pi, data: st.DataObject, steps: int, count: int, rule: str, together: bool, solver: str
) -> None:
    """Chunks begin and advance when they like, and may be dropped; by themselves they are bit-equal."""
    batch = Seated(PlainSeats(model, count, steps, rule, together, solver=solver))
    chunks: dict[int, FlowStep] = {}
    for number in range(data.draw(st.integers(1, 8), label="ticks")):
        event = data.draw(st.sampled_from(["begin", "begin", "wait", "some", "drop"]), label="event")
        if event == "begin" and not batch.full:
            chunks[number] = make_chunk(model, number)
            batch.begin(number, chunks[number].x, chunks[number].state, chunks[number].kv)
        elif event == "drop" and batch.under_way:
            dropped = data.draw(st.sampled_from(batch.under_way), label="dropped")
            batch.drop(dropped)
            del chunks[dropped]
        if event == "some" and batch.under_way:
            batch.step(*data.draw(st.sets(st.sampled_from(batch.under_way), min_size=1), label="some"))
        else:
            batch.step()
    batch.run()

    assert sorted(batch.flows) == sorted(chunks)
    for number, flow in batch.flows.items():
        want = alone(model, chunks[number], steps, rule, solver)
        if together:
            torch.testing.assert_close(flow.actions, want.actions, atol=1e-5, rtol=1e-5)
        else:
            assert torch.equal(flow.actions, want.actions) and torch.equal(flow.update, want.update)


def make_pool(model: Pi) -> KVPool:
    return KVPool(model.config.prefix, 6, 24, torch.device("cpu"), torch.float32)


def place(pool: KVPool, chunk: FlowStep, slot: int) -> Span:
    """A chunk's prefix in a slot of the pool."""
    tokens = chunk.kv.k.shape[3]
    whole = pool.view(slot, tokens)
    whole.k.copy_(chunk.kv.k)
    whole.v.copy_(chunk.kv.v)
    return pool.span(slot, 0, tokens)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("wide", [False, True], ids=["few rows", "many rows"])
@torch.inference_mode()
def test_captured_steps_give_each_chunk_its_own_flow(model: Pi, wide: bool, solver: str) -> None:
    """Frames of different lengths, begun one step apart, on prefixes in a pool; one is dropped."""
    pool = make_pool(model)
    batch = Seated(CapturedSeats(Stages(model, pool, solver=solver), 4, 4, wide))
    chunks = [make_chunk(model, number) for number in range(9)]
    for number, chunk in enumerate(chunks):
        batch.begin(number, chunk.x, chunk.state, place(pool, chunk, number % pool.slots))
        batch.step()
        if number == 4:
            batch.drop(3)
    batch.run()
    assert sorted(batch.flows) == [number for number in range(9) if number != 3]
    for number, flow in batch.flows.items():
        torch.testing.assert_close(flow, alone(model, chunks[number], 4, solver=solver), atol=2e-5, rtol=1e-4)


@settings(max_examples=6)
@given(data=st.data(), wide=st.booleans(), solver=st.sampled_from(SOLVERS))
@torch.inference_mode()
def test_captured_chunks_advance_when_they_like(
    model: Pi, data: st.DataObject, wide: bool, solver: str
) -> None:
    """Seats that a step leaves out are where they were, to the bit."""
    pool = make_pool(model)
    seats = CapturedSeats(Stages(model, pool, solver=solver), 3, 3, wide)
    chunks = [make_chunk(model, n) for n in range(6)]
    batch, numbers = Seated(seats), iter(range(6))

    def begin(number: int) -> None:
        chunk = chunks[number]
        batch.begin(number, chunk.x, chunk.state, place(pool, chunk, number))

    for leaves_out in data.draw(st.lists(st.integers(0, 3), max_size=12), label="steps leave out"):
        if not batch.full and (number := next(numbers, None)) is not None:
            begin(number)
        chosen = [number for at, number in enumerate(batch.under_way) if at != leaves_out]
        if chosen:
            batch.step(*chosen)
    for number in numbers:
        if batch.full:
            batch.run()
        begin(number)
    batch.run()
    for number, chunk in enumerate(chunks):
        by_itself = Seated(seats)
        by_itself.begin(number, chunk.x, chunk.state, pool.span(number, 0, chunk.kv.k.shape[3]))
        by_itself.run()
        assert torch.equal(by_itself.flows[number].actions, batch.flows[number].actions)
        assert torch.equal(by_itself.flows[number].update, batch.flows[number].update)
        torch.testing.assert_close(
            batch.flows[number], alone(model, chunk, 3, solver=solver), atol=2e-5, rtol=1e-4
        )


def test_captured_steps_take_prefixes_of_their_pool_only(model: Pi) -> None:
    pool = KVPool(model.config.prefix, 1, 24, torch.device("cpu"), torch.float32)
    chunk, seats = make_chunk(model, 0), CapturedSeats(Stages(model, pool), 2, 4)
    with pytest.raises(ValueError, match="slot"):
        seats.take(0, ChunkStart(chunk.x, chunk.state, chunk.kv))


@pytest.mark.gpu
def test_a_step_of_some_seats_makes_the_host_wait_for_nothing() -> None:
    model = make_model(make_config("pi0")).to("cuda")
    pool = KVPool(model.config.prefix, 4, model.config.max_tokens, torch.device("cuda"), torch.float32)
    seats = CapturedSeats(Stages(model, pool), 3, steps=2)
    config = model.config
    noise = torch.zeros(1, config.horizon, config.action_dim)
    state = torch.zeros(1, config.state_dim)
    for seat in range(3):
        seats.take(seat, ChunkStart(noise, state, pool.span(0, 0, 3)))
    seats.step([0, 1, 2])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        seats.step([0, 2])
        seats.leave(1)
        seats.step([0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
