"""One engine for many robots: each gets what an engine of its own would have made, whatever the others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from builders import make_embodiment, make_observation, make_policy

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import MicroBatch, Observe, Request
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription, Round
from vla_accel_ros.fleet.replicas import local
from vla_accel_ros.fleet.replicas.decoding import decoded
from vla_accel_ros.fleet.replicas.local import LocalReplica
from vla_accel_ros.fleet.replicas.replica import FRAMES, MEASURED, SERVE, ReplicaLost, Served
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk, Observation

JOINTS = {"/left": 6, "/right": 4}
STEP_S = {"/left": 1 / 30, "/right": 0.05}
CAMERAS = {"front": "base_0_rgb", "wrist": "left_wrist_0_rgb"}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy("pi0")


@pytest.fixture(scope="module")
def contracts() -> dict[str, Contract]:
    """Only what a replica reads of them."""
    arm = Contract.load(Path(__file__).resolve().parents[2] / "config" / "contracts" / "sim_arm.yaml")
    cameras = tuple(replace(arm.cameras[0], name=name, image=image) for name, image in CAMERAS.items())
    return {name: replace(arm, cameras=cameras, joints=arm.joints[:1] * n) for name, n in JOINTS.items()}


def embodiments(policy: Policy) -> dict[str, Embodiment]:
    return {
        "/left": Embodiment(policy, STEP_S["/left"]),
        "/right": make_embodiment(policy, JOINTS["/right"], STEP_S["/right"]),
    }


def embody(
    policy: Policy, contracts: dict[str, Contract], robot: RobotDescription
) -> tuple[Contract, Embodiment]:
    if robot.robot not in contracts:
        raise ValueError(f"there are no statistics of {robot.robot}")
    return contracts[robot.robot], embodiments(policy)[robot.robot]


@pytest.fixture
def make(policy: Policy, contracts: dict[str, Contract]) -> Iterator[Callable[..., LocalReplica]]:
    made: list[LocalReplica] = []

    def make(**options: Any) -> LocalReplica:
        slots = 4 + options.get("staggered", 0)
        engine = Engine(policy, step_dt_s=0.04, seed=5, slots=slots, **{"steps": 4, **options})
        made.append(LocalReplica(engine, partial(embody, policy, contracts)))
        for name in JOINTS:
            made[-1].describe(RobotDescription("e", name, "")).result(30)
        return made[-1]

    yield make
    for replica in made:
        replica.close()
        assert held_slots(replica.engine) == 0
        assert replica.room() == replica.limit


def seen(robot: str, number: int = 0, **changes: Any) -> EncodedObservation:
    observation = make_observation(number, stamp_ns=10**9 + number)
    images = {name: observation.images[image] for name, image in CAMERAS.items()}
    state = np.random.default_rng(number).uniform(-0.5, 0.5, JOINTS[robot]).astype(np.float32)
    return EncodedObservation(
        **{
            "images": images,
            "stamps_ns": dict.fromkeys(images, 10**9 + number),
            "state": state,
            "instruction": "reach the red block",
            "stamp_ns": 10**9 + number,
            **changes,
        }
    )


def as_observed(robot: str, number: int = 0) -> Observation:
    told = seen(robot, number)
    images = {CAMERAS[name]: np.asarray(image) for name, image in told.images.items()}
    return Observation(images, told.state, told.instruction, told.stamp_ns)


def held_slots(engine: Engine) -> int:
    return engine.runner.pool.slots - engine.runner.pool.free


def round_of(robot: str, number: int = 0) -> Round:
    return Round("e", robot, 0, number)


def alone(policy: Policy, robot: str, number: int, noise: int, **options: Any) -> Chunk:
    """What an engine that serves nobody else makes of it."""
    own = embodiments(policy)[robot]
    engine = Engine(own.policy, step_dt_s=own.step_dt_s, seed=5, steps=4, **options)
    with engine.observe(as_observed(robot, number)) as prefix:
        return engine.act(prefix, noise=noise)


def assert_alike(ours: Chunk, theirs: Chunk) -> None:
    np.testing.assert_array_equal(ours.actions, theirs.actions)
    np.testing.assert_array_equal(ours.update_magnitudes, theirs.update_magnitudes)
    assert (ours.stamp_ns, ours.step_dt_s) == (theirs.stamp_ns, theirs.step_dt_s)


def test_a_chunk_is_that_of_an_engine_of_the_robots_own(
    make: Callable[..., LocalReplica], policy: Policy
) -> None:
    replica = make()
    for number in range(2):
        for robot in JOINTS:
            served = replica.serve(round_of(robot, number), seen(robot, number)).result(30)
            assert served.round == round_of(robot, number) and served.took_s > 0
            assert served.chunk.actions.shape[1] == JOINTS[robot]
            assert_alike(served.chunk, alone(policy, robot, number, served.chunk.request_id))


def test_a_question_is_answered_as_an_engine_would_and_changes_no_bit_of_a_chunk(
    make: Callable[..., LocalReplica], policy: Policy
) -> None:
    replica = make(answers=2, answer_tokens=6)
    before = replica.serve(round_of("/left"), seen("/left")).result(30).chunk
    answers = [
        replica.ask(round_of(robot, 50), seen(robot, 1, instruction="what is there")) for robot in JOINTS
    ]
    assert replica.room() == replica.limit  # they take no room of chunks
    assert_alike(replica.serve(round_of("/left"), seen("/left")).result(30).chunk, before)
    for robot, answer in zip(JOINTS, answers, strict=True):
        engine = Engine(embodiments(policy)[robot].policy, answer_tokens=6)
        observation = replace(as_observed(robot, 1), instruction="what is there")
        with engine.observe(observation) as prefix, engine.ask(prefix, max_tokens=6) as alone_:
            assert answer.result(30) == "".join(alone_)
    broken = replica.ask(round_of("/left", 51), seen("/left", 1, instruction="word " * 500))
    with pytest.raises(ValueError, match="tokens"):
        broken.result(30)
    replica.cancel(replica.ask(round_of("/left", 52), seen("/left", 1)))


def test_the_noise_of_a_chunk_is_that_of_its_round(make: Callable[..., LocalReplica], policy: Policy) -> None:
    first, second = make(), make()
    second.serve(round_of("/right", 9), seen("/right", 9)).result(30)  # it has another history
    round_ = Round("e", "/left", 3, 41)
    chunks = [one.serve(round_, seen("/left", 2)).result(30).chunk for one in (first, second)]
    assert chunks[0].request_id == chunks[1].request_id == 3 * 2**32 + 41
    assert_alike(*chunks)
    assert_alike(chunks[0], alone(policy, "/left", 2, round_.request_id))
    other = first.serve(replace(round_, number=42), seen("/left", 2)).result(30).chunk
    assert (other.actions != chunks[0].actions).any()


def test_chunks_of_several_robots_share_denoising_steps(
    make: Callable[..., LocalReplica], policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = make(staggered=3, steps=4)
    shared: list[int] = []
    runner = replica.engine.runner
    run = runner.run
    full = threading.Event()

    def noting(batch: MicroBatch) -> Callable[[], None] | None:
        assert full.wait(30)  # until all have been accepted
        shared.append(len({request.robot for request in batch.requests}))
        return run(batch)

    monkeypatch.setattr(runner, "run", noting)
    futures = [
        replica.serve(round_of(robot, number), seen(robot, number)) for number in range(2) for robot in JOINTS
    ]
    assert replica.room() == 0
    full.set()
    for future in futures:
        served = future.result(30)
        robot, number = served.round.robot, served.round.number
        # Batched sums round otherwise than one by one on a CPU, too; which robot's it is shows all the same.
        theirs = alone(policy, robot, number, served.chunk.request_id)
        np.testing.assert_allclose(served.chunk.actions, theirs.actions, atol=1e-4)
    assert max(shared) == 2


def test_a_robot_that_is_not_known_or_was_forgotten_gets_nothing(make: Callable[..., LocalReplica]) -> None:
    replica = make()
    with pytest.raises(ValueError, match="no statistics of /third"):
        replica.describe(RobotDescription("e", "/third", "")).result(30)
    replica.forget("/right")
    replica.describe(RobotDescription("e", "/left", "")).result(30)  # after that
    assert replica.robots == ("/left",) == replica.engine.runner.robots.names
    with pytest.raises(ReplicaLost, match="/right"):
        replica.serve(round_of("/right"), seen("/right")).result(30)
    assert replica.serve(round_of("/left"), seen("/left")).result(30).chunk is not None


def test_what_cannot_be_taken_fails_alone(make: Callable[..., LocalReplica]) -> None:
    replica = make(staggered=3)
    wrong = {
        "cut short": seen("/left", images={"front": b"\xff\xd8abc", "wrist": seen("/left").images["wrist"]}),
        "cameras are": seen("/left", images={"front": seen("/left").images["front"]}),
        "finite number": seen("/left", state=np.zeros(5, np.float32)),
        "the state is": seen("/left", state=np.full(6, np.nan, np.float32)),
        "uint8": seen("/left", images=dict.fromkeys(CAMERAS, np.zeros((4, 4), np.float32))),
    }
    good = replica.serve(round_of("/right"), seen("/right"))
    for why, observation in wrong.items():
        with pytest.raises(ValueError, match=why):
            replica.serve(round_of("/left"), observation).result(30)
    assert good.result(30).chunk.actions.shape[1] == JOINTS["/right"]
    assert held_slots(replica.engine) == 0


def test_pictures_that_travel_compressed_are_decoded(contracts: dict[str, Contract]) -> None:
    pixels = np.full((32, 48, 3), (200, 30, 60), np.uint8)  # RGB
    done, jpeg = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    assert done
    told = seen("/left", images={"front": jpeg.tobytes(), "wrist": pixels})
    observation = decoded(told, contracts["/left"], "/left")
    assert observation.robot == "/left" and set(observation.images) == set(CAMERAS.values())
    assert np.abs(observation.images["base_0_rgb"].astype(int) - pixels).max() < 8
    np.testing.assert_array_equal(observation.images["left_wrist_0_rgb"], pixels)
    assert observation.stamps_ns == dict.fromkeys(CAMERAS.values(), told.stamp_ns)


def test_what_is_cancelled_comes_to_nothing_wherever_it_is(make: Callable[..., LocalReplica]) -> None:
    replica = make(staggered=2)
    for number in range(12):
        futures: list[Future[Served]] = []
        for robot in JOINTS:
            futures.append(replica.serve(round_of(robot, number), seen(robot, number)))
        if number % 3 == 1:
            while any(one.running is None for one in tuple(replica._jobs.values())):
                pass  # until the engine has them
        for future in futures:
            replica.cancel(future)
        for future in futures:
            with suppress(CancelledError):
                assert future.result(30).round.number == number  # it was faster
    served = replica.serve(round_of("/left", 99), seen("/left", 99)).result(30)
    assert served.round.number == 99


def test_what_is_cancelled_before_its_turn_is_not_computed(
    make: Callable[..., LocalReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = make()
    computed: list[str] = []
    runner = replica.engine.runner
    run, entered, go_on = runner.run, threading.Event(), threading.Event()

    def noting(batch: MicroBatch) -> Callable[[], None] | None:
        computed.extend(request.robot for request in batch.requests)
        return run(batch)

    def blocking() -> None:
        entered.set()
        go_on.wait(30)

    monkeypatch.setattr(runner, "run", noting)
    replica.engine.scheduler.submit(Request(Observe(newest=blocking), "/left"))
    assert entered.wait(30)
    future = replica.serve(round_of("/right"), seen("/right"))
    while all(job.running is None for job in tuple(replica._jobs.values())):
        pass  # until the engine has it
    replica.cancel(future)
    go_on.set()
    with pytest.raises(CancelledError):
        future.result(30)
    assert "/right" not in computed


def test_a_replica_that_is_closed_ends_also_what_waits_to_be_decoded(
    make: Callable[..., LocalReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, go_on = make(), threading.Event()

    def slow(encoded: EncodedObservation, *given: Any) -> Observation:
        assert go_on.wait(30)
        return decoded(encoded, *given)

    monkeypatch.setattr(local, "decoded", slow)
    served = [replica.serve(round_of("/left", number), seen("/left", number)) for number in range(4)]
    closing = threading.Thread(target=replica.close)
    closing.start()
    go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    for future in served:
        with pytest.raises(CancelledError):
            future.result(5)


def test_how_long_it_takes_is_measured_before_it_serves(make: Callable[..., LocalReplica]) -> None:
    replica = make(staggered=2)
    profile = replica.measure(replace(as_observed("/left"), robot="/left"))
    known = profile.known()
    assert profile is replica.profile and set(known) == {(FRAMES, 1), (SERVE, 1), (SERVE, 2), (SERVE, 3)}
    assert all(seconds > 0 for seconds in known.values()) and replica.room() == replica.limit


def test_a_result_that_is_read_before_its_callback_was_called_is_measured_too(
    make: Callable[..., LocalReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LateFuture] = []

    class LateFuture(Future[Any]):
        """The last of a measurement is read before whoever waits for its end is told."""

        def __init__(self) -> None:
            super().__init__()
            self.read = threading.Event()
            made.append(self)

        def result(self, timeout: float | None = None) -> Any:
            found = super().result(timeout)
            self.read.set()
            return found

        def _invoke_callbacks(self) -> None:
            if len(made) == MEASURED + 2 and self is made[-1]:
                assert self.read.wait(60.0)
            super()._invoke_callbacks()  # type: ignore[misc]

    replica = make(staggered=2)
    monkeypatch.setattr(local, "Future", LateFuture)
    assert replica._interval_s(replace(as_observed("/left"), robot="/left"), 1) > 0.0
    assert len(made) == MEASURED + 2 and made[-1].read.is_set()


def test_a_request_of_a_robot_that_has_gone_is_cancelled_whatever_it_ends_with(
    make: Callable[..., LocalReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = make()
    begun, gone = threading.Event(), threading.Event()
    run = replica.engine.runner.frames.run

    def late(request: Request) -> object:
        begun.set()
        assert gone.wait(30)
        return run(request)

    monkeypatch.setattr(replica.engine.runner.frames, "run", late)
    future = replica.serve(round_of("/left", 0), seen("/left", 0))
    assert begun.wait(30)
    replica.forget("/left")
    replica.describe(RobotDescription("e", "/right", "")).result(30)  # after it is forgotten
    gone.set()
    with pytest.raises((CancelledError, ReplicaLost)):
        future.result(30)
