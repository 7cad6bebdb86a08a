"""Bags of several robots or sessions: each is replayed by its own engine."""

from __future__ import annotations

import json
import weakref
from typing import Any

from builders import make_checkpoint, make_config, make_stats
from recorded_run import Run, again

from vla_accel_ros.control.chunking.rtc import RtcSettings
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.running.environment import demo_contract


def test_replay_robots_with_an_engine_each_are_told_apart_though_they_saw_at_the_same_times(tmp_path):
    left = Run(tmp_path)
    right = Run(tmp_path, beside=left, apart="right", seed=5)
    for _ in range(3):
        left.frames(1)
        right.frames(1)
    left.tell()
    result, _ = again(right.tell().end())
    assert result.equal, (result.different_chunks, result.different_texts)
    assert (result.chunks, result.texts, result.frames) == (6, 2, 6)


def test_replay_each_robots_engine_is_loaded_once_though_the_robots_took_turns(tmp_path, monkeypatch):
    left = Run(tmp_path)
    right = Run(tmp_path, beside=left, apart="right", seed=5)
    for _ in range(3):
        left.frames(1)
        right.frames(1)
    left.tell()
    path, loads, loaded = right.tell().end(), list[weakref.ref[Engine]](), Load.engine

    def engine(load: Load, *given: Any) -> Engine:
        assert all(robot_engine() is None for robot_engine in loads)  # two may not fit into a GPU
        engines_made = loaded(load, *given)
        loads.append(weakref.ref(engines_made))
        return engines_made

    monkeypatch.setattr(Load, "engine", engine)
    result, _ = again(path)
    assert result.equal and result.chunks == 6 and len(loads) == 2


def test_replay_bag_may_hold_several_sessions(tmp_path):
    run = Run(tmp_path).frames(2).tell()
    first = run.session
    run.session = type(first)(**{**vars(first), "id": "another"})
    run.frames(2).tell(settings={"seed": 3})
    result, moments = again(run.end())
    assert moments.sessions.keys() == {first.id, "another"}
    assert result.chunks == 4 and len(result.different_chunks) == 2


def test_replay_robots_that_shared_an_engine_are_replayed_to_the_bit(tmp_path, kind, monkeypatch):
    """Each has its own contract, statistics and step time; the weights are loaded once."""
    make_checkpoint(tmp_path / "model", make_config(kind, horizon=16))
    stats = {"state": make_stats(8), "actions": make_stats(9)}
    (tmp_path / "model" / "assets" / "lab").mkdir()
    (tmp_path / "model" / "assets" / "lab" / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    slow = tmp_path / "slow.yaml"
    slow.write_text(demo_contract().read_text().replace("step_dt_s: 0.0333", "step_dt_s: 0.0533"))
    left = Run(tmp_path, statistics="arm", rtc=RtcSettings())
    right = Run(
        tmp_path,
        statistics="lab",
        rtc=RtcSettings(),
        contract=slow,
        beside=left,
        robot="right",
    )
    for _ in range(3):
        left.frames(1)
        right.frames(1)
    path = left.tell().path
    right.tell().end()
    loads = []
    engine = Load.engine

    def loaded(load: Load, *given: Any) -> Engine:
        loads.append(load)
        return engine(load, *given)

    monkeypatch.setattr(Load, "engine", loaded)
    result, moments = again(path)
    assert result.equal, (result.different_chunks, result.different_texts)
    assert (result.chunks, result.texts, result.frames) == (6, 2, 6) and not result.notes
    assert len(loads) == 1 and len(moments.sessions) == 2
    settings = [json.loads(session.settings) for session in moments.sessions.values()]
    assert [one.get("robot") for one in settings] == [None, "right"]
    assert [one["statistics"] for one in settings] == ["arm", "lab"]
    assert [round(one["step_dt_s"], 4) for one in settings] == [0.0333, 0.0533]
