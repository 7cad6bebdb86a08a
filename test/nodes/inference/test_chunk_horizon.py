"""The parameter `horizon`: what chunks are sent with, what diagnostics say, and their replay to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint, make_config
from running import NodeProcess
from stack import wait_for_recorder

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.diagnostics import OK, WARN
from vla_accel_ros.nodes.inference.horizon import ChunkHorizons
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.replay.again import replay
from vla_accel_ros.tools.replay.moments import Moments
from vla_accel_ros.types import Chunk

S = 1_000_000_000
STEPS, CHUNKS = 4, 12

Start = Callable[..., NodeProcess]


def make_chunk(stamp_ns: int = 0, number: int = 0) -> Chunk:
    sizes = np.ones((2, 10), np.float32)
    return Chunk(np.zeros((10, 2), np.float32), stamp_ns, 0.1, 0, number, sizes[-1], step_magnitudes=sizes)


def said(horizons: ChunkHorizons) -> tuple[bytes, dict[str, str]]:
    line = horizons.status()
    assert line.name == "horizon"
    return line.level, {value.key: value.value for value in line.values}


def test_diagnostics_tell_how_much_is_executed() -> None:
    horizons = ChunkHorizons("static:4; put *=static:6", 2, lambda: 0)
    assert said(horizons)[1]["executed, newest [actions]"] == "none yet"
    assert horizons.limit(make_chunk(0, 0), "reach it").execution_horizon == 4
    assert horizons.limit(make_chunk(S, 1), "put it there").execution_horizon == 6
    level, values = said(horizons)
    assert level == OK and values["horizon"] == "static:4; put *=static:6"
    assert (values["executed, newest [actions]"], values["executed, mean [actions]"]) == ("6", "5")
    assert (values["chunks"], values["past when made"]) == ("2", "0")


def test_a_horizon_that_ends_before_its_chunk_is_made_is_a_warning_until_one_does_not() -> None:
    clock = [0]
    horizons = ChunkHorizons("static:4", 2, lambda: clock[0])
    for clock[0], level, past in ((399_999_999, OK, "0"), (400_000_000, WARN, "1"), (10, OK, "1")):
        horizons.limit(make_chunk(), "")
        found, values = said(horizons)
        assert (found, values["past when made"]) == (level, past)
    assert "give horizon more actions" not in horizons.status().message
    whole = ChunkHorizons("all", 2, lambda: 60 * S)
    assert whole.limit(make_chunk(), "").execution_horizon is None
    assert said(whole)[0] == OK, "an old chunk that is not cut is no matter of the horizon"


@pytest.mark.parametrize(
    ("spec", "updates", "says"),
    [
        ("update_ratio:0.4", 0, "needs 2 denoising updates a chunk, and there are 0: use all or static:N."),
        ("update_ratio:0.4", 1, "needs 2 denoising updates a chunk, and there are 1"),
        ("all; put *=last_update:1", 0, "needs 1 denoising updates a chunk, and there are 0"),
        ("spread:0.1", 10, "needs 2 further samples a chunk, and there are 0"),
        ("often", 10, "'often' is none of vla_accel_ros.horizons"),
    ],
)
def test_a_horizon_without_its_signal_is_refused(spec: str, updates: int, says: str) -> None:
    with pytest.raises(ValueError) as refusal:
        ChunkHorizons(spec, updates, lambda: 0)
    assert says in str(refusal.value) and str(refusal.value).startswith("horizon is ")


def test_after_a_restart_nothing_is_compared_with_what_was_before() -> None:
    horizons = ChunkHorizons("agreement:0.1+least:1", 2, lambda: 0)
    horizons.limit(make_chunk(0), "")
    far = Chunk(np.ones((10, 2), np.float32), S // 10, 0.1, 0, 1, np.zeros(10, np.float32))
    horizons.restart()
    assert horizons.limit(far, "").execution_horizon is None
    assert horizons.limit(make_chunk(S // 5, 2), "").execution_horizon == 1


def test_chunks_are_sent_with_their_horizon_and_replay_to_the_bit(
    start: Start, operator: Operator, tmp_path: Path
) -> None:
    """Guided ones, too, which go on from no more of a chunk than is executed."""
    start("sim_robot")
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"))
    model = make_checkpoint(tmp_path / "model", make_config("pi0", horizon=16))
    horizon = "static:13; *blue block=update_ratio:-0.99+least:11+elastic:1"
    given = {"denoise_steps": STEPS, "language_hz": 0.0, "rtc": "always", "horizon": horizon}
    start("inference", autostart=True, model=str(model), **given)
    wait_for_recorder(operator)
    for colour, actions in (("red", 13), ("blue", 12)):
        operator.instruct(f"reach the {colour} block")

        def executed(actions: int = actions) -> list[int]:
            return [one.chunk.executed for one in operator.chunks if one.chunk.executed == actions]

        operator.wait(lambda: len(executed()) >= CHUNKS, 60.0, f"{CHUNKS} chunks of {actions} actions")
    assert {one.chunk.executed for one in operator.chunks} == {13, 12}
    operator.wait(lambda: "inference: horizon" in operator.diagnostics, 30.0, "line of diagnostics")
    assert recorder.end() == 0
    result = replay(Moments(Bag(next((tmp_path / "bags").iterdir()))))
    assert result.equal and result.chunks >= CHUNKS, result.different_chunks


def test_what_is_no_horizon_is_refused_before_the_model_is_loaded(start: Start, tmp_path: Path) -> None:
    node = start("inference", autostart=True, model=str(tmp_path / "nowhere"), horizon="sometimes")
    node.wait_for_log("horizon is 'sometimes', but 'sometimes' is none of")
