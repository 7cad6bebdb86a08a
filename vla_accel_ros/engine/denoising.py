"""All steps of the flow as one stage: five launches a layer, two more a step, nothing in between.

Keys and values of the prefix are read in their pool slot, those of the suffix in a buffer that each layer
uses again. Slots and lengths are on the device: one graph serves every frame. The state of the flow is
float32; everything that only depends on the flow time was computed before (models/folded.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.engine.graphs import Stage, put
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.precision import SmallLayer
from vla_accel_ros.kernels.linear import Norm
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.folded import Expert, FoldedLayer, LayerTables


class Denoise(Stage):
    """`batch` chunks in `expert.steps` steps.

    noise float32 [B, H, A]; x float32 [B, H, A]: the actions it becomes; update float32 [B, H, A]: what the
    last step added; state float32 [B, S], for pi0; slots, lengths int32 [B]: where each chunk's prefix is and
    how long. small: quantised layers to compute with instead of the expert's own.
    """

    def __init__(
        self,
        config: PiConfig,
        expert: Expert,
        pool: KVPool,
        tables: tuple[Tensor, Tensor],
        ops: Ops,
        batch: int,
        small: Sequence[SmallLayer] | None = None,
    ) -> None:
        device, dtype = pool.k.device, pool.k.dtype
        super().__init__(device)
        self._layers: Sequence[FoldedLayer | SmallLayer] = expert.layers if small is None else small
        self.config, self.expert, self.pool, self.ops = config, expert, pool, ops
        self.cos, self.sin = tables
        self.alone = 1 if config.kind == "pi0" else 0
        sizes, tokens = config.expert, config.horizon + self.alone
        self.noise = torch.zeros(batch, config.horizon, config.action_dim, device=device)
        self.x = torch.zeros_like(self.noise)
        self.update = torch.zeros_like(self.x)
        self.state = torch.zeros(batch, config.state_dim, device=device)
        self.slots = torch.zeros(batch, dtype=torch.int32, device=device)
        self.lengths = torch.ones(batch, dtype=torch.int32, device=device)
        self._rows = torch.arange(batch, dtype=torch.int32, device=device)
        self._zeros = torch.zeros(batch, dtype=torch.int32, device=device)
        self._tails = torch.full((batch,), tokens, dtype=torch.int32, device=device)

        def place(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, device=device, dtype=dtype)

        self._hidden, self._fed = place(tokens, sizes.width), place(tokens, sizes.mlp)
        self._q = place(tokens, sizes.heads, sizes.head_dim)
        self._k, self._v = (place(sizes.kv_heads, tokens, sizes.head_dim) for _ in range(2))
        self._attended = place(tokens, sizes.heads * sizes.head_dim)
        self._normed = Norm.of(self._hidden, scaled=expert.modulation is not None)

    def set(self, noise: Tensor, state: Tensor | None, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """noise float32 [B, H, A]; state float32 [B, S], for pi0; the prefixes' slots and lengths, B each."""
        self.noise.copy_(noise)
        if state is not None:
            self.state.copy_(state)
        put(self.slots, torch.tensor(slots, dtype=torch.int32))
        put(self.lengths, torch.tensor(lengths, dtype=torch.int32))

    def body(self) -> None:
        expert, token = self.expert, self._state_token()
        self.x.copy_(self.noise)
        for step in range(expert.steps):
            self._step(slice(step, step + 1), token)

    def _state_token(self) -> Tensor | None:
        expert = self.expert
        if expert.state_weight is None:
            return None
        return F.linear(self.state, expert.state_weight, expert.state_bias).to(self._hidden.dtype)

    def _step(self, now: slice | Tensor, token: Tensor | None) -> None:
        """One step of x. now: its rows of the tables, one for all chunks or one for each."""
        expert, ops, table = self.expert, self.ops, self.expert.modulation
        tables = [LayerTables()] * len(expert.layers) if table is None else table.at(now)
        ops.embed_actions(
            self.x, expert.in_weight, expert.in_bias[now], self._hidden, expert.mlp_weight, expert.mlp_bias,
            token, self._norm(tables[0].attention_scale),
        )  # fmt: skip
        for index, (layer, own) in enumerate(zip(self._layers, tables, strict=True)):
            last = index + 1 == len(tables)
            onward = None if last else self._norm(tables[index + 1].attention_scale)
            ops.rotary_qkv(
                self._hidden, layer.qkv, self.cos, self.sin, self.lengths, self._q, self._k, self._v,
                self._rows, self._zeros, self._norm(own.attention_scale), own.attention_bias,
            )  # fmt: skip
            ops.attend(
                self._q, self.pool.k[:, index], self.pool.v[:, index], self.slots, self.lengths,
                self._attended, self._k, self._v, self._tails, self.alone,
            )  # fmt: skip
            ops.project(self._attended, layer.o, self._hidden, own.attention_gate, self._norm(own.mlp_scale))
            ops.gated_up(self._hidden, layer.gate_up, self._fed, self._norm(own.mlp_scale), own.mlp_bias)
            ops.project(self._fed, layer.down, self._hidden, own.mlp_gate, onward)
        final = None if table is None else table.final[now]
        ops.read_out(self._hidden, expert.out_weight, expert.out_bias[now], self.x, self.update, final)

    def _norm(self, scale: Tensor | None) -> Norm:
        return self._normed._replace(scale=scale)
