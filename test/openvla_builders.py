"""Small OpenVLA things to test with: a random network, its folder in the published layout, observations.

As in builders.py, whatever a test uses was written to a folder and loaded like any other.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders import SHARPER
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor

from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.types import Observation

ACTIONS = 7
CAMERA = "image_primary"
WORDS = (
    "In",
    "Out",
    ":",
    "?",
    "\n",
    "What",
    "action",
    "should",
    "the",
    "robot",
    "take",
    "to",
    "lift",
    "red",
    "cup",
)
SPACE = 4 + len(WORDS)
BINS = 16
WORD_IDS = 40
VOCAB = 64


def make_llama_tokenizer() -> Tokenizer:
    """One token is one word or mark; Llama's special tokens."""
    pieces = ["<unk>", "<s>", "</s>", "<PAD>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(pieces[:4])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"[A-Za-z]+|\n|[^\sA-Za-z]"), behavior="removed", invert=True
    )
    return tokenizer


def make_openvla_config(**changes: Any) -> OpenVLAConfig:
    """An image of 28 x 28 (4 patches), 3 layers, 2 key/value heads for 4, 56 ids of which 15 are actions."""
    fields: dict[str, Any] = {
        "dino": VisionConfig(width=24, depth=3, mlp=48, heads=4, image_size=28, patch=14),
        "siglip": VisionConfig(width=20, depth=2, mlp=36, heads=2, image_size=28, patch=14),
        "registers": 4,
        "prefix": LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8, norm_eps=1e-5),
        "vocab": VOCAB,
        "action_vocab": WORD_IDS + BINS,
        "bins": BINS,
        "space_token": SPACE,
        "max_prompt": 32,
    }
    return OpenVLAConfig(**{**fields, **changes})


def make_openvla(config: OpenVLAConfig | None = None, seed: int = 0, varied: bool = True) -> OpenVLA:
    """A network in which every parameter matters: the zeros and ones of a fresh one are moved too.

    varied: as in builders.make_model.
    """
    model = OpenVLA(make_openvla_config() if config is None else config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            matrix = parameter.ndim > 1 and parameter.shape[0] > 1
            scale = parameter.ndim == 1 and not name.endswith("bias")
            parameter.copy_(noise * (parameter[0].numel() ** -0.5 if matrix else 0.2) + float(scale))
        layers: Any = model.language_model.model.layers if varied else ()
        for layer in layers:
            layer.self_attn.q_proj.weight *= SHARPER
    return model.eval()


def make_tensors(config: OpenVLAConfig, seed: int = 0) -> dict[str, Tensor]:
    """Everything a published file holds: the parameters, and what no path reads."""
    tensors = {name: tensor.clone() for name, tensor in make_openvla(config, seed).state_dict().items()}
    for tower, sizes in (("featurizer", config.dino), ("fused_featurizer", config.siglip)):
        root = f"vision_backbone.{tower}."
        first = root + "blocks.0."
        last = f"{root}blocks.{sizes.depth - 1}."
        tensors |= {
            last + name[len(first) :]: tensor.clone()
            for name, tensor in list(tensors.items())
            if name.startswith(first)
        }
        tensors |= {
            root + "norm.weight": torch.ones(sizes.width),
            root + "norm.bias": torch.zeros(sizes.width),
        }
    tensors["vision_backbone.fused_featurizer.attn_pool.latent"] = torch.zeros(1, 1, config.siglip.width)
    return tensors


def make_norm_stats(*datasets: str, seed: int = 0) -> dict[str, Any]:
    """Statistics as published: the last action, the gripper's, is not normalised."""
    rng = np.random.default_rng(seed)
    stats = {}
    for dataset in datasets:
        low = rng.uniform(-1.5, -0.2, ACTIONS)
        high = low + rng.uniform(0.1, 2.0, ACTIONS)
        mask = [True] * (ACTIONS - 1) + [False]
        stats[dataset] = {
            "action": {"q01": low.tolist(), "q99": high.tolist(), "mask": mask},
            "num_transitions": 9,
        }
    return stats


def make_openvla_folder(
    folder: Path, config: OpenVLAConfig | None = None, seed: int = 0, shards: int = 0
) -> Path:
    """A folder in the published layout, with our sizes; weights in one file, or in `shards` with an index."""
    config = make_openvla_config() if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, make_tensors(config, seed), shards)
    data = {"model_type": "openvla", "norm_stats": make_norm_stats("bridge_orig", seed=seed)}
    (folder / "config.json").write_text(json.dumps({**data, "vla_accel_ros": config.to_json()}))
    pixels = {
        "image_resize_strategy": "resize-naive",
        "means": [[0.484375, 0.455078125, 0.40625], [0.5, 0.5, 0.5]],
        "stds": [[0.228515625, 0.2236328125, 0.224609375], [0.5, 0.5, 0.5]],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    make_llama_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def write_weights(folder: Path, tensors: dict[str, Tensor], shards: int = 0) -> None:
    """`model.safetensors`, or the tensors dealt out to shards and their index."""
    if not shards:
        save_file(tensors, folder / "model.safetensors")
        return
    names = [f"model-{index + 1:05}-of-{shards:05}.safetensors" for index in range(shards)]
    where = {tensor: names[index % shards] for index, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor in where if where[tensor] == name}, folder / name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index_file = folder / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))


def make_published_config(llama: LlamaConfig | None = None) -> dict[str, Any]:
    """config.json as published, Llama's sizes written out if they are given."""
    text: dict[str, Any] = {"model_type": "llama", "pad_token_id": 32000, "torch_dtype": "bfloat16"}
    if llama is not None:
        sizes = asdict(llama)
        text |= {
            "hidden_size": sizes["width"],
            "num_hidden_layers": sizes["depth"],
            "intermediate_size": sizes["mlp"],
            "num_attention_heads": sizes["heads"],
            "num_key_value_heads": sizes["kv_heads"],
            "rms_norm_eps": sizes["norm_eps"],
        }
    return {
        "model_type": "openvla",
        "arch_specifier": "no-align+fused-gelu-mlp",
        "vision_backbone_id": "dinosiglip-vit-so-224px",
        "llm_backbone_id": "llama2-7b-pure",
        "image_resize_strategy": "resize-naive",
        "image_sizes": [224, 224],
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
        "timm_override_act_layers": [None, None],
        "use_fused_vision_backbone": True,
        "n_action_bins": 256,
        "pad_to_multiple_of": 64,
        "text_config": text,
        "norm_stats": make_norm_stats("bridge_orig", "fractal20220817_data"),
    }


def make_openvla_observation(
    seed: int = 0, instruction: str = "lift the red cup", size: tuple[int, int] = (48, 64)
) -> Observation:
    """Noise for an image of `size` (height, width)."""
    image = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Observation({CAMERA: image}, np.zeros(0, np.float32), instruction, 1_000_000_000)
