"""A policy that acts by flow may say that it can be captured: then its plain functions are, and no others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import CAMERAS, make_observation, make_policy
from guiding import guidance_to
from smolvla_frames import assert_same, load
from smolvla_recording import make_smolvla_folder
from torch import nn

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.options import has_stages
from vla_accel_ros.engine.recent import Recent
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.models.micro_requests import Chain
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy

STEPS = 4


@dataclass(frozen=True)
class Untold(SmolVLAPolicy):
    """A family that does not say that it can be captured."""

    @property
    def chain(self) -> Chain:
        return replace(self.config.chain, capturable=False)


def test_only_policies_that_say_so_are_captured(tmp_path: Path) -> None:
    policy = load(make_smolvla_folder(tmp_path / "folder"), "cpu")
    untold = Untold(**vars(policy))
    with pytest.raises(ValueError, match="fast is true"):
        Engine(untold, fast=True)
    with pytest.raises(ValueError, match="precision is int8"):
        Engine(policy, fast=True, precision="int8")
    assert not has_stages(policy), "on a CPU nothing is gained"


def test_on_a_gpu_what_says_so_is_captured_without_being_asked_and_without_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, own = load(make_smolvla_folder(tmp_path / "folder"), "cpu"), make_policy()
    for family in (SmolVLAPolicy, Policy):
        monkeypatch.setattr(family, "device", property(lambda self: torch.device("cuda")))
    assert has_stages(policy) and not has_stages(Untold(**vars(policy)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert has_stages(policy) and not has_stages(own), "kernels need triton"


class Network(nn.Module):
    """pi0's network by another name: it has no kernels of its own."""

    def __init__(self, model: Pi) -> None:
        super().__init__()
        self._inner = [model]

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name.startswith("_") else getattr(self._inner[0], name)


@dataclass(frozen=True)
class OtherPolicy(Policy):
    """Another package's: it decodes, and a newer state can be given with every action."""

    @property
    def chain(self) -> Chain:
        return replace(self.config.chain, capturable=True)


def test_another_family_with_text_and_a_state_for_every_action() -> None:
    policy = OtherPolicy(**vars(make_policy("pi0", vocab=300)))
    policy = replace(policy, model=Network(policy.model))  # type: ignore[arg-type]
    chunks, texts = [], []
    for fast in (False, True):
        engine = Engine(policy, steps=STEPS, fast=fast)
        assert isinstance(engine.runner.stages, PlainStages) == fast
        engine.prepare((1, 2), (6, 20))
        for seed, cameras in ((0, CAMERAS), (1, CAMERAS[:1])):
            with engine.observe(make_observation(seed, cameras)) as prefix:
                state = np.full(6, 0.1 * seed, np.float32)
                previous = engine.act(prefix, state)
                guidance = guidance_to(engine, prefix, previous, 2, state=state)
                chunks += [previous, engine.act(prefix), engine.act(prefix, state, guidance=guidance)]
                for question in (None, "put the block", None):
                    with engine.ask(prefix, question, max_tokens=6) as answer:
                        texts.append((prefix.n_tokens, "".join(answer)))
    half = len(chunks) // 2
    for plain, ours in zip(chunks[:half], chunks[half:], strict=True):
        assert_same(ours, plain)
    assert not np.array_equal(chunks[3].actions, chunks[4].actions)
    assert texts[:6] == texts[6:] and len({text for _, text in texts}) > 2


def test_as_many_are_kept_as_there_is_room_for() -> None:
    recent = Recent[str, int](3)
    for number, name in enumerate("abc"):
        assert recent.put(name, number) == number
    assert recent.get("a") == 0
    recent.put("d", 3)
    assert list(recent.values()) == [2, 0, 3]
    assert "b" not in recent and recent.get("b") is None and len(recent) == 3
    recent.put("c", 7)
    recent.put("e", 4)
    assert list(recent.values()) == [3, 7, 4]
    every = Recent[int, int]()
    for number in range(99):
        every.put(number, number)
    assert len(every) == 99
