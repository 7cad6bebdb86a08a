"""Replicas in real Ray actors: the bits of a replica of this process, and lives that end at any time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fleet_stand_ins import Fifo
from ray_engines import make, refused, seen

pytest.importorskip("ray")

from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, ChunkRequest, RobotDescription, Round
from vla_accel_ros.fleet.replicas.ray import RayReplica
from vla_accel_ros.fleet.replicas.ray_cluster import (
    LEAST_STORE_BYTES,
    MOST_STORE_BYTES,
    Cluster,
    Deadlines,
    Where,
    store_bytes,
)
from vla_accel_ros.fleet.replicas.replica import FRAMES, SERVE, ReplicaLost
from vla_accel_ros.fleet.serving.scheduler import FleetScheduler
from vla_accel_ros.fleet.serving.settings import Ports, Settings
from vla_accel_ros.interpreter import SWITCH_S

ROBOTS = ("/left", "/right")
SERVE_S = 6.0
HERE = Path(__file__).resolve().parent


def described(robot: str) -> RobotDescription:
    return RobotDescription("e", robot, "", chunks_per_s=0.1)


def until(condition, timeout_s: float = 60.0) -> None:
    """What Ray does sends no message to wait on."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def of_ray(parent: int) -> set[int]:
    """Processes that a process has started, and those that these have."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, above = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(folder.name)] = int(above)
    found, ahead = set(), {parent}
    while ahead:
        ahead = {child for child, above in parents.items() if above in ahead}
        found |= ahead
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), str(HERE)]))
        patch.setenv("OMP_NUM_THREADS", "1")
        before = of_ray(os.getpid())
        cluster = Cluster(tiers={"edge": 2, "cloud": 1})
        handler = signal.getsignal(signal.SIGTERM)
        assert len(of_ray(os.getpid()) - before) > 2
        yield cluster
        cluster.close()
        assert signal.getsignal(signal.SIGTERM) is handler
        until(lambda: of_ray(os.getpid()) <= before)


@pytest.fixture(scope="module")
def replicas(cluster: Cluster) -> Iterator[tuple[RayReplica, RayReplica]]:
    deadlines = Deadlines(serve=SERVE_S, alive=3.0, start=60.0, again=0.1)
    both = RayReplica("a", make, Where("edge"), deadlines), RayReplica("b", make, Where("edge"), deadlines)
    for one in both:
        one.ready.result(120)
    yield both
    for one in both:
        one.close()
        assert one.room() == 0
        with pytest.raises(ReplicaLost):
            one.serve(Round("e", "/left", 0, 0), seen("/left")).result(0)


def know(one: RayReplica) -> None:
    for robot in ROBOTS:
        one.describe(described(robot)).result(30)


def test_it_is_measured_where_it_runs_and_over_the_way_there(replicas) -> None:
    for one in replicas:
        assert one.pid != os.getpid() and one.room() == one.limit == 2 and one.updates == 4
        known = {(FRAMES, 1), (SERVE, 1), (SERVE, 2)}
        assert set(one.profile.known()) == known and one.config is not None and 0.0 < one.network_s < 1.0


def test_chunks_are_those_of_a_replica_of_this_process_to_the_bit(replicas, request) -> None:
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(1)  # as the actors have; sums of several threads have other bits
    local, _ = make()  # it has another history than the actor, which was measured
    different = set()
    for robot in ROBOTS:
        local.describe(described(robot)).result(30)
    know(replicas[0])
    for number in range(3):
        for robot in ROBOTS:
            round_ = Round("e", robot, 0, number)
            theirs = replicas[0].serve(round_, seen(robot, number)).result(30)
            ours = local.serve(round_, seen(robot, number)).result(30)
            assert theirs.round == ours.round == round_
            assert theirs.chunk.request_id == ours.chunk.request_id
            np.testing.assert_array_equal(theirs.chunk.actions, ours.chunk.actions)
            np.testing.assert_array_equal(theirs.chunk.update_magnitudes, ours.chunk.update_magnitudes)
            assert (theirs.chunk.stamp_ns, theirs.chunk.step_dt_s) == (
                ours.chunk.stamp_ns,
                ours.chunk.step_dt_s,
            )
            different.add(theirs.chunk.actions.tobytes())
    local.close()
    assert len(different) == 6


def test_questions_are_answered_there_and_lost_with_it(replicas) -> None:
    local, _ = make()
    know(replicas[0])
    local.describe(described("/left")).result(30)
    assert replicas[0].answers == local.answers > 0
    asked = Round("e", "/left", 0, 5), seen("/left", 2)
    assert replicas[0].ask(*asked).result(30) == local.ask(*asked).result(30) != ""
    local.close()
    starts = replicas[0].starts
    waiting = replicas[0].ask(*asked)
    os.kill(replicas[0].pid, signal.SIGKILL)
    with suppress(ReplicaLost):  # it may have been faster
        assert waiting.result(30)
    until(lambda: replicas[0].starts > starts and replicas[0].room() > 0)
    know(replicas[0])
    assert replicas[0].ask(*asked).result(30)


def test_what_does_not_fit_is_refused_in_its_words(cluster: Cluster, replicas) -> None:
    know(replicas[0])
    with pytest.raises(ValueError, match="statistics of /third"):
        replicas[0].describe(described("/third")).result(30)
    with pytest.raises(ValueError, match="finite number"):
        wrong = seen("/right")
        replicas[0].serve(Round("e", "/left", 0, 0), wrong).result(30)
    replicas[0].forget("/right")
    replicas[0].describe(described("/left")).result(30)  # after that
    with pytest.raises(ReplicaLost, match="/right"):
        replicas[0].serve(Round("e", "/right", 0, 0), seen("/right")).result(30)
    other = RayReplica("c", refused, Where("cloud"), Deadlines(start=60.0))
    with pytest.raises(ValueError, match="base_0_rgb"):
        other.ready.result(60)
    other.close()


def test_one_that_is_nowhere_says_which_resource_lacks(cluster: Cluster) -> None:
    other = RayReplica("c", make, Where("moon"), Deadlines(start=1.0))
    with pytest.raises(ReplicaLost, match="'moon'"):
        other.ready.result(60)
    other.close()


def test_what_a_killed_replica_computed_is_computed_by_the_other_and_it_comes_back(replicas) -> None:
    answers: list[ChunkAnswer] = []
    told: list[Admission] = []
    ports = Ports(told.append, lambda round_: None, answers.append)
    settings = Settings(serve_s=SERVE_S, gone_s=600.0, stale_s=600.0, burst=10)
    scheduler = FleetScheduler("s", replicas, lambda setup: Fifo(), ports, settings)  # the first has it
    first, _ = replicas
    sent = 0

    def answered() -> bool:
        scheduler.step(time.monotonic())
        return len(answers) == sent

    def ask(robot: str) -> None:
        nonlocal sent
        round_ = Round("e", robot, 0, sent)
        scheduler.asked(
            ChunkRequest(round_, 0, 10**9 + sent, seen(robot, sent), within_s=60.0), time.monotonic()
        )
        sent += 1

    for robot in ROBOTS:
        scheduler.described(described(robot), time.monotonic())

    def ready() -> bool:
        scheduler.step(time.monotonic())
        robots = scheduler._members.robots.values()
        return len(told) == 2 and all(robot.is_ready(one.name) for robot in robots for one in replicas)

    def known_again() -> bool:
        scheduler.step(time.monotonic())
        return scheduler._members.robots["/left"].is_ready("a")

    until(ready)
    ask("/left")
    until(answered)
    for number, how in enumerate((signal.SIGKILL, signal.SIGSTOP), first.starts):
        os.kill(first.pid, signal.SIGSTOP)  # it is sure to have the request when it is killed
        ask("/left")
        scheduler.step(time.monotonic())
        assert first.room() == first.limit - 1
        os.kill(first.pid, how)
        until(answered, 2.5 * SERVE_S)  # a deadline at most, and what the other takes
        assert answers[-1].chunk is not None, answers[-1].refusal
        assert answers[-1].replica == "b" and answers[-1].served_s < SERVE_S
        until(lambda number=number: first.starts == number + 1 and first.room() == first.limit)
        for robot in ROBOTS:  # it knows them, without being told by the scheduler
            served = first.serve(Round("e", robot, 9, 0), seen(robot)).result(30)
            assert served.chunk.actions.shape[1] == len(seen(robot).state)
        until(known_again)
    assert not any(answer.refusal for answer in answers)
    scheduler.close(time.monotonic())
    assert [one.room() for one in replicas] == [2, 2]


def test_what_is_cancelled_comes_to_nothing(replicas) -> None:
    know(replicas[0])
    for number in range(5):
        future = replicas[0].serve(Round("e", "/left", 1, number), seen("/left", number))
        replicas[0].cancel(future)
        assert future.cancelled() and replicas[0].room() == 2
    assert replicas[0].serve(Round("e", "/left", 1, 9), seen("/left")).result(30).round.number == 9


def test_a_cluster_of_ones_own_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    program = (
        "from vla_accel_ros.fleet.replicas.ray_cluster import Cluster\n"
        "print(Cluster(tiers={'edge': 1})._folder, flush=True)\ninput()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "TMPDIR": "/tmp"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().decode().strip())
        assert folder.is_dir() and folder.name
        # Two small agents of Ray's notice it only after a minute.
        started = {pid for pid in of_ray(owner.pid) if "Agent" not in command_of(pid)}
        assert any("raylet" in command_of(pid) for pid in started)
        owner.kill()
    until(lambda: not any(map(command_of, started)))
    shutil.rmtree(folder)


ACTOR = """
import asyncio, gc, sys
from types import SimpleNamespace
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.replicas.ray_server import OK, Server

def make():
    replica = SimpleNamespace(limit=1, updates=0, answers=0, config=None, measure=lambda seen: Profile())
    return replica, SimpleNamespace(images={})

said, _ = asyncio.run(Server(make).start())
print(said == OK, gc.get_freeze_count() > 1000, sys.getswitchinterval())
"""


def test_an_actor_runs_as_a_node_does_for_the_engines_threads() -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, "-c", ACTOR]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    well, frozen, switch_s = told.stdout.split()
    assert (well, frozen, round(float(switch_s), 6)) == ("True", "True", SWITCH_S)


def test_the_object_store_has_half_of_the_shared_memory_within_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for free, found in ((0, LEAST_STORE_BYTES), (600 << 20, 300 << 20), (64 << 30, MOST_STORE_BYTES)):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        assert store_bytes() == found
    monkeypatch.undo()
    assert store_bytes(str(tmp_path / "none")) == LEAST_STORE_BYTES


def test_a_cluster_that_does_not_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ray

    def late(**options: object) -> None:
        assert Path(str(options["_temp_dir"])).is_dir()
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="current node timed out"):
        Cluster()
    assert not any(tmp_path.iterdir())


def command_of(pid: int) -> str:
    """Empty for one that has ended."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text()
    except OSError:
        return ""
