"""Layers that families share, as launches: decoder stacks between passes, image towers in plain torch.

A captured stack has one matrix for query, key and value and one for gate and up. With quantised weights,
attention's output product stays bfloat16, because the blocks that compute its rows do not know a row's
largest value.
"""

from __future__ import annotations

from vla_accel_ros.models.config import GemmaConfig, VisionConfig
from vla_accel_ros.planning.families.work import EXACT, Dtypes
from vla_accel_ros.planning.operations import PACKED, PLAIN, SDPA, Kind, Op, attention, one_pass, product


def decoder_layers(
    g: GemmaConfig,
    layers: int,
    rows: int,
    keys: int,
    d: Dtypes = EXACT,
    batch: int = 1,
    everywhere: bool = False,
    by: str = "",
) -> list[Op]:
    """Return `layers` fused layers of batch * rows tokens, each of which attends to `keys` keys.

    everywhere: attention's output product is quantised too. by: of attention, see Op.
    """
    many, heads = batch * rows, g.heads * g.head_dim
    qkv = heads + 2 * g.kv_heads * g.head_dim
    o = d if everywhere else EXACT
    # The keys of single rows are split, and a separate launch combines the results.
    pieces = [one_pass("join", layers, many, 2 * heads, heads)] if rows == 1 and by == PACKED else []
    return [
        *pieces,
        one_pass("norm", 2 * layers, many, g.width, g.width),
        product("qkv", layers, many, qkv, g.width, d.weights, d.compute),
        one_pass("place", layers, many, qkv, qkv),
        attention("attention", layers, rows, keys, g.heads, g.kv_heads, g.head_dim, batch, by),
        product("o", layers, many, g.width, heads, o.weights, o.compute),
        product("gate and up", layers, many, 2 * g.mlp, g.width, d.weights, d.compute),
        one_pass("activation", layers, many, 2 * g.mlp, g.mlp),
        product("down", layers, many, g.width, g.mlp, d.weights, d.compute),
    ]


def narrow_layers(
    g: GemmaConfig, layers: int, rows: int, keys: int, d: Dtypes = EXACT, batch: int = 1
) -> list[Op]:
    """Return five launches a layer for a few dozen rows; they include norms and activations."""
    many, heads = batch * rows, g.heads * g.head_dim
    qkv = heads + 2 * g.kv_heads * g.head_dim

    def narrow(name: str, columns: int, inner: int) -> Op:
        return product(name, layers, many, columns, inner, d.weights, d.compute, Kind.NARROW)

    return [
        narrow("qkv", qkv, g.width),
        attention("attention", layers, rows, keys, g.heads, g.kv_heads, g.head_dim, batch),
        narrow("o", g.width, heads),
        narrow("gate and up", 2 * g.mlp, g.width),
        narrow("down", g.width, g.mlp),
    ]


def rows_layers(
    g: GemmaConfig, layers: int, rows: int, keys: int, d: Dtypes, placed: bool, batch: int = 1
) -> list[Op]:
    """Return decoder_layers for 8-bit rows: the product includes the gate, and the results of attention and
    of the MLP's first half need a rounding pass each. placed: a separate pass writes keys and values."""
    many, heads = batch * rows, g.heads * g.head_dim
    made = decoder_layers(g, layers, rows, keys, d, batch, everywhere=True)
    left_out = {"activation"} if placed else {"activation", "place"}
    return [
        *(op for op in made if op.name not in left_out),
        one_pass("round attention", layers, many, heads, heads, itemsize=1.5),
        one_pass("round activation", layers, many, g.mlp, g.mlp, itemsize=1.5),
    ]


def tower_layers(
    v: VisionConfig,
    layers: int,
    images: int,
    tokens: int,
    d: Dtypes,
    passes: int,
    joined: int,
    everywhere: bool = False,
    plain: bool = False,
) -> list[Op]:
    """Return the layers of an image encoder with `images` x `tokens` rows.

    passes: over the rows in a layer, of the tower's width. joined: number of matrices for query, key and
    value: 1 or 3. everywhere: attention's output product is quantised too. plain: in plain torch.
    """
    rows, o = images * tokens, d if everywhere else EXACT
    by, attending = (PLAIN, SDPA) if plain else ("", "")
    head = v.width // v.heads
    return [
        one_pass("norms and sums", passes * layers, rows, v.width, v.width, by=by),
        product("qkv", joined * layers, rows, 3 * v.width // joined, v.width, d.weights, d.compute),
        attention("attention", layers, tokens, tokens, v.heads, v.heads, head, images, attending),
        product("o", layers, rows, v.width, v.width, o.weights, o.compute),
        product("fc1", layers, rows, v.mlp, v.width, d.weights, d.compute),
        product("fc2", layers, rows, v.width, v.mlp, d.weights, d.compute),
    ]


def patches(v: VisionConfig, images: int, compute: str = "fp32") -> list[Op]:
    """Return the operations from pixels to rows: cut, multiply, add positions."""
    rows, cut = images * v.tokens, 3 * v.patch**2
    return [
        one_pass("cut", 1, rows, cut, cut, itemsize=2.5),
        product("patches", 1, rows, v.width, cut, compute),
        one_pass("positions", 1, rows, 2 * v.width, v.width, itemsize=3.0),
    ]


def vision_parameters(v: VisionConfig, layers: int | None = None) -> tuple[int, int]:
    """Return the parameters of a SigLIP encoder: those of its embeddings, and all others, including the last
    norm."""
    depth = v.depth if layers is None else layers
    layer = 4 * (v.width**2 + v.width) + 2 * v.width * v.mlp + v.mlp + v.width + 4 * v.width
    embeddings = 3 * v.patch**2 * v.width + v.width + v.tokens * v.width
    return embeddings, depth * layer + 2 * v.width


def decoder_parameters(g: GemmaConfig) -> int:
    """Return the parameters in the matrices of one decoder layer."""
    heads, kv = g.heads * g.head_dim, g.kv_heads * g.head_dim
    return g.width * (2 * heads + 2 * kv) + 3 * g.width * g.mlp
