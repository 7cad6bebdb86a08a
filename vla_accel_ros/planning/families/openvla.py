"""OpenVLA: two image towers in plain torch, captured; a Llama stack that generates actions and text as
tokens.

`prefill` is one packed forward of a frame (engine.stages.packed_forward), `decode` one of the following
tokens. With the last frame's tokens as drafts, the prefill verifies all tokens of an action; without drafts
there are seven decodes.
"""

from __future__ import annotations

from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.planning.families.stacks import decoder_layers, decoder_parameters, patches, tower_layers
from vla_accel_ros.planning.families.work import EXACT, Stages, Work
from vla_accel_ros.planning.operations import PACKED, PLAIN, Op, of_rows, one_pass, product

ACTION_TOKENS = 7
ROUND = 16
"""Rows of a segment are padded to a multiple of this."""
LACKING = ("fp8", "w8a8-int4")
"""The engine's precisions that the family lacks (engine.options)."""


def stages(config: OpenVLAConfig, work: Work) -> Stages:
    """Return the operations for one frame of each of work.batch robots; work.views and work.steps are not
    used."""
    g, d = config.prefix, work.dtypes("prefill")
    rows8 = work.rows_everywhere  # only in the language model
    images, everywhere = work.batch, rows8 or work.precision.startswith("all-")
    d_towers = EXACT if rows8 else work.dtypes("encode")
    rows = -(-(config.dino.tokens + work.prompt + ACTION_TOKENS - 1) // ROUND) * ROUND
    features = config.features
    encode: list[Op] = []
    for tower, extra, passes in ((config.dino, 1 + config.registers, 6), (config.siglip, 0, 4)):
        tokens = tower.tokens + extra
        encode += patches(tower, images, "bf16")
        layers = tower.depth - 1
        encode += tower_layers(tower, layers, images, tokens, d_towers, passes, 1, plain=True)
        encode.append(one_pass("gelu", layers, images * tokens, tower.mlp, tower.mlp, by=PLAIN))
    seen = images * config.dino.tokens
    encode.append(one_pass("registers, joining", 3, seen, features, features, by=PLAIN))
    encode += [
        product("projector", 1, seen, 4 * features, features),
        one_pass("gelu", 2, seen, 4 * features, 4 * features, by=PLAIN),
        product("projector", 1, seen, g.width, 4 * features),
        product("projector", 1, seen, g.width, g.width),
    ]
    after = d if everywhere else work.dtypes("decode")
    ours = of_rows if rows8 else list
    return {
        "encode": tuple(encode),
        "prefill": (
            *ours(decoder_layers(g, g.depth, rows, rows, d, work.batch, everywhere, PACKED)),
            product("head", 1, work.batch * ACTION_TOKENS, config.vocab, g.width),
        ),
        "denoise": (),
        "decode": (
            *ours(decoder_layers(g, g.depth, 1, rows, after, work.batch, everywhere=True, by=PACKED)),
            product("head", 1, work.batch, config.vocab, g.width),
        ),
    }


def weight_parts(config: OpenVLAConfig) -> dict[str, int]:
    """Return the bytes of the parameters, all in bfloat16, by part of the model."""
    g, features = config.prefix, config.features
    seen = _tower(config.dino, config.registers) + _tower(config.siglip, None)
    seen += 4 * features * (features + 1) + g.width * (4 * features + 1) + g.width * (g.width + 1)
    return {
        "words": 2 * 2 * config.vocab * g.width,
        "encoder": 2 * seen,
        "prefix": 2 * g.depth * decoder_parameters(g),
        "norms and ends": 2 * (2 * g.depth + 1) * g.width,
    }


def _tower(v: VisionConfig, registers: int | None) -> int:
    layer = 4 * (v.width**2 + v.width) + 2 * v.width * v.mlp + v.mlp + v.width + 4 * v.width
    extra = 0 if registers is None else 1 + registers
    scales = 0 if registers is None else 2 * v.width
    embeddings = 3 * v.patch**2 * v.width + v.width + (v.tokens + extra) * v.width
    return (v.depth - 1) * (layer + scales) + embeddings
