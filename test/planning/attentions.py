"""Attentions as operations of a plan, by their sizes."""

from __future__ import annotations

from vla_accel_ros.planning.operations import Kind, Op


def attention(
    name: str,
    count: int,
    rows: int,
    keys: int,
    heads: int,
    kv_heads: int,
    head: int,
    batch: int = 1,
    by: str = "",
) -> Op:
    """Return an attention: each of batch * rows tokens has `heads` queries of `head` numbers over `keys`
    keys."""
    kv = 2.0 * 2.0 * batch * keys * kv_heads * head
    moved = 2.0 * 2.0 * batch * rows * heads * head
    asked = batch * rows * heads
    return Op(name, Kind.ATTENTION, count, asked, head, keys, "bf16", "bf16", kv, moved, by, heads)
