"""Small things to test with: a random policy of a few thousand parameters, and observations it can take.

The policy is written as a checkpoint folder and loaded like any other, so a test that uses it goes through
the same door as a robot. Every random number comes from the seed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import TRAINED_AS, GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.training import USUAL
from vla_accel_ros.models.pi.weights import EMBED_TOKENS
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.types import Observation

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb")
JOINTS = 6
WORDS = (
    *("Task", "State", "Action", ":", ",", ";", "\n", "-"),
    *("reach", "put", "follow", "the", "on", "block", "pad", "moving", "to", "holding", "done"),
    *("red", "green", "blue"),
)


def make_tokenizer() -> Tokenizer:
    """One token is one word, number or mark. Gemma's special ids; bins 0..255."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *WORDS, *map(str, range(256))]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(pieces[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"\d+|[A-Za-z]+|\n|[^\sA-Za-z\d]"), behavior="removed", invert=True
    )
    return tokenizer


def make_config(kind: str = "pi05", **changes: Any) -> PiConfig:
    """Two cameras of 28 x 28 (4 tokens each), 2 layers, 8 actions of 8 (6 joints and padding)."""
    fields: dict[str, Any] = {
        "kind": kind,
        "vision": VisionConfig(width=24, depth=2, mlp=48, heads=4, image_size=28, patch=14),
        "prefix": GemmaConfig(width=32, depth=2, mlp=64, heads=4, kv_heads=1, head_dim=8),
        "expert": GemmaConfig(width=24, depth=2, mlp=48, heads=4, kv_heads=1, head_dim=8),
        "vocab": make_tokenizer().get_vocab_size(),
        "action_dim": 8,
        "state_dim": 8,
        "horizon": 8,
        "max_prompt": 32,
        "image_names": CAMERAS,
    }
    return PiConfig(**{**fields, **changes})


SHARPER, LOUDER = 3.0, 6.0
"""Queries and outputs of the language model's layers, times this: a random network whose head is its
embedding says its last token again for ever, so that another frame's answer, or one too long, looks right."""


def make_model(config: PiConfig, seed: int = 0, varied: bool = True) -> Pi:
    """A model in which every parameter matters: the zeros and ones of a fresh one are moved too.

    varied: what it says varies by token and by frame. Roundings then grow from layer to layer; tests of how
    near half precisions and small weights come do without.
    """
    model = Pi(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.1 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
        layers: Any = model.language_model.layers if varied else ()
        for layer in layers:
            layer.self_attn.q_proj.weight *= SHARPER
            layer.self_attn.o_proj.weight *= LOUDER
            layer.mlp.down_proj.weight *= LOUDER
    return model.eval()


def assert_varied(said: Sequence[Sequence[int]]) -> None:
    """What a model says of several frames tells frames and tokens apart: no two are the same, and none is one
    token again and again."""
    assert len({tuple(tokens) for tokens in said}) == len(said) > 1, said
    assert all(len(set(tokens)) > 1 for tokens in said), said


CALM = 0.05


def make_checkpoint(folder: Path, config: PiConfig | None = None, seed: int = 0, reach: float = 1.0) -> Path:
    """A whole checkpoint folder: weights, config, statistics of 6 joints and tokeniser.

    reach: scales the actions; those of random weights make sense to a trajectory node with CALM only.
    """
    config = make_config() if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(make_model(config, seed).state_dict())
    del tensors[EMBED_TOKENS]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    sizes = {**config.to_json(), TRAINED_AS: USUAL[config.kind].to_json()}
    (folder / "config.json").write_text(json.dumps({"vla_accel_ros": sizes}))
    (folder / "assets" / "arm").mkdir(parents=True, exist_ok=True)
    stats = {"norm_stats": {"state": make_stats(seed), "actions": make_stats(seed + 1, reach=reach)}}
    (folder / "assets" / "arm" / "norm_stats.json").write_text(json.dumps(stats))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def make_stats(seed: int = 0, joints: int = JOINTS, reach: float = 1.0) -> dict[str, list[float]]:
    """Statistics of joints that move about -reach..reach."""
    rng = np.random.default_rng(seed)
    mean, std = reach * rng.uniform(-0.3, 0.3, joints), reach * rng.uniform(0.3, 0.6, joints)
    return {
        "mean": mean.tolist(),
        "std": std.tolist(),
        "q01": (mean - 2 * std).tolist(),
        "q99": (mean + 2 * std).tolist(),
    }


def make_policy(
    kind: str = "pi05",
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    delta_mask: np.ndarray | None = None,
    **changes: Any,
) -> Policy:
    """A random policy; `changes` are fields of PiConfig."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), make_config(kind, **changes), seed)
        policy = load_policy(path, device, dtype, delta_mask)
        assert isinstance(policy, Policy)
        return policy


NOBODY = Embodiment(cast(AnyPolicy, None), 0.1)
"""Whom frames are of that nothing is computed of."""


def make_embodiment(
    policy: Policy, joints: int = 4, step_dt_s: float = 0.05, seed: int = 9, **changes: Any
) -> Embodiment:
    """Another robot of the policy's network: with statistics of so many joints. changes: fields of Policy."""
    state, actions = make_stats(seed, joints), make_stats(seed + 1, joints)
    make, names = (
        (Normalizer.mean_std, ("mean", "std"))
        if policy.config.kind == "pi0"
        else (Normalizer.quantile, ("q01", "q99"))
    )
    fields: dict[str, Any] = {
        "state_normalizer": make(*(np.array(state[name]) for name in names)),
        "action_normalizer": make(*(np.array(actions[name]) for name in names)),
        "delta_mask": np.zeros(joints, np.bool_),
    }
    return Embodiment(replace(policy, **{**fields, **changes}), step_dt_s)


def make_observation(
    seed: int = 0,
    cameras: tuple[str, ...] = CAMERAS,
    instruction: str = "reach the red block",
    stamp_ns: int = 1_000_000_000,
    size: tuple[int, int] = (28, 28),
) -> Observation:
    """Noise for images of `size` (height, width), and a joint state within -0.5..0.5."""
    rng = np.random.default_rng(seed)
    images = {name: rng.integers(0, 256, (*size, 3), dtype=np.uint8) for name in cameras}
    state = rng.uniform(-0.5, 0.5, JOINTS).astype(np.float32)
    return Observation(images=images, state=state, instruction=instruction, stamp_ns=stamp_ns)
