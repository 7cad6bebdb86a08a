"""Graphs of plain functions on a GPU: made ahead, bounded in number, to the bit the plain engine's results.

test_plain_stages compares all that an engine does, on a GPU too; here is what only a GPU has.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from guiding import guidance_to
from smolvla_frames import BOTH, FRAMES, Unknown, assert_same, frame, load

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.models.smolvla.config import SMOLVLA
from vla_accel_ros.types import Chunk

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("same_kernels")]
STEPS = 4


def graphs(engine: Engine) -> list[int]:
    """How many there are of prefixes and of steps."""
    stages = engine.runner.stages
    assert isinstance(stages, PlainStages)
    return [len(stage._graphs) for stage in (stages.prefix, stages.step)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_prepared_is_neither_captured_nor_allocated_again(folder: Path, dtype: torch.dtype) -> None:
    policy = replace(load(folder, "cuda", dtype), trained_delay=0)
    engine = Engine(policy, steps=STEPS, fast=True)
    engine.prepare((2,), range(1, 9))
    assert graphs(engine) == [8, 16]
    with engine.observe(frame(0)) as prefix:  # the first of its size
        engine.act(prefix)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for letters in (5, 2, 7):
        with engine.observe(frame(letters, letters=letters)) as prefix:
            engine.act(prefix)
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert graphs(engine) == [8, 16]
    with engine.observe(frame(1, letters=20)) as prefix:
        engine.act(prefix)
    assert graphs(engine) == [9, 17]


def test_between_submission_and_result_nothing_is_waited_for(folder: Path) -> None:
    engine = Engine(load(folder, "cuda"), steps=STEPS, fast=True)
    engine.prepare((2,), (6,))
    stages = engine.runner.stages
    assert isinstance(stages, PlainStages)
    shape = stages.policy.config.horizon, stages.policy.config.action_dim
    with engine.observe(frame(0)) as prefix:
        engine.act(prefix)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            noise = torch.zeros(1, *shape)
            pending = stages.submit(noise, None, [prefix.slot], [prefix.n_tokens], STEPS)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert np.isfinite(pending.wait().actions).all()


def test_graphs_that_were_dropped_are_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_accel_ros.engine.stages.plain.stages.LENGTHS", 2)
    policy = load(folder, "cuda")
    plain, fast = Engine(policy, steps=STEPS), Engine(policy, steps=STEPS, fast=True)
    for number, letters in enumerate((1, 2, 3, 4, 1, 9, 3, 8, 7, 6, 5, 1)):
        made = []
        for engine in (plain, fast):
            with engine.observe(frame(number, letters=letters)) as prefix:
                made.append(engine.act(prefix))
        assert_same(*made)
        assert graphs(fast)[0] <= 2 and graphs(fast)[1] <= 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_the_published_sizes(folder: Path, dtype: torch.dtype) -> None:
    """A few of them: libraries choose other products and other attention for them than for small ones."""
    small = load(folder, "cuda")
    config = replace(
        SMOLVLA,
        vision=replace(SMOLVLA.vision, depth=4),
        prefix=replace(SMOLVLA.prefix, depth=4),
        expert=replace(SMOLVLA.expert, depth=4),
        image_names=small.config.image_names,
        max_prompt=small.config.max_prompt,
    )
    torch.manual_seed(0)
    policy = replace(small, model=Unknown(config).to("cuda").set_precision(dtype).eval())
    made: list[list[Chunk]] = []
    for fast in (False, True):
        engine = Engine(policy, fast=fast, slots=6)
        chunks = []
        for seed, shape in enumerate((*FRAMES, (BOTH, 5, (480, 640)))):
            with engine.observe(frame(seed, *shape)) as prefix:
                previous = engine.act(prefix)
                guidance = guidance_to(engine, prefix, previous, 4)
                committed = previous.actions[:3]
                chunks += [previous, engine.act(prefix, guidance=guidance)]
                chunks.append(engine.act(prefix, committed=committed))
        made.append(chunks)
    for plain, ours in zip(*made, strict=True):
        assert_same(ours, plain)


HOSTS = """
import sys
from pathlib import Path
import torch
from smolvla_frames import frame, load
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy

class FromTheHost(SmolVLAPolicy):
    def resized(self, images):
        return super().resized(images) * torch.tensor([1.0]).to(self.device)

policy = FromTheHost(**vars(load(Path(sys.argv[1]), "cuda")))
with Engine(policy).observe(frame(0)):
    Engine(policy, fast=True).observe(frame(0))
"""


def test_what_cannot_be_captured_is_told_in_a_sentence(folder: Path) -> None:
    """In a process of its own: a capture that failed leaves its stream as it was."""
    path = [str(Path(__file__).parent), str(Path(__file__).parents[3])]
    program = f"import sys; sys.path += {path!r}\n{HOSTS}"
    done = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, check=False
    )
    assert "a smolvla policy cannot be captured (" in done.stderr
    assert "set fast to false." in done.stderr
