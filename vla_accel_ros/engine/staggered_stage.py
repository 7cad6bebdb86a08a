"""One step of several chunks, each at its own flow time, as captured stages: one graph for every number.

The launches are those of one denoising step; what depends on the flow time is gathered from its tables
before, a row for each chunk. So each chunk's step is computed as in engine.denoising, and read weights serve
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.engine.denoising import Denoise
from vla_accel_ros.engine.stages import Stages
from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.folded import Modulation
from vla_accel_ros.models.packed import FlowStep, Span
from vla_accel_ros.models.sampling import Flow


class StaggeredStep(Denoise):
    """As Denoise, but one step: steps int64 [B], which of them it is for each chunk."""

    steps: Tensor

    def body(self) -> None:
        expert, ops, token, final = self.expert, self.ops, None, None
        if expert.state_weight is not None:
            token = F.linear(self.state, expert.state_weight, expert.state_bias).to(self._hidden.dtype)
        ops.embed_actions(
            self.x, expert.in_weight, expert.in_bias[self.steps], self._hidden, expert.mlp_weight,
            expert.mlp_bias, token,
        )  # fmt: skip
        table = None if expert.modulation is None else _at(expert.modulation, self.steps)
        for index in range(len(expert.layers)):
            self._modulated_layer(index, None if table is None else table[index])
        if expert.modulation is not None:
            final = expert.modulation.final[self.steps]
        ops.read_out(self._hidden, expert.out_weight, expert.out_bias[self.steps], self.x, self.update, final)

    def _modulated_layer(self, index: int, table: tuple[Tensor, ...] | None) -> None:
        layer, ops = self.expert.layers[index], self.ops
        scale, bias, gate, mlp_scale, mlp_bias, mlp_gate = (None,) * 6 if table is None else table
        ops.rotary_qkv(
            self._hidden, layer.qkv, self.cos, self.sin, self.lengths, self._q, self._k, self._v, self._rows,
            self._zeros, scale, bias,
        )  # fmt: skip
        ops.attend(
            self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths, self._partial,
            self._lse, self._k, self._v, self._tails, self.alone,
        )  # fmt: skip
        ops.project_attended(self._partial, self._lse, layer.o, self._hidden, gate)
        ops.gated_up(self._hidden, layer.gate_up, self._fed, mlp_scale, mlp_bias)
        ops.project(self._fed, layer.down, self._hidden, mlp_gate)


def _at(modulation: Modulation, steps: Tensor) -> list[tuple[Tensor, ...]]:
    """For each layer the tables' rows of the steps, each [B, width] and contiguous."""
    names = [field.name for field in fields(modulation) if field.name != "final"]
    rows = [getattr(modulation, name).transpose(0, 1)[:, steps].unbind(0) for name in names]
    return list(zip(*rows, strict=True))


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
