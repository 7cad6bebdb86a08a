"""One step of a chunk: a policy's plain functions, captured.

Without capture a chunk of SmolVLA is thousands of kernels of a few microseconds. There is a graph for each
shape of a prefix, because nothing is padded. It serves chunks of any number of steps, whole or staggered:
flow time, step size, the strength of guidance and the solver's coefficients are numbers on the device. What
it reads of a frame is copied to a buffer of the stage, so that one graph serves every slot of the pool. What
is computed once for a chunk may be large, so it stays where its graph leaves it, and steps read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.recent import Recent
from vla_accel_ros.engine.stages.denoise.denoise import Form, check_fits
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart
from vla_accel_ros.engine.stages.memory.host_buffers import Field, Inputs, Readback
from vla_accel_ros.engine.stages.plain.kernels import PlainStage, by_kernels
from vla_accel_ros.engine.stages.plain.prefix import Rooms, Shapes, shapes_of
from vla_accel_ros.models.flow.sampling import Pending, flow_steps, flow_times
from vla_accel_ros.models.flow.solver import EULER, extrapolated, rates
from vla_accel_ros.models.micro_requests import DENOISE, STATE
from vla_accel_ros.models.policies import CapturablePolicy, FlowField, computed


class PlainChunk:
    """One chunk between its steps, on the device. numbers float32 [steps, 5]: flow time, step size, strength
    of guidance and models.flow.solver.Rate of each step; before, update float32 [1, H, A]: the network's
    velocity in the last step, and the change of x; at: the next step; opening: see PlainOpening.left; place:
    see PlainOpening."""

    def __init__(
        self, policy: CapturablePolicy, steps: int, time_rule: str, solver: str = EULER, place: int = 0
    ) -> None:
        config, self.place = policy.config, place
        self._shape = config.horizon, config.action_dim
        chunk = torch.float32, (1, *self._shape)
        fields: dict[str, Field] = {
            "noise": chunk,
            "target": chunk,
            "weights": (torch.float32, (config.horizon,)),
            "committed": (torch.int32, (1,)),
            "numbers": (torch.float32, (steps, 5)),
        }
        if policy.chain.takes_state:
            fields["state"] = torch.float32, (1, config.state_dim)
        self._inputs = Inputs(policy.device, fields)
        self.given = self._inputs.fields
        self.readback = Readback(policy.device, 1, *self._shape, steps)
        self._times, self._rates = flow_times(steps, time_rule), rates(solver, steps)
        self._sizes = flow_steps(steps, time_rule)
        self.before, self.update = (torch.zeros_like(self.readback.x) for _ in range(2))
        self.kept: Mapping[str, Any] = {}
        self.opening: tuple[Mapping[str, Any], int] = {}, 0
        self.form, self.at, self._joints = Form.FREE, 0, policy.joints
        self.joints = self._joints

    def begin(self, start: ChunkStart) -> None:
        """Noise and state are on host or device; kv: the results of the frame, by name; joints: None = the
        policy's. Does not block. Raises ValueError for a guide of another shape."""
        noise, state, kept, guide, joints = start
        check_fits(guide, self._shape)
        steps = len(self._times)
        strengths = [0.0] * steps if guide is None else guide.strengths(self._times)
        values: dict[str, Any] = {
            "noise": noise,
            "numbers": [
                [t, dt, strength, *rate]
                for t, dt, strength, rate in zip(
                    self._times, self._sizes, strengths, self._rates, strict=True
                )
            ],
        }
        if "state" in self.given:
            values["state"] = state
        if guide is not None:
            values |= {"target": guide.target, "weights": guide.weights, "committed": [guide.committed]}
        self._inputs.put(**values)
        self.before.zero_()
        self.readback.x.copy_(self.given["noise"])
        if guide is not None:
            committed = slice(0, guide.committed)
            self.readback.x[:, committed].copy_(self.given["target"][:, committed])
        self.kept, self.form, self.at, self.joints = kept, Form.of(guide), 0, joints or self._joints

    def pending(self) -> Pending:
        """The chunk as it is in the current stream's order, on its way to the host."""
        return self.readback.all()


NEEDED = {Form.FREE: (), Form.GUIDED: ("target", "weights"), Form.COMMITTED: ("committed",)}
"""What a step reads of a chunk besides x and the state."""


class PlainOpening(PlainStage):
    """What is computed once for a chunk, before its steps; of a policy that acts in one forward, its actions.

    variant: shapes of what it reads of the frame, and the place of the chunk: chunks at once have places of
    their own.
    """

    variant: tuple[Shapes, int]

    def __init__(self, policy: CapturablePolicy, pool: KVPool, most: int, memory: Any) -> None:
        super().__init__(policy.device, most, memory)
        self._policy, chain = policy, policy.chain
        self.micro_requests = chain.of_chunk if chain.acts == DENOISE else (*chain.of_chunk, chain.acting)
        reads = {name for micro in self.micro_requests for name in micro.reads}
        self._rooms = Rooms(policy, pool, {n: leaf for n, leaf in chain.kept.items() if n in reads})
        self._state = Inputs(policy.device, {STATE: (torch.float32, (policy.config.state_dim,))})
        self._left, self._count = Recent[tuple[Shapes, int], tuple[dict[str, Any], int]](most), 0

    @property
    def left(self) -> tuple[dict[str, Any], int]:
        """What the variant's chunk has, by name, and a number of its own of the graph that left it there."""
        results = self._left.get(self.variant)
        assert results is not None
        return results

    def load(self, kept: Mapping[str, Any], state: Tensor | None, place: int = 0) -> None:
        """kept: results of the frame; state float32 [S], on host or device. Does not block."""
        self._rooms.load(kept)
        self._state.put(state=state)
        self.variant = shapes_of({name: kept[name] for name in self._rooms.names}), place

    @by_kernels
    def body(self) -> None:
        shapes, _ = self.variant
        values = {**self._rooms.at(shapes), STATE: self._state.fields[STATE]}
        for micro in self.micro_requests:
            values |= computed(self._policy, micro, values)
        self._count += 1
        names = {leaf.name for micro in self.micro_requests for leaf in micro.leaves}
        self._left.put(self.variant, ({name: values[name] for name in names & values.keys()}, self._count))


class PlainStep(PlainStage):
    """The next step of one chunk. solver: see models.flow.solver.

    variant: shapes of what it reads of the frame, the form, the robot's joints, and the graph that left
    `opening`, what is computed once for the chunk. Capture it before a chunk is loaded, because its body
    changes x.
    """

    variant: tuple[Shapes, Form, int, int]
    opening: Mapping[str, Any]

    def __init__(
        self, policy: CapturablePolicy, pool: KVPool, most: int, memory: Any, solver: str = EULER
    ) -> None:
        super().__init__(policy.device, most, memory)
        config, chain = policy.config, policy.chain
        self._flow = FlowField(policy)
        self._rooms = Rooms(policy, pool, chain.of_steps)

        def place(*shape: int) -> Tensor:
            return torch.zeros(shape, device=self.device)

        self._x, self._update, target = (place(1, config.horizon, config.action_dim) for _ in range(3))
        self._moved, self._numbers = place(config.horizon), place(5)
        self._before = None if solver == EULER else torch.zeros_like(self._x)
        self._given = {
            "target": target,
            "weights": place(config.horizon),
            "committed": place(1).int(),
        }
        self._state = place(1, config.state_dim) if chain.takes_state else None
        self._noise = torch.zeros_like(self._x) if "noise" in chain.acting.reads else None
        self._order = torch.arange(config.horizon, device=self.device)

    def choose(self, chunk: PlainChunk) -> None:
        """Set the variant for a chunk."""
        self.opening, graph = chunk.opening
        shapes = shapes_of({name: chunk.kept[name] for name in self._rooms.names})
        self.variant = shapes, chunk.form, chunk.joints, graph

    def load(self, chunk: PlainChunk) -> None:
        """Load a chunk of the variant into the buffers."""
        self._x.copy_(chunk.readback.x)
        if self._before is not None:
            self._before.copy_(chunk.before)
        for name in NEEDED[chunk.form]:
            self._given[name].copy_(chunk.given[name])
        if self._state is not None:
            self._state.copy_(chunk.given["state"])
        if self._noise is not None:
            self._noise.copy_(chunk.given["noise"])
        self._rooms.load(chunk.kept)

    def advance(self, chunk: PlainChunk) -> None:
        """Compute the next step of the loaded chunk."""
        self._numbers.copy_(chunk.given["numbers"][chunk.at])
        self.run()
        chunk.readback.magnitudes[0, chunk.at].copy_(self._moved)
        chunk.at += 1

    def store(self, chunk: PlainChunk) -> None:
        """Copy the loaded chunk back."""
        chunk.readback.x.copy_(self._x)
        if self._before is not None:
            chunk.before.copy_(self._before)
        chunk.update.copy_(self._update)

    @by_kernels
    def body(self) -> None:
        (_, dt, _, more, carry), (_, _, joints, _) = self._numbers, self.variant
        guided, unguided = self._field()
        if self._before is not None:
            guided = extrapolated(guided, unguided, self._before, more, carry)
            self._before.copy_(unguided)
        self._moved.copy_((dt * guided[..., :joints]).square().mean(dim=-1).sqrt()[0])
        self._update.copy_(dt * guided)
        self._x.add_(self._update)

    def _field(self) -> tuple[Tensor, Tensor]:
        """The velocity with guidance and without it, with the same operations as models.flow.rtc and
        models.flow.committed."""
        (shapes, form, _, _), x, (t, _, strength) = self.variant, self._x, self._numbers[:3]
        values = {**self._rooms.at(shapes), **self.opening, "noise": self._noise, "dt": self._numbers[1:2]}
        time = self._numbers[:1]
        if form is Form.COMMITTED:
            committed = self._order < self._given["committed"]
            times = time.expand(len(committed)).masked_fill(committed, 0.0)[None]
            v = self._flow.velocity(x, times, self._state, values).masked_fill(committed[:, None], 0.0)
            return v, v
        v = self._flow.velocity(x, time, self._state, values)
        if form is Form.FREE:
            return v, v
        error = self._given["target"] - (x - t * v)
        return v - strength * error * self._given["weights"][:, None], v
