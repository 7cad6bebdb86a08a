"""What crosses the boundary to a Ray actor: nothing but data goes, nothing unchecked comes."""

from __future__ import annotations

import pickle
import pickletools
from concurrent.futures import CancelledError
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.fleet.protocol import EncodedObservation, Round
from vla_accel_ros.fleet.replicas import ray_data as data
from vla_accel_ros.fleet.replicas.ray_cluster import Pauses
from vla_accel_ros.fleet.replicas.ray_server import FAILED, LOST, OF_A_CHUNK, OK, REFUSED, plain_chunk
from vla_accel_ros.fleet.replicas.replica import FRAMES, SERVE, ReplicaLost
from vla_accel_ros.types import Chunk

ROUND = Round("e", "/a", 1, 2)
PIXELS = np.zeros((4, 6, 3), np.uint8)
SEEN = EncodedObservation(
    {"front": b"\xff\xd8", "wrist": PIXELS}, {"front": 7}, np.zeros(6, np.float32), "go", 7
)
CHUNK = Chunk(np.zeros((5, 6), np.float32), 7, 0.1, 3, 4, np.zeros(5, np.float32))


class Code:
    """What would run when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("run",)


class Bytes(bytes):
    """Bytes that are pickled as code."""

    __reduce__ = Code.__reduce__


class Words(str):
    """Words that are pickled as code."""

    __reduce__ = Code.__reduce__


def test_what_goes_is_of_exact_types_whatever_it_was_made_of() -> None:
    stamps_ns: Any = {Words("front"): np.int64(7)}
    odd = replace(
        SEEN,
        images={Words("front"): Bytes(b"\xff\xd8"), "wrist": PIXELS[:, ::-1]},
        stamps_ns=stamps_ns,
        instruction=Words("go"),
        state=np.zeros(6, np.float64),
    )
    went = data.plain(odd)
    pickled = pickle.dumps(went)
    assert "print" not in [argument for _, argument, _ in pickletools.genops(pickled)]
    back = pickle.loads(pickled)
    assert type(back.images["front"]) is bytes and back.images["front"] == b"\xff\xd8"
    np.testing.assert_array_equal(back.images["wrist"], PIXELS[:, ::-1])
    assert back.state.dtype == np.float32 and (back.instruction, back.stamps_ns) == ("go", {"front": 7})


@pytest.mark.parametrize(
    "changes",
    [{"images": {"front": np.array([[Code()]])}}, {"state": np.array([Code()])}],
    ids=["image", "state"],
)
def test_arrays_of_objects_do_not_go(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="; send "):
        data.plain(replace(SEEN, **changes))


def test_a_chunk_that_came_back_is_what_was_sent_and_a_copy() -> None:
    fields = plain_chunk(CHUNK)
    fields[0].flags.writeable = False
    served = data.served("a", ROUND, SEEN, (OK, (0.5, fields)))
    assert served.round == ROUND and served.took_s == 0.5 and served.chunk.actions.flags.writeable
    for name in OF_A_CHUNK:
        np.testing.assert_equal(getattr(served.chunk, name), getattr(CHUNK, name))


def spoilt(name: str, value: Any) -> tuple[Any, ...]:
    return OK, (0.5, tuple(value if each == name else getattr(CHUNK, each) for each in OF_A_CHUNK))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (OK,),
        [OK, None],
        ("fine", None),
        (OK, (0.5, ())),
        (OK, (-1.0, plain_chunk(CHUNK))),
        (OK, (float("nan"), plain_chunk(CHUNK))),
        spoilt("actions", np.full((5, 6), np.nan, np.float32)),
        spoilt("actions", np.zeros((5, 6))),
        spoilt("actions", np.zeros((0, 6), np.float32)),
        spoilt("actions", np.zeros(6, np.float32)),
        spoilt("actions", [[0.0]]),
        spoilt("stamp_ns", 8),
        spoilt("step_dt_s", 0.0),
        spoilt("step_dt_s", float("inf")),
        spoilt("request_id", -1),
        spoilt("request_id", "4"),
        spoilt("kv_version", True),
        spoilt("update_magnitudes", np.array([Code()])),
        spoilt("state", np.zeros((2, 2), np.float32)),
        spoilt("step_magnitudes", np.zeros(3, np.float32)),
    ],
)
def test_an_answer_that_is_none_is_a_loss(answer: Any) -> None:
    with pytest.raises(ReplicaLost):
        data.served("a", ROUND, SEEN, answer)


OPTIONS = tuple(asdict(EngineConfig(staggered=4, seed=7)).items())


def with_option(name: str, value: object) -> tuple[Any, ...]:
    return tuple({**dict(OPTIONS), name: value}.items())


def test_what_a_replica_says_of_itself_is_checked_too() -> None:
    good = (4711, 2, 10, 4, [(SERVE, 1, 0.1), (SERVE, 2, 0.15), (FRAMES, 1, 0.01)], 600_000, OPTIONS)
    started = data.started((OK, good))
    assert (started.pid, started.limit, started.updates, started.answers) == (4711, 2, 10, 4)
    assert started.profile.known() == {(SERVE, 1): 0.1, (SERVE, 2): 0.15, (FRAMES, 1): 0.01}
    assert started.config == EngineConfig(staggered=4, seed=7)
    assert data.started((OK, (*good[:-1], None))).config is None
    for place, wrong in (
        (1, 0),
        (1, 10**9),
        (3, -1),
        (4, [("denoise", 1, 0.1)]),
        (4, [(SERVE, 1, 0.0)]),
        (5, -1),
        (6, {}),
        (6, OPTIONS[:-1]),
        (6, with_option("staggered", 1)),
        (6, with_option("staggered", 4.0)),
        (6, with_option("scheduling", Code())),
        (6, (*OPTIONS[:-1], ("eval", "1"))),
        (6, (*OPTIONS[:-1], ("steps",))),
    ):
        with pytest.raises(ReplicaLost):
            data.started((OK, (*good[:place], wrong, *good[place + 1 :])))


def test_a_refusal_a_loss_and_a_fault_are_told_apart() -> None:
    for kind, error in ((REFUSED, ValueError), (LOST, ReplicaLost), (FAILED, RuntimeError)):
        with pytest.raises(error, match=r"^because$"):
            data.nothing((kind, "because"))
    with pytest.raises(CancelledError):
        data.nothing(("cancelled", ""))


def test_pauses_grow_and_are_short_again_after_a_long_life() -> None:
    pauses = Pauses(0.5, 4.0)
    assert [pauses.after(lived_s) for lived_s in (0.0, 1.0, 0.0, 0.0, 0.0)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert [pauses.after(lived_s) for lived_s in (4.0, 0.0)] == [0.5, 1.0]
