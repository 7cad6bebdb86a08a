"""Captured plain functions do what the plain engine does, to the bit: SmolVLA's, and another family's."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from guiding import guidance_to
from seated import Seated
from smolvla_frames import COMMITTED, FRAMES, assert_same, frame, load
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.runner.captured_prefill import CapturedPlainPrefill
from vla_accel_ros.engine.runner.plain_prefill import PlainPrefill
from vla_accel_ros.engine.stages.denoise.seats import PlainSeats, Seats
from vla_accel_ros.engine.stages.plain.prefix import Resize
from vla_accel_ros.engine.stages.plain.stages import SIZES, CapturedPlainSeats, PlainStages
from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.rtc import SCHEDULES, Guidance, Inpainting
from vla_accel_ros.models.flow.sampling import TIME_RULES, sample
from vla_accel_ros.models.flow.solver import SOLVERS
from vla_accel_ros.models.policies import FlowField
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.types import Chunk

pytestmark = pytest.mark.usefixtures("same_kernels")
STEPS = 4


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((device, dtype), id=f"{device} {dtype}".replace("torch.", ""), marks=marks)
        for device, marks in (("cpu", ()), ("cuda", pytest.mark.gpu))
        for dtype in (torch.float32, torch.bfloat16)
    ],
)
def policy(request: pytest.FixtureRequest, folder: Path) -> SmolVLAPolicy:
    return load(folder, *request.param)


@pytest.fixture(scope="module", params=SOLVERS)
def engines(request: pytest.FixtureRequest, policy: SmolVLAPolicy) -> tuple[Engine, Engine]:
    """The plain one, and that with captured stages."""
    given = {"steps": STEPS, "slots": 8, "solver": request.param}
    return Engine(policy, **given), Engine(policy, **given, fast=True)


def test_prefixes_and_chunks_are_the_plain_ones_in_any_slot(engines: tuple[Engine, Engine]) -> None:
    """Several frames are held, of one and of two cameras, of other sizes, with more and fewer words."""
    chunks: list[list[Chunk]] = [[], []]
    views: list[list[Tensor]] = [[], []]
    with ExitStack() as held:
        for which, engine in enumerate(engines):
            engine.runner.pool.k.fill_(7.0)
            shapes = FRAMES + FRAMES[:2]
            prefixes = [held.enter_context(engine.observe(frame(i, *f))) for i, f in enumerate(shapes)]
            assert len({prefix.slot for prefix in prefixes}) == len(prefixes)
            for prefix in prefixes[::-1]:
                for steps in (STEPS, 1, 10):
                    chunks[which].append(engine.act(prefix, noise=steps, steps=steps))
                views[which] += engine.runner.pool.view(prefix.slot, prefix.n_tokens)
                beyond = engine.runner.pool.k[prefix.slot, :, :, prefix.n_tokens :]
                assert (beyond == 7.0).all(), "nothing is written but the prefix"
    for plain, ours in zip(*views, strict=True):
        assert torch.equal(ours, plain)
    for plain_chunk, chunk in zip(*chunks, strict=True):
        assert_same(chunk, plain_chunk)
    assert not np.array_equal(chunks[1][0].actions, chunks[1][3].actions)


@pytest.mark.parametrize("rule", TIME_RULES)
def test_either_rule_of_time(policy: SmolVLAPolicy, rule: str) -> None:
    made = []
    for fast in (False, True):
        engine = Engine(policy, steps=7, time_rule=rule, fast=fast)
        with engine.observe(frame(0)) as prefix:
            made.append(engine.act(prefix))
    assert_same(*made)


@pytest.mark.parametrize("jacobian", ["identity", "exact"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_guided_chunks(engines: tuple[Engine, Engine], schedule: str, jacobian: str) -> None:
    guided, free = [], []
    for engine in engines:
        with engine.observe(frame(1)) as prefix:
            previous = engine.act(prefix, noise=3)
            for most in (None, 2.5):
                given = guidance_to(engine, prefix, previous, 2, 5, schedule, jacobian, max_weight=most)
                guided.append(engine.act(prefix, noise=4, guidance=given))
            free.append(engine.act(prefix, noise=4))
    for plain, ours in zip(guided[:2], guided[2:], strict=True):
        assert_same(ours, plain)
    assert_same(free[1], free[0])
    assert not np.array_equal(guided[2].actions, free[1].actions)


@pytest.mark.parametrize("count", [0, 1, 3, COMMITTED])
def test_chunks_with_committed_actions(engines: tuple[Engine, Engine], count: int) -> None:
    committed, made = np.linspace(-0.2, 0.3, count * 6, dtype=np.float32).reshape(count, 6), []
    for engine in engines:
        with engine.observe(frame(2)) as prefix:
            made += [engine.act(prefix, noise=1, committed=committed), engine.act(prefix, noise=1)]
    assert_same(made[2], made[0])
    assert_same(made[3], made[1])
    np.testing.assert_array_equal(made[2].actions[:count], committed)
    assert np.array_equal(made[2].actions, made[3].actions) == (count == 0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_staggered_chunks_are_those_of_act(policy: SmolVLAPolicy, solver: str) -> None:
    """Each on its own frame, of its own length, at its own step."""
    pool = KVPool(policy.config.prefix, 3, policy.config.max_tokens, policy.device, policy.kv_dtype)
    stages = PlainStages(policy, pool, solver=solver)
    prefill = CapturedPlainPrefill(policy, pool, stages)
    lengths = [prefill.observe(frame(slot, *FRAMES[slot]), policy, slot).n_tokens for slot in range(3)]
    shape = policy.config.horizon, policy.config.action_dim
    noise = torch.randn(9, 1, *shape, generator=torch.Generator().manual_seed(2))
    target = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(policy.device)
    guidance, committed = Guidance(target[:6], 2, 5), Committed(target[:3])
    guides = [None, *(Inpainting.of(given, *shape) for given in (guidance, committed))]
    kinds: list[Seats] = [
        CapturedPlainSeats(stages, 3, STEPS),
        PlainSeats(
            FlowField(policy),
            3,
            STEPS,
            together=False,
            joints=policy.joints,
            solver=solver,
        ),
    ]
    flows = []
    for seats in kinds:
        seats.prepare()
        batch = Seated(seats)
        for number in range(9):
            while batch.full:
                batch.step()
            slot, start = number % 3, noise[number]
            if isinstance(seats, PlainSeats):
                start = start.to(policy.device)
            guide = guides[(number + number // 3) % 3]
            batch.begin(number, start, None, stages.results.of(slot), guide)
            batch.step()
        batch.run()
        flows.append(batch.flows)
    for number in range(9):
        slot, guide = number % 3, guides[(number + number // 3) % 3]
        whole = stages.submit(noise[number], None, [slot], [lengths[slot]], STEPS, [guide]).wait()
        for flow in (one[number] for one in flows):
            np.testing.assert_array_equal(flow.actions.cpu().numpy(), whole.actions)


def test_threads_do_not_mix_their_chunks(engines: tuple[Engine, Engine]) -> None:
    stages = engines[1].runner.stages
    assert isinstance(stages, PlainStages)
    together: dict[int, np.ndarray] = {}
    with engines[1].observe(frame(0)) as prefix:

        def act(number: int) -> None:
            noise = torch.full((1, *shape), 0.1 * number)
            steps, given = 2 + number % 2, ([prefix.slot], [prefix.n_tokens])
            together[number] = stages.submit(noise, None, *given, steps).wait().actions

        shape = stages.policy.config.horizon, stages.policy.config.action_dim
        for number in range(6):
            act(number)
        alone = dict(together)
        threads = [threading.Thread(target=act, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(6):
        np.testing.assert_array_equal(together[number], alone[number])


def test_images_of_a_size_have_a_stage_while_few_sizes_come(engines: tuple[Engine, Engine]) -> None:
    stages = engines[1].runner.stages
    assert isinstance(stages, PlainStages)

    def of(*sizes: tuple[int, int]) -> Resize:
        return stages.resize([np.zeros((*size, 3), np.uint8) for size in sizes])

    first = of((20, 30))
    others = [of((20, 31)), of((20, 30), (20, 30)), of((21, 30))]
    assert len({first, *others}) == SIZES == 4
    assert of((20, 30)) is first and of((21, 30)) is others[2]
    of((22, 30))
    assert of((20, 30)) is first and of((20, 31)) is not others[0], "the one that was used longest ago went"


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_a_pool_may_have_a_type_of_its_own(policy: SmolVLAPolicy, kept: torch.dtype) -> None:
    config, kinds = policy.config, []
    for captured in (False, True):
        pool = KVPool(config.prefix, 2, config.max_tokens, policy.device, kept)
        stages = PlainStages(policy, pool)
        prefill = CapturedPlainPrefill(policy, pool, stages) if captured else PlainPrefill(policy, pool)
        with torch.inference_mode():
            extent = prefill.observe(frame(3), policy, 1)
        kinds.append((pool, stages, extent))
    (plain_pool, _, extent), (pool, stages, ours) = kinds
    assert ours == extent and torch.equal(pool.k, plain_pool.k) and torch.equal(pool.v, plain_pool.v)
    noise = torch.ones(1, config.horizon, config.action_dim)
    with torch.inference_mode():
        kv = plain_pool.view(1, extent.n_tokens)

        def velocity(x: Tensor, t: float) -> Tensor:
            return policy.model.velocity(x, torch.full((1,), t, device=x.device), None, kv)

        plain = sample(velocity, noise.to(policy.device), STEPS)
    samples = stages.submit(noise, None, [1], [extent.n_tokens], STEPS).wait()
    np.testing.assert_array_equal(samples.actions, plain.actions.cpu().numpy())


def test_a_prepared_engine_has_all_slots_free_and_the_same_chunks(policy: SmolVLAPolicy) -> None:
    said: list[tuple[str, int, int]] = []
    engine = Engine(policy, steps=STEPS, fast=True)
    engine.prepare((1, 2), range(6, 26), lambda *told: said.append(told))
    assert said == [
        (f"prefixes of {views} images and {words} words, and steps from them", number, 4)
        for number, (views, words) in enumerate(
            (views, words) for views in (1, 2) for words in ("6 to 21", "22 to 25")
        )
    ]
    assert engine.runner.pool.free == engine.runner.pool.slots
    plain = Engine(policy, steps=STEPS)
    chunks = []
    for each in (engine, plain):
        with each.observe(frame(0, letters=20)) as prefix:
            chunks.append(each.act(prefix))
    assert_same(*chunks)
    engine.prepare((), ())


def test_what_does_not_fit_is_refused(engines: tuple[Engine, Engine]) -> None:
    engine = engines[1]
    free = engine.runner.pool.free
    for changes, message in (
        ({"images": {}}, r"observation\.images is empty"),
        ({"images": {"left": np.zeros((9, 9, 3), np.uint8)}}, "the policy knows"),
        ({"state": np.array([np.nan] * 6, np.float32)}, "must be finite"),
        ({"instruction": "x" * 60}, "shorten the instruction"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.observe(replace(frame(0), **changes))
    assert engine.runner.pool.free == free
    other = Inpainting(torch.zeros(3, 8), torch.zeros(3))
    stages = engine.runner.stages
    assert isinstance(stages, PlainStages)
    config = stages.policy.config
    noise = torch.zeros(1, config.horizon, config.action_dim)
    with engine.observe(frame(0)) as prefix, pytest.raises(ValueError, match=r"inpainting\.target has shape"):
        stages.submit(noise, None, [prefix.slot], [prefix.n_tokens], STEPS, [other])
