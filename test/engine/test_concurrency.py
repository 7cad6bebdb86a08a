"""A vision, an action and a language thread at once compute the same bits as one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from builders import make_observation, make_policy

from vla_accel_ros.engine.config import LANES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix

FRAMES = 8
NOISE = np.random.default_rng(7).standard_normal((8, 8), dtype=np.float32)


def alone(engine: Engine, frame: int) -> tuple[np.ndarray, str]:
    """The action and the greedy answer of a frame, with nothing else going on. stamp_ns names the frame."""
    with engine.observe(make_observation(frame, stamp_ns=frame)) as prefix:
        return engine.act(prefix, noise=NOISE).actions, "".join(engine.ask(prefix, max_tokens=8))


@pytest.mark.parametrize(("lanes", "kind"), zip(LANES, ("pi0", "pi05", "pi05", "pi0"), strict=True))
def test_three_threads_over_one_pool(kind: str, lanes: str) -> None:
    policy = make_policy(kind)
    expected = [alone(Engine(policy), frame) for frame in range(FRAMES)]
    engine, errors = Engine(policy, lanes=lanes), []
    started, finished = threading.Barrier(3), threading.Event()
    acted: dict[int, list[np.ndarray]] = {}
    said: dict[int, list[str]] = {}

    def vision() -> None:
        for frame in range(FRAMES):
            engine.observe(make_observation(frame, stamp_ns=frame)).release()

    def read(use: Callable[[Prefix], None]) -> None:
        """Use the newest prefix until the last frame was used."""
        stamp = -1
        while stamp < FRAMES - 1:
            prefix = engine.runner.prefixes.newest()
            if prefix is None:
                continue
            with prefix:
                assert prefix.stamp_ns >= stamp
                stamp = prefix.stamp_ns
                use(prefix)

    def action() -> None:
        read(lambda p: acted.setdefault(p.stamp_ns, []).append(engine.act(p, noise=NOISE).actions))

    def language() -> None:
        read(lambda p: said.setdefault(p.stamp_ns, []).append("".join(engine.ask(p, max_tokens=8))))

    def guarded(work: Callable[[], None]) -> None:
        started.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)
            finished.set()

    threads = [
        threading.Thread(target=guarded, args=(work,), daemon=True) for work in (vision, action, language)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    assert FRAMES - 1 in acted
    assert FRAMES - 1 in said
    for frame, results in acted.items():
        for actions in results:
            assert np.array_equal(actions, expected[frame][0]), frame
    for frame, texts in said.items():
        assert set(texts) == {expected[frame][1]}, frame
    assert engine.runner.pool.free == engine.runner.pool.slots - 1
