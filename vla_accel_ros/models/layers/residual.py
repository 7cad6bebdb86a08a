"""The residual stream of pre-norm transformers: norms of it, attention, and what branches add to it.

Networks are written once. In a block of `computing` the kernels of an engine compute it: the sum after a
branch and the norm behind it are one launch, as are a product and its GELU. Else it is plain torch, the
reference. Kernels round to the dtype once where plain torch does after each operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_QUERIES = 1024
"""Of attention by kernels; a library's is as fast for more."""
_OPS: ContextVar[Any | None] = ContextVar("ops", default=None)


@contextmanager
def computing(ops: Any | None) -> Iterator[None]:
    """In the block, kernels.ops.Ops compute residual streams; None = plain torch does."""
    token = _OPS.set(ops)
    try:
        yield
    finally:
        _OPS.reset(token)


def _ops_for(x: Tensor) -> Any | None:
    """The kernels; None where gradients are wanted, which they have none of."""
    return None if x.requires_grad else _OPS.get()


class ResidualStream:
    """x [B, n, W], with all that was added."""

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def norm(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """The layer norm [B, n, W]; weight, bias: parameters [W], None = 1 and 0."""
        return F.layer_norm(self._x, self._x.shape[-1:], weight, bias, eps)

    def rms_norm(self, weight: Tensor, eps: float) -> Tensor:
        """The root mean square norm [B, n, W]."""
        return F.rms_norm(self._x, self._x.shape[-1:], weight, eps)

    def modulated(self, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        """The layer norm * scale + shift, [B, W] each, or [B, f, W] of n / f rows each; of one sequence in
        one launch."""
        if scale.ndim == 3:
            rows = self.norm(None, None, eps).unflatten(1, (scale.shape[1], -1))
            return (rows * scale[:, :, None] + shift[:, :, None]).flatten(1, 2)
        if len(self._x) == 1:
            return self.norm(scale[0], shift[0], eps)
        return self.norm(None, None, eps) * scale[:, None] + shift[:, None]

    def add(self, rows: Tensor, linear: nn.Linear, gate: Tensor | None = None) -> None:
        """Add gate * linear(rows); gate [B, W] or [1, W], or [B, f, W] of n / f rows each, None = 1."""
        self._x = self._x + _times(gate, linear(rows))

    def mlp(self, rows: Tensor, first: nn.Linear, second: nn.Linear, gate: Tensor | None = None) -> None:
        """Add two layers with the tanh GELU."""
        self.add(F.gelu(first(rows), approximate="tanh"), second, gate)

    def rescale(self, scale: Tensor, shift: Tensor) -> None:
        """Go on with x * (1 + scale) + shift, [W] each."""
        self._x = (self.end() * (1 + scale) + shift).view(self._x.shape)

    def keep(self, rows: slice) -> None:
        """Go on with some rows."""
        self._x = self._x[:, rows]

    def end(self) -> Tensor:
        """Return x."""
        return self._x


class FusedStream(ResidualStream):
    """The same by kernels. What the last branch adds is added by the next norm."""

    def __init__(self, x: Tensor, ops: Any) -> None:
        super().__init__(x.flatten(0, 1).clone(memory_format=torch.contiguous_format))
        self._ops, self._shape, self._added = ops, x.shape, torch.empty_like(self._x)
        self._left: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)

    def norm(self, weight: Tensor | None, bias: Tensor | None, eps: float, **how: bool) -> Tensor:
        (y, y_bias, gate), out = self._left, torch.empty_like(self._x)
        self._ops.add_layer_norm(self._x, y, y_bias, weight, bias, out, gate, eps, **how)
        self._left = None, None, None
        return out.view(self._shape)

    def rms_norm(self, weight: Tensor, eps: float) -> Tensor:
        return self.norm(weight, None, eps, centred=False)

    def modulated(self, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        if self._shape[0] == 1:
            return self.norm(scale[0], shift[0], eps, computed=True)
        if scale.ndim == 3:
            return super().modulated(scale, shift, eps)
        return torch.addcmul(shift[:, None], self.norm(None, None, eps), scale[:, None])

    def add(self, rows: Tensor, linear: nn.Linear, gate: Tensor | None = None) -> None:
        self.end()  # of a branch before, if no norm has added it
        if gate is not None and len(gate) > 1:
            self._left = _times(gate, linear(rows)).flatten(0, 1), None, None
            return
        flat, by = rows.flatten(0, 1), None if gate is None else gate[0]
        if by is not None and by.ndim == 2:
            torch.mm(flat, linear.weight.t(), out=self._added)
            self._left = self._added, linear.bias, by
            return
        y = self._ops.add_product(flat, linear.weight, linear.bias, self._x, self._added, by)
        self._left = *y, None if y[0] is None else by

    def mlp(self, rows: Tensor, first: nn.Linear, second: nn.Linear, gate: Tensor | None = None) -> None:
        inner = rows.new_empty(len(self._x), len(first.weight))
        self._ops.gelu_product(rows.flatten(0, 1), first.weight, first.bias, inner)
        self.add(inner.unflatten(0, self._shape[:2]), second, gate)

    def keep(self, rows: slice) -> None:
        if len(range(self._shape[1])[rows]) < self._shape[1]:
            x = self.end()[:, rows]
            self._x, self._shape = x.flatten(0, 1).contiguous(), x.shape
            self._added = torch.empty_like(self._x)

    def end(self) -> Tensor:
        (y, y_bias, gate), self._left = self._left, (None, None, None)
        if y is not None:
            added = y if y_bias is None else y + y_bias
            self._x = self._x + _times(None if gate is None else gate[None], added[None])[0]
        return self._x.view(self._shape)


def _times(gate: Tensor | None, branch: Tensor) -> Tensor:
    """gate [B, W], or [B, f, W] of n / f rows each, None = 1; branch [B, n, W]."""
    if gate is None:
        return branch
    gate = gate[:, None] if gate.ndim == 2 else gate
    return (gate[:, :, None] * branch.unflatten(1, (gate.shape[1], -1))).flatten(1, 2)


def residual_stream(x: Tensor) -> ResidualStream:
    """Return the stream of x [B, n, W]."""
    ops = _ops_for(x)
    return ResidualStream(x) if ops is None else FusedStream(x, ops)


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows @ weight.T + bias; rows [B, n, W], the norm of a stream."""
    ops = _ops_for(rows)
    if ops is None:
        return F.linear(rows, weight, bias)
    out = rows.new_empty(rows.shape[0] * rows.shape[1], len(weight))
    ops.bias_product(rows.flatten(0, 1), weight, bias, out)
    return out.unflatten(0, rows.shape[:2])


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    tail: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Full attention of q [B, T, heads, D] over k, v [B, n, heads, D] -> [B, T, heads * D]. mask bool [B, n],
    False = a key that nobody sees, None = all are seen. tail: further keys and values [B, m, heads, D]."""
    ops = _ops_for(q)
    if ops is not None and q.shape[1] <= MOST_QUERIES:
        out = q.new_empty(*q.shape[:2], q.shape[2] * q.shape[3])
        ops.attend_full(q, k, v, out, mask, tail)
        return out
    if tail is not None:
        k, v = (torch.cat(parts, dim=1) for parts in zip((k, v), tail, strict=True))
    seen = None if mask is None else mask[:, None, None]
    queries, keys, values = (part.transpose(1, 2) for part in (q, k, v))
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
    return attended.transpose(1, 2).flatten(2)


def rotated(
    x: Tensor, queries: int, cos: Tensor | None, sin: Tensor | None, **how: Any
) -> tuple[Tensor, Tensor] | None:
    """Queries and keys [B, n, heads, D] of a product, as kernels.reference.heads.rotate_heads makes them of x
    [B, n, heads, D] and of tables [n, D] or [n, D / 2]; None where plain torch is to compute."""
    ops, half = _ops_for(x), x.shape[3] // 2
    if ops is None:
        return None
    out = x.new_empty(x.shape)
    tables = (None if table is None else table[:, :half] for table in (cos, sin))
    ops.rotate_heads(x, queries, *tables, out, **how)
    return out[:, :, :queries], out[:, :, queries:]


def gated(y: Tensor) -> Tensor:
    """silu(a) * b of y [B, n, 2 W], a first -> [B, n, W]."""
    if (ops := _ops_for(y)) is None:
        gate, up = y.chunk(2, dim=-1)
        return F.silu(gate) * up
    out = y.new_empty(*y.shape[:2], y.shape[2] // 2)
    ops.glu(y.flatten(0, 1), out.flatten(0, 1), "silu")
    return out
