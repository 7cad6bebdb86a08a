"""All steps of the flow as one stage: five launches a layer and two more a step.

Keys and values of the prefix are read in their pool slot, those of the suffix in a buffer that all layers
reuse. Slots and lengths are on the device, so one graph serves every frame. The state of the flow is float32;
everything that depends on the flow time alone is computed beforehand (models/pi/folded.py).

A chunk may have to agree with given actions (models/flow/rtc.py). Guidance is arithmetic at the end of a
step's last launch. Committed actions have another flow time, so the launches that read the tables treat every
token as a sequence of one, with a row of its own. Each form has its own graph, so free chunks do not pay for
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.engine.stages.memory.host_buffers import Inputs, Readback, Value
from vla_accel_ros.engine.stages.precision import SmallLayer
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.flow import Guide, History, Magnitudes
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.sampling import Pending, flow_times
from vla_accel_ros.models.flow.solver import EULER, rates
from vla_accel_ros.models.pi.folded import Expert, FoldedLayer, LayerTables
from vla_accel_ros.models.smolvla.config import SmolVLAConfig


class Form(IntEnum):
    """The form of a batch of chunks; each form can also compute those before it."""

    FREE = 0
    GUIDED = 1
    COMMITTED = 2

    @classmethod
    def of(cls, guide: Inpainting | None) -> Form:
        """The form that one chunk needs."""
        if guide is None:
            return cls.FREE
        return cls.COMMITTED if guide.committed else cls.GUIDED


ALL = slice(None)
"""All rows of the tables, of which launches choose by an index."""
Guides = Sequence[Inpainting | None]
"""One for each chunk of a batch, None for a free one."""


class _Rows(NamedTuple):
    """The buffers of a step as launches see them: one sequence per chunk, or every token as a sequence.

    positions, sequences, starts int32, for each sequence: position of its first token in the rotary tables,
    the chunk it belongs to, and its place in the chunk.
    """

    hidden: Tensor
    fed: Tensor
    q: Tensor
    attended: Tensor
    normed: Norm
    positions: Tensor
    sequences: Tensor
    starts: Tensor


class Denoise(Stage):
    """`batch` chunks in `expert.steps` steps.

    noise float32 [B, H, A]; x float32 [B, H, A]: becomes the actions; update float32 [B, H, A]: change in the
    last step; magnitudes: how far every step moved each action; state float32 [B, S], for pi0; slots, lengths
    int32 [B]: place and length of each chunk's prefix; guide: see kernels.reference.flow.Guide.
    kv: the prefixes' keys and values that each layer reads, [slots, kv_heads, tokens, D] each.
    small: quantised layers to use instead of the expert's own. clean: makes the expert with a row for flow
    time 0 (models.pi.folding.with_clean_step), which committed actions need; None = they are refused.
    time_rule, solver: of the flow, see models.flow.sampling. joints: numbers of an action that magnitudes
    count if a chunk does not say; None = all.
    """

    variant: Form = Form.FREE

    def __init__(
        self,
        config: PiConfig | SmolVLAConfig,
        expert: Expert,
        kv: Sequence[tuple[Tensor, Tensor]],
        tables: tuple[Tensor, Tensor],
        ops: Ops,
        batch: int,
        small: Sequence[SmallLayer] | None = None,
        clean: Callable[[], Expert] | None = None,
        time_rule: str = "openpi",
        joints: int | None = None,
        solver: str = EULER,
    ) -> None:
        device, dtype = kv[0][0].device, kv[0][0].dtype
        super().__init__(device)
        self._layers: Sequence[FoldedLayer | SmallLayer] = expert.layers if small is None else small
        self.config, self.expert, self.kv, self.ops = config, expert, kv, ops
        self.cos, self.sin = tables
        self.alone = 0 if expert.state_weight is None else 1
        self._clean, self._timed = clean, expert
        sizes, tokens, steps = config.expert, config.horizon + self.alone, expert.steps
        chunk = (batch, config.horizon, config.action_dim)
        self._inputs = Inputs(
            device,
            {
                "noise": (torch.float32, chunk),
                "state": (torch.float32, (batch, config.state_dim)),
                "slots": (torch.int32, (batch,)),
                "lengths": (torch.int32, (batch,)),
                "joints": (torch.int32, (batch,)),
                "target": (torch.float32, chunk),
                "weights": (torch.float32, chunk[:2]),
                "gains": (torch.float32, (batch, steps)),
                "committed": (torch.int32, (batch,)),
            },
        )
        fields = self._inputs.fields
        self.noise, self.state, self.slots, self.lengths, counted_joints, *guide = fields.values()
        self.lengths.fill_(1)
        self.joints = joints or config.action_dim
        counted_joints.fill_(self.joints)
        self.readback = Readback(device, *chunk, steps)
        self.x, self.update = self.readback.x, torch.zeros(chunk, device=device)
        self.magnitudes = Magnitudes(self.readback.magnitudes, counted_joints)
        self._times = flow_times(steps, time_rule)
        table = torch.tensor(rates(solver, steps), device=device)
        self.history = None if solver == EULER else History(torch.zeros_like(self.x), table)
        self._free = torch.zeros(chunk[1:])
        reach = torch.tensor([time * steps for time in self._times], device=device)
        target, weights, gains, committed = guide
        self.guide = Guide(target, weights, gains, reach, committed)

        def counted(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        # Each row begins at a multiple of 16 bytes.
        self._at = counted(steps, -(-batch // 4) * 4)
        self._at += torch.arange(steps, dtype=torch.int32, device=device)[:, None]
        self._at = self._at[:, :batch]
        self._tails = counted(batch) + tokens
        self._actions = torch.arange(config.horizon, dtype=torch.int32, device=device)

        def place(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, device=device, dtype=dtype)

        self._hidden, self._fed = place(tokens, len(expert.in_weight)), place(tokens, sizes.mlp)
        self._q = place(tokens, sizes.heads, sizes.head_dim)
        self._k, self._v = (place(sizes.kv_heads, tokens, sizes.head_dim) for _ in range(2))
        self._attended = place(tokens, sizes.heads * sizes.head_dim)
        self._seen = counted(batch, tokens) if expert.causal else None
        self._normed = Norm.of(self._hidden, expert.modulation is not None, expert.eps)
        sequences = torch.arange(batch, dtype=torch.int32, device=device)
        self._sequences = _Rows(
            self._hidden, self._fed, self._q, self._attended, self._normed, self.lengths, sequences,
            counted(batch),
        )  # fmt: skip
        every = torch.arange(tokens, dtype=torch.int32, device=device)
        scaled = self._normed.scaled
        self._tokens = _Rows(
            single(self._hidden), single(self._fed), single(self._q), single(self._attended),
            self._normed._replace(scaled=None if scaled is None else single(scaled)),
            counted(batch * tokens), sequences.repeat_interleave(tokens), every.repeat(batch),
        )  # fmt: skip

    def set(
        self,
        noise: Tensor,
        state: Tensor | None,
        slots: Sequence[int],
        lengths: Sequence[int],
        guides: Guides | None = None,
        joints: Sequence[int] | None = None,
    ) -> None:
        """noise float32 [B, H, A]; state float32 [B, S], for pi0; slots and lengths of the prefixes, B each;
        guides: B, None = all chunks are free. joints: B, numbers of an action that magnitudes count. Does not
        block. Raises ValueError for guides that do not fit the chunks."""
        counted = joints or [self.joints] * len(self.x)
        chunk_guides = guides or ()
        if chunk_guides and len(chunk_guides) != len(self.x):
            raise ValueError(f"there are {len(chunk_guides)} guides for {len(self.x)} chunks.")
        self.use(max(map(Form.of, chunk_guides), default=Form.FREE))
        agreed = self._guided(chunk_guides) if self.variant else {}
        self._inputs.put(noise=noise, state=state, slots=slots, lengths=lengths, joints=counted, **agreed)
        for row, guide in enumerate(chunk_guides):
            if guide is not None and guide.target.is_cuda:
                self.guide.target[row].copy_(guide.target)

    def use(self, form: Form) -> None:
        """Compute this form from now on. Raises ValueError for committed actions without `clean`."""
        if form is Form.COMMITTED and self._timed is self.expert:
            if self._clean is None:
                raise ValueError("committed actions need an expert with a row for flow time 0.")
            self._timed = self._clean()
        self.variant = form

    def gains(self, guide: Inpainting) -> list[float]:
        """A chunk's row of Guide.gains."""
        return [strength / len(self._times) for strength in guide.strengths(self._times)]

    def _guided(self, guides: Guides) -> dict[str, Value]:
        """The inputs of these guides, without targets on the device."""
        free, unguided = self._free, [0.0] * len(self._times)
        for guide in guides:
            check_fits(guide, self.x.shape[1:])
        targets = [free if guide is None or guide.target.is_cuda else guide.target for guide in guides]
        return {
            "target": _stacked(targets),
            "weights": _stacked([free[:, 0] if guide is None else guide.weights for guide in guides]),
            "gains": [
                unguided if guide is None or guide.committed else self.gains(guide) for guide in guides
            ],
            "committed": [0 if guide is None else guide.committed for guide in guides],
        }

    def pending(self) -> Pending:
        """The chunks as they are in the current stream's order, on their way to the host."""
        return self.readback.all()

    def body(self) -> None:
        token = self._state_token()
        self._see()
        self.x.copy_(self.noise)
        if self.variant is Form.COMMITTED:
            self.x.copy_(torch.where(self._held()[..., None], self.guide.target, self.noise))
        of_actions = self._times_of_actions(self._at)
        for step in range(self.expert.steps):
            own_at = None if of_actions is None else of_actions[step]
            self._step(slice(step, step + 1), self._at[step], token, own_at)

    def _see(self) -> None:
        """Count the keys that each action sees, where none sees a later one."""
        if self._seen is not None:
            torch.add(self.lengths[:, None], self._actions + 1, out=self._seen)

    def _held(self) -> Tensor:
        """bool [B, H]: which actions are committed."""
        return self._actions < self.guide.committed[:, None]

    def _state_token(self) -> Tensor | None:
        expert = self.expert
        if expert.state_weight is None:
            return None
        return F.linear(self.state, expert.state_weight, expert.state_bias).to(self._hidden.dtype)

    def _times_of_actions(self, at: Tensor) -> Tensor | None:
        """Rows int32 [N, B * H] of the tables with a clean step, for chunks at these steps int32 [N, B]; None
        where no action is committed. Also places every token by itself."""
        if self.variant is not Form.COMMITTED:
            return None
        rows, fixed = self._tokens, self._held()
        shape = len(self.x), -1
        torch.add(self.lengths[:, None], rows.starts.view(shape), out=rows.positions.view(shape))
        steps = at[..., None].expand(-1, *fixed.shape).masked_fill(fixed, self.expert.steps).flatten(1)
        return F.pad(steps, (0, -fixed.numel() % 4))[:, : fixed.numel()]  # each begins at 16 bytes

    def _step(
        self, now: slice | Tensor, at: Tensor, token: Tensor | None, of_actions: Tensor | None = None
    ) -> None:
        """One step of x. now: row of the tables for all chunks, or int32 [B], one for each; at: step of each
        chunk; of_actions: row of the tables for each action, where some are committed."""
        expert, ops, rows = self.expert, self.ops, self._sequences
        own_now, own_at = (now, None) if isinstance(now, slice) else (ALL, now)
        if self.variant is Form.COMMITTED:
            expert, own_now, own_at = self._timed, ALL, of_actions
        table = expert.modulation
        if self.variant is Form.COMMITTED and table is not None:
            rows = self._tokens
        tables = [LayerTables()] * len(expert.layers) if table is None else table.at(own_now)
        ops.embed_actions(
            self.x, expert.in_weight, expert.in_bias[own_now], self._hidden, expert.mlp_weight,
            expert.mlp_bias, token, self._normed._replace(scale=tables[0].attention_scale), at=own_at,
        )  # fmt: skip
        norm = rows.normed
        for index, (layer, terms) in enumerate(zip(self._layers, tables, strict=True)):
            last = index + 1 == len(tables)
            onward = None if last else norm._replace(scale=tables[index + 1].attention_scale)
            mlp_norm = norm._replace(scale=terms.mlp_scale)
            crosses = index in expert.crossing
            positions = rows.starts if crosses else rows.positions
            ops.rotary_qkv(
                rows.hidden, layer.qkv, self.cos, self.sin, positions, rows.q, *self._written(crosses),
                rows.sequences, rows.starts, norm._replace(scale=terms.attention_scale), terms.attention_bias,
                at=own_at,
            )  # fmt: skip
            tail = () if crosses else (self._k, self._v, self._tails, self.alone, self._seen)
            ops.attend(self._q, *self.kv[index], self.slots, self.lengths, self._attended, *tail)
            ops.project(rows.attended, layer.o, rows.hidden, terms.attention_gate, mlp_norm, at=own_at)
            ops.gated_up(
                rows.hidden, layer.gate_up, rows.fed, mlp_norm, terms.mlp_bias, own_at, expert.activation
            )
            ops.project(rows.fed, layer.down, rows.hidden, terms.mlp_gate, onward, at=own_at)
        self._end(now, at)

    def _written(self, crosses: bool) -> tuple[Tensor, Tensor]:
        """Where a layer writes keys and values; a layer that reads only the prefix has none."""
        return (self._k[:, :0], self._v[:, :0]) if crosses else (self._k, self._v)

    def _end(self, now: slice | Tensor, at: Tensor) -> None:
        """Update x. Committed actions do not move, so this uses the step's time for all actions."""
        expert, table = self.expert, self.expert.modulation
        self.ops.read_out(
            self._hidden, expert.out_weight, expert.out_bias[now], self.x, self.update,
            None if table is None else table.final[now], at, self.magnitudes,
            self.guide if self.variant else None, self.history, expert.eps,
        )  # fmt: skip


def check_fits(guide: Inpainting | None, shape: Sequence[int]) -> None:
    """Raise ValueError if the guide's target does not have the chunk's shape [H, A]."""
    if guide is not None and list(guide.target.shape) != list(shape):
        raise ValueError(
            f"inpainting.target has shape {list(guide.target.shape)}; the chunk is {list(shape)}."
        )


def _stacked(parts: list[Tensor]) -> Tensor:
    """torch.stack, without a copy of a single part."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def single(x: Tensor) -> Tensor:
    """[B, T, ...] as [B * T, 1, ...]"""
    return x.flatten(0, 1).unsqueeze(1)
