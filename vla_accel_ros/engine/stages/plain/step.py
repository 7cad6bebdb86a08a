"""One step of a chunk: a policy's plain functions, captured.

Without capture a chunk of SmolVLA is thousands of kernels of a few microseconds. There is a graph for each
shape of a prefix, because nothing is padded. It serves chunks of any number of steps, whole or staggered:
flow time, step size, the strength of guidance and the solver's coefficients are numbers on the device. What
it reads of a frame is copied to a buffer of the stage, so that one graph serves every slot of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.denoise import Form, check_fits
from vla_accel_ros.engine.stages.memory.host_buffers import Field, Inputs, Readback
from vla_accel_ros.engine.stages.plain.kernels import PlainStage, by_kernels
from vla_accel_ros.engine.stages.plain.prefix import filled, rooms_of
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.sampling import Pending, flow_steps, flow_times
from vla_accel_ros.models.flow.solver import EULER, extrapolated, rates
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.policies import CapturablePolicy, FlowField

Shapes = tuple[tuple[str, Any], ...]
"""Names of results and their shapes, of keys and values that of the keys."""


def shapes_of(kept: Mapping[str, Any]) -> Shapes:
    """The shapes of results."""
    return tuple((name, tuple(v.k.shape if isinstance(v, KV) else v.shape)) for name, v in kept.items())


def corner(room: Any, shape: tuple[int, ...]) -> Any:
    """The part of a room with a result of this shape."""
    if isinstance(room, KV):
        return KV(*(corner(part, shape) for part in room))
    return room[tuple(map(slice, shape))]


class PlainChunk:
    """One chunk between its steps, on the device. numbers float32 [steps, 5]: flow time, step size, strength
    of guidance and models.flow.solver.Rate of each step; before, update float32 [1, H, A]: the network's
    velocity in the last step, and the change of x; at: the next step."""

    def __init__(self, policy: CapturablePolicy, steps: int, time_rule: str, solver: str = EULER) -> None:
        config = policy.config
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
        self.form, self.at, self.joints = Form.FREE, 0, policy.joints
        self._reads = policy.chain.of_steps.keys()

    def begin(
        self,
        noise: Tensor,
        state: Tensor | None,
        kept: Mapping[str, Any],
        guide: Inpainting | None,
        joints: int,
    ) -> None:
        """noise float32 [1, H, A] and, for a policy that takes a state, state float32 [1, S], on host or
        device; kept: the results of the frame, by name; joints: numbers of an action that magnitudes count.
        Does not block. Raises ValueError for a guide of another shape."""
        check_fits(guide, self._shape)
        steps = len(self._times)
        strengths = [0.0] * steps if guide is None else guide.strengths(self._times)
        given: dict[str, Any] = {
            "noise": noise,
            "numbers": [
                [t, dt, strength, *rate]
                for t, dt, strength, rate in zip(
                    self._times, self._sizes, strengths, self._rates, strict=True
                )
            ],
        }
        if "state" in self.given:
            given["state"] = state
        if guide is not None:
            given |= {"target": guide.target, "weights": guide.weights, "committed": [guide.committed]}
        self._inputs.put(**given)
        self.before.zero_()
        self.readback.x.copy_(self.given["noise"])
        if guide is not None:
            held = slice(0, guide.committed)
            self.readback.x[:, held].copy_(self.given["target"][:, held])
        self.kept, self.form, self.at = {name: kept[name] for name in self._reads}, Form.of(guide), 0
        self.joints = joints

    def pending(self) -> Pending:
        """The chunk as it is in the current stream's order, on its way to the host."""
        return self.readback.all()


NEEDED = {Form.FREE: (), Form.GUIDED: ("target", "weights"), Form.COMMITTED: ("committed",)}
"""What a step reads of a chunk besides x and the state."""


class PlainStep(PlainStage):
    """The next step of one chunk. solver: see models.flow.solver.

    variant: shapes of what it reads of the frame, the form, and the robot's joints. Capture it before a chunk
    is loaded, because its body changes x.
    """

    variant: tuple[Shapes, Form, int]

    def __init__(
        self, policy: CapturablePolicy, pool: KVPool, most: int, memory: Any, solver: str = EULER
    ) -> None:
        super().__init__(policy.device, most, memory)
        config, chain = policy.config, policy.chain
        self._flow = FlowField(policy)
        self._rooms = rooms_of(policy, pool, chain.of_steps)

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
        for name, value in chunk.kept.items():
            filled(self._rooms[name], name, value)

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
        (_, dt, _, more, carry), (_, _, joints) = self._numbers, self.variant
        found, own = self._field()
        if self._before is not None:
            found = extrapolated(found, own, self._before, more, carry)
            self._before.copy_(own)
        self._moved.copy_((dt * found[..., :joints]).square().mean(dim=-1).sqrt()[0])
        self._update.copy_(dt * found)
        self._x.add_(self._update)

    def _field(self) -> tuple[Tensor, Tensor]:
        """The velocity with guidance and without it, with the same operations as models.flow.rtc and
        models.flow.committed."""
        (shapes, form, _), x, (t, _, strength) = self.variant, self._x, self._numbers[:3]
        kept = {name: corner(self._rooms[name], shape) for name, shape in shapes}
        kept |= {"noise": self._noise, "dt": self._numbers[1:2]}
        time = self._numbers[:1]
        if form is Form.COMMITTED:
            held = self._order < self._given["committed"]
            times = time.expand(len(held)).masked_fill(held, 0.0)[None]
            v = self._flow.velocity(x, times, self._state, kept).masked_fill(held[:, None], 0.0)
            return v, v
        v = self._flow.velocity(x, time, self._state, kept)
        if form is Form.FREE:
            return v, v
        error = self._given["target"] - (x - t * v)
        return v - strength * error * self._given["weights"][:, None], v
