"""A SmolVLA that lerobot saved serves a contract like any other model, but is never asked anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.streaming.ports import Pace, Ports
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.nodes.inference.loading import Load


def test_it_is_loaded_warmed_up_and_not_asked(tmp_path, contract):
    names = ("top", "wrist")
    cameras = tuple(replace(camera, image=name) for camera, name in zip(contract.cameras, names, strict=True))
    folder = make_smolvla_folder(tmp_path / "model")
    contract = replace(contract, cameras=cameras)
    with pytest.raises(ValueError, match=r"precision is int8.* smolvla"):
        Load(folder, EngineConfig(fast=True, precision="int8"), device="cpu").engine(contract)
    warned: list[str] = []
    prepared: list[tuple[str, int, int]] = []
    fast = Load(folder, EngineConfig(fast=True, steps=2), device="cpu")
    assert fast.engine(contract, warned.append, preparing=lambda *told: prepared.append(told)).config.fast
    assert "captured stages need a GPU" in warned[0]
    assert [name for name, _, _ in prepared] == [
        f"prefixes of 2 images and {words} words, and steps from them" for words in ("1 to 16", "17 to 32")
    ]
    engine = Load(folder, EngineConfig(steps=2), device="cpu").engine(contract)
    assert isinstance(engine.policy, SmolVLAPolicy)
    with engine.scheduler.newest() as prefix:
        assert prefix.instruction == "warm up"

    def nothing(*_):
        return None

    ports = Ports(nothing, nothing, nothing, nothing, nothing, nothing)
    stream = Streaming(engine, ports, Pace(10.0), Pace(10.0), Pace(10.0))
    assert [stats.name for stats in stream.stats()] == ["vision", "action"]
    with pytest.raises(ValueError, match=r"smolvla .*language head"):
        stream.ask("what is this")
