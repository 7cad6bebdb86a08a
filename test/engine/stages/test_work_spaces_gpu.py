"""On a GPU the stages of one engine are recorded on one stream: cuBLAS then has one work space for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.engine.stages.stages import Stages

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SMALL = 4 << 20


class Product(Stage):
    """One product that cuBLAS computes."""

    def __init__(self) -> None:
        super().__init__(CUDA)
        self.left, self.right, self.out = (
            torch.ones(512, 512, device=CUDA, dtype=torch.bfloat16) for _ in range(3)
        )

    def body(self) -> None:
        torch.matmul(self.left, self.right, out=self.out)


def test_a_further_graph_on_the_same_stream_takes_no_further_work_space() -> None:
    stream = torch.cuda.Stream(CUDA)
    Product().capture(stream)
    before = torch.cuda.memory_allocated(CUDA)
    more = [Product() for _ in range(4)]
    for one in more:
        one.capture(stream)
    own = sum(part.nbytes for one in more for part in (one.left, one.right, one.out))
    assert torch.cuda.memory_allocated(CUDA) - before - own < SMALL


def test_stages_of_one_engine_are_recorded_on_one_stream() -> None:
    engine = Engine(make_policy(device="cuda", dtype=torch.bfloat16), fast=True, steps=2)
    seen = make_observation(1)
    for count in (1, 2):
        images = dict(list(seen.images.items())[:count])
        with engine.observe(replace(seen, images=images)) as prefix:
            engine.act(prefix)
    stages = engine.runner.stages
    assert isinstance(stages, Stages)
    recorded = [stage.recording for stage in stages._stages.values() if stage.captured]
    assert len(recorded) > 2 and {stream and stream.cuda_stream for stream in recorded} != {None}
    assert len(set(recorded)) == 1
