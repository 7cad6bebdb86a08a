"""OpenVLA-OFT as published for ALOHA: an instruction modulates the towers, their adapters are merged.

The folder is the recorded one with three cameras, fourteen joints and the towers' own file, all from a seed.
The authors' wrapper (moojink/openvla-oft 213c5ff8, film_vit_wrapper.py) on timm 0.9.10 and peft 0.21.2 read
the same file and gave RECORDED.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from folders import edit_torch, refused, same_weights
from openvla_oft_oracle import folder_with_sizes
from oracle import FOLDER
from safetensors import safe_open
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.layers.residual import computing
from vla_accel_ros.models.openvla_oft.config import PLATFORMS
from vla_accel_ros.models.openvla_oft.policy import OpenVLAOFTPolicy
from vla_accel_ros.tools.summary import summary
from vla_accel_ros.types import Observation

NAME = "openvla_oft"
FILE = "vision_backbone--150000_checkpoint.pt"
RANK, WIDTH, JOINTS, HORIZON = 20, 20, 14, 25
TASK = "Put the RED mug on the plate"
RECORDED = [1.025319, -11.322884, -0.326922, -5.860251, 3.082933, 7.147395, 9.999825, -8.526172]
pytestmark = pytest.mark.skipif(not (FOLDER / NAME).is_dir(), reason="VLA_ORACLES has no such recording")


def aloha_folder(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A folder of the layout that the authors published for ALOHA. dtype: of the towers' base weights."""
    folder_with_sizes(NAME, folder)
    for file in folder.glob("*.pt"):
        file.unlink()
    random = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    def linear(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        return {f"{name}.weight": normal(rows, columns) / columns**0.5, f"{name}.bias": 0.1 * normal(rows)}

    head = {
        **{f"layer_norm1.{leaf}": 1.0 + 0.1 * normal(JOINTS * WIDTH) for leaf in ("weight", "bias")},
        **linear("fc1", WIDTH, JOINTS * WIDTH),
        **{
            f"mlp_resnet_blocks.{block}.ffn.0.{leaf}": 0.1 * normal(WIDTH) + 1.0
            for block in range(2)
            for leaf in ("weight", "bias")
        },
        **linear("mlp_resnet_blocks.0.ffn.1", WIDTH, WIDTH),
        **linear("mlp_resnet_blocks.1.ffn.1", WIDTH, WIDTH),
        **{f"layer_norm2.{leaf}": 1.0 + 0.1 * normal(WIDTH) for leaf in ("weight", "bias")},
        **linear("fc2", JOINTS, WIDTH),
    }
    state = {**linear("fc1", WIDTH, JOINTS), **linear("fc2", WIDTH, WIDTH)}
    files = {
        "action_head--150000_checkpoint.pt": {f"module.model.{name}": x for name, x in head.items()},
        "proprio_projector--150000_checkpoint.pt": {f"module.{name}": x for name, x in state.items()},
        FILE: towers(folder, dtype, normal),
    }
    for name, tensors in files.items():
        torch.save(tensors, folder / name)
    lower = np.linspace(-3.0, -1.0, JOINTS)
    range_of = {"min": [*lower], "max": [*(lower + 2.5)], "mask": [True] * JOINTS}
    (folder / "dataset_statistics.json").write_text(
        json.dumps({"aloha1_put_x_into_pot_300_demos": {"action": range_of, "proprio": range_of}})
    )
    config = json.loads((folder / "config.json").read_text())
    horizon, bounds, images = PLATFORMS["aloha"]
    config["vla_accel_ros"] |= {
        "image_names": [*images],
        "horizon": horizon,
        "bounds": bounds,
        "action_dim": JOINTS,
        "state_dim": JOINTS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def towers(folder: Path, dtype: torch.dtype, normal: Callable[..., Tensor]) -> dict[str, Tensor]:
    """The base's towers as peft and the authors' wrapper name them, with factors and modulations."""
    tensors = {}
    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        names = sorted(name for name in file.keys() if name.startswith("vision_backbone."))  # noqa: SIM118
        stored = {name: file.get_tensor(name).float() for name in names}
    for name, value in stored.items():
        module, _, leaf = name.rpartition(".")
        if ".blocks." in name:
            before, block, rest = module.partition(".blocks.")
            number, _, rest = rest.partition(".")
            module = f"{before}{block}{number}.block.{rest}"
        weight = stored.get(f"{name.rpartition('.')[0]}.weight")
        base = "base_layer." if weight is not None and weight.ndim > 1 else ""
        tensors[f"{module}.{base}{leaf}"] = value.to(dtype)
        if leaf == "weight" and value.ndim > 1:
            ends = (1,) * (value.ndim - 2)
            tensors[f"{module}.lora_A.default.weight"] = 0.3 * normal(RANK, *value.shape[1:])
            tensors[f"{module}.lora_B.default.weight"] = 0.1 * normal(value.shape[0], RANK, *ends)
    for tower, width, depth in (("featurizer", 24, 4), ("fused_featurizer", 20, 3)):
        for block in range(depth):
            for part in ("scale", "shift"):
                root = f"vision_backbone.{tower}.blocks.{block}.{part}"
                tensors[f"{root}.weight"] = normal(width, WIDTH) * 0.5
                tensors[f"{root}.bias"] = 0.2 * normal(width)
    return tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aloha_folder(tmp_path_factory.mktemp("aloha") / "checkpoint")


def pixels() -> Tensor:
    """float32 [3, 6, 56, 56]"""
    return torch.randn(3, 6, 56, 56, generator=torch.Generator().manual_seed(7))


def features(tensors: dict[str, Tensor], tower: str, images: Tensor, words: Tensor, heads: int = 2) -> Tensor:
    """What the authors' files and formulas say of a tower: x (1 + gamma) + beta between attention and MLP,
    for all tokens; weights W + min(r, 16) / r B A; the output before the last block."""
    root = f"vision_backbone.{tower}."

    def of(name: str) -> Tensor:
        if f"{root}{name}" in tensors:
            return tensors[f"{root}{name}"].float()
        module, _, leaf = f"{root}{name}".rpartition(".")
        base = tensors[f"{module}.base_layer.{leaf}"].float()
        if leaf == "bias":
            return base
        a, b = (tensors[f"{module}.lora_{x}.default.weight"].flatten(1) for x in "AB")
        return base + min(RANK, 16) / RANK * (b @ a).view(base.shape)

    def by(name: str, x: Tensor) -> Tensor:
        return F.linear(x, of(f"{name}.weight"), of(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], of(f"{name}.weight"), of(f"{name}.bias"), 1e-6)

    patches = F.conv2d(images, of("patch_embed.proj.weight"), of("patch_embed.proj.bias"), stride=14)
    x = patches.flatten(2).transpose(1, 2) + of("pos_embed")
    dino = f"{root}cls_token" in tensors
    if dino:
        x = torch.cat([*(of(name).expand(len(x), -1, -1) for name in ("cls_token", "reg_token")), x], 1)
    for index in range(3 if dino else 2):
        inner = f"blocks.{index}.block."
        scaled = [of(f"{inner}ls{n}.scale_factor") if dino else torch.ones(()) for n in (1, 2)]
        qkv = by(f"{inner}attn.qkv", norm(f"{inner}norm1", x)).unflatten(-1, (3, heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + scaled[0] * by(f"{inner}attn.proj", (weights @ v).transpose(1, 2).flatten(2))
        x = x * (1 + by(f"blocks.{index}.scale", words)) + by(f"blocks.{index}.shift", words)
        hidden = F.gelu(by(f"{inner}mlp.fc1", norm(f"{inner}norm2", x)))
        x = x + scaled[1] * by(f"{inner}mlp.fc2", hidden)
    return x[:, 5 * dino :]


def mean_of(folder: Path, ids: list[int]) -> Tensor:
    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        return file.get_tensor("language_model.model.embed_tokens.weight").float()[ids].mean(0)


@pytest.mark.parametrize("ops", [None, Ops()], ids=["torch", "kernels"])
def test_film_modulates_each_tower_by_the_prompt_and_the_end(folder: Path, ops: Ops | None) -> None:
    policy = load_policy(folder)
    assert isinstance(policy, OpenVLAOFTPolicy) and policy.config.film
    words, images = policy.prompt(TASK), pixels()
    tensors, mean = torch.load(folder / FILE, weights_only=True), mean_of(folder, [*words, 2])
    expected = torch.cat(
        [
            features(tensors, "featurizer", images[:, :3], mean),
            features(tensors, "fused_featurizer", images[:, 3:], mean),
        ],
        2,
    )
    recorded = expected.flatten()[:: expected.numel() // 8][:8]
    assert torch.allclose(recorded, torch.tensor(RECORDED), atol=2e-5)
    with torch.inference_mode(), computing(ops):
        ours = policy.encode(images, **policy.text_encode(torch.tensor(words)))["seen"]
        projected = policy.model.projector(expected).flatten(0, 1)
    assert (ours - projected).abs().max() < 1e-5 * projected.abs().max()


def aloha_observation(instruction: str = TASK) -> Observation:
    random = np.random.default_rng(3)
    images = {name: random.integers(0, 256, (60, 80, 3), np.uint8) for name in PLATFORMS["aloha"][2]}
    return Observation(images, random.uniform(-3.0, 0.5, JOINTS).astype(np.float32), instruction, 1)


@pytest.mark.parametrize("fast", [False, True])
def test_film_chunk_of_aloha_is_in_units_between_the_least_and_the_greatest(folder: Path, fast: bool) -> None:
    policy = load_policy(folder)
    assert isinstance(policy, OpenVLAOFTPolicy)
    engine, observation = Engine(policy, fast=fast), aloha_observation()
    with engine.observe(observation) as prefix:
        chunk = engine.act(prefix).actions
    with torch.inference_mode():
        inputs = policy.inputs(observation)
        film = policy.text_encode(inputs.tokens)
        seen = policy.encode(inputs.images, **film)["seen"]
        low, span = np.linspace(-3.0, -1.0, JOINTS), 2.5 + 1e-8
        unit = np.clip(2.0 * (observation.state - low) / span - 1.0, -1.0, 1.0)
        raw = policy.forward(seen, inputs.tokens, torch.tensor(unit, dtype=torch.float32))["actions"].numpy()
    assert chunk.shape == (HORIZON, JOINTS) and len(seen) == 3 * 16
    np.testing.assert_allclose(chunk, 0.5 * (raw + 1.0) * span + low, rtol=0, atol=5e-6)


@pytest.mark.parametrize("fast", [False, True])
def test_film_depends_on_the_instruction_and_is_computed_once_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    policy = load_policy(folder)
    assert isinstance(policy, OpenVLAOFTPolicy)
    engine, computed, chunks = Engine(policy, fast=fast), list[int](), []
    film = policy.model.film

    def counted(words: Tensor) -> list[Tensor]:
        computed.append(len(words))
        return film(words)

    monkeypatch.setattr(policy.model, "film", counted)
    for instruction in (TASK, TASK, "open the lid", TASK):
        with engine.observe(aloha_observation(instruction)) as prefix:
            chunks.append(engine.act(prefix).actions)
    assert len(computed) == 2
    np.testing.assert_array_equal(chunks[0], chunks[3])
    assert not np.allclose(chunks[0], chunks[2])


def test_film_folder_is_described_as_what_it_is(folder: Path) -> None:
    description = describe(folder)
    assert description.missing == () and not description.twist
    assert (description.horizon, description.action_dim, description.state_dim) == (HORIZON, JOINTS, JOINTS)
    assert "FiLM" in summary(description) and "FiLM" not in summary(describe(folder_without(folder)))
    np.testing.assert_allclose(description.actions[:, 0], [-3.0, -0.5], atol=1e-7)


def folder_without(folder: Path) -> Path:
    """A copy whose towers are those of model.safetensors."""
    copy = folder.parent / "without"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    (copy / FILE).unlink()
    return copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_film_converted_has_the_same_weights_in_safetensors_alone(tmp_path: Path, dtype: torch.dtype) -> None:
    """Merged adapters are kept as float32, beside whatever weights."""
    folder = aloha_folder(tmp_path / "published", dtype)
    convert(folder, tmp_path / "converted")
    assert not [*(tmp_path / "converted").glob("*.pt")]
    assert same_weights(load_policy(folder), load_policy(tmp_path / "converted"))
    (tmp_path / "converted" / "config.json").write_text(
        (folder / "config.json").read_text().replace('"film": false, ', "")
    )
    assert load_policy(tmp_path / "converted").config.film


ROOT, NUMBER, NARROW = "vision_backbone.featurizer.blocks.0.", torch.zeros(1), torch.zeros(3, 24)


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda tensors: tensors.pop(f"{ROOT}shift.bias"), [f"{ROOT}shift.bias"]),
        (lambda tensors: tensors.pop("vision_backbone.featurizer.pos_embed"), ["featurizer.pos_embed"]),
        (
            lambda tensors: tensors.update({f"{ROOT}gate.weight": NUMBER, "norms.bias": NUMBER}),
            [f"{ROOT}gate.weight", "norms.bias"],
        ),
        (
            lambda tensors: tensors.pop(f"{ROOT}block.attn.qkv.lora_B.default.weight"),
            [f"{ROOT}attn.qkv.lora_A.default.weight"],
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}block.mlp.fc1.lora_A.default.weight": NARROW}),
            [f"{ROOT}mlp.fc1.lora_A.default.weight", f"{ROOT}mlp.fc1.lora_B.default.weight"],
        ),
    ],
)
def test_film_file_that_does_not_fit_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Tensor]], object], facts: list[str]
) -> None:
    folder = aloha_folder(tmp_path / "checkpoint")
    edit_torch(folder / FILE, damage)
    refused(folder, *facts)


def test_film_of_two_steps_is_refused(tmp_path: Path) -> None:
    folder = aloha_folder(tmp_path / "checkpoint")
    shutil.copyfile(folder / FILE, folder / "vision_backbone--9_checkpoint.pt")
    refused(folder, "vision_backbone--9_checkpoint")
