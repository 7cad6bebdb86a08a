"""One step of several chunks, each at its own flow time, as captured stages: one graph for every number.

The launches are those of one denoising step; what depends on the flow time is gathered from its tables
before, a row for each chunk. So each chunk's step is computed as in engine.denoising, and read weights serve
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vla_accel_ros.engine.denoising import Denoise
from vla_accel_ros.engine.stages import Stages
from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.packed import FlowStep, Span
from vla_accel_ros.models.sampling import Flow


class StaggeredStep(Denoise):
    """As Denoise, but one step of noise, or of what became of it: steps int64 [B], which for each chunk."""

    steps: Tensor

    def body(self) -> None:
        self.x.copy_(self.noise)
        self._step(self.steps, self._state_token())


class StaggeredFlow:
    """An `engine.staggered.Advance` over the stages of one engine. Not for several threads at once.

    Prefixes must be spans of the stages' pool. A stage is made and captured when a number of chunks comes for
    the first time: call once with each before it counts.
    """

    def __init__(self, stages: Stages, steps: int) -> None:
        self._stages, self._expert = stages, stages.denoise(1, steps).expert
        self._ops = ops_for(stages.pool.k.device)
        self._made: dict[int, StaggeredStep] = {}

    @torch.inference_mode()
    def __call__(self, steps: Sequence[FlowStep]) -> list[Flow]:
        """See Advance. Raises ValueError for a prefix that is not in the pool."""
        for step in steps:
            if not isinstance(step.kv, Span) or step.kv.keys is not self._stages.pool.k or step.kv.start:
                raise ValueError("a prefix is not a slot of the stages' pool from its first token on")
        stage = self._stage(len(steps))
        spans = [step.kv for step in steps if isinstance(step.kv, Span)]
        states = [step.state for step in steps if step.state is not None]
        stage.set(
            torch.cat([step.x for step in steps]),
            torch.cat(states) if stage.alone else None,
            [span.place for span in spans],
            [span.end for span in spans],
        )
        stage.steps.copy_(torch.tensor([step.step for step in steps]))
        stage.capture()
        stage.run()
        made = zip(stage.x.clone().split(1), stage.update.clone().split(1), strict=True)
        return [Flow(x, update) for x, update in made]

    def _stage(self, batch: int) -> StaggeredStep:
        if batch not in self._made:
            pool, config = self._stages.pool, self._stages.model.config
            stage = StaggeredStep(config, self._expert, pool, self._stages.tables, self._ops, batch)
            stage.steps = torch.zeros(batch, dtype=torch.int64, device=pool.k.device)
            self._made[batch] = stage
        return self._made[batch]
