"""A LoRA adapter that peft saved is merged by a conversion: W + (alpha / r) B A, in float32.

The formula and the names are peft's (tuners/lora/layer.py, get_delta_weight; utils/save_and_load.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import edit_json, refused
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from openvla_builders import make_norm_stats, make_openvla_folder
from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.conversion import convert, provenance_of
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.cli import main

BEFORE = "base_model.model."
EXPERT = "model.paligemma_with_expert.gemma_expert.model.layers.1."
MODULES = {
    EXPERT + "self_attn.q_proj": 2,
    EXPERT + "mlp.down_proj": 4,
    "model.action_out_proj": 2,
    "model.paligemma_with_expert.paligemma.model.vision_tower.vision_model.embeddings.patch_embedding": 2,
}
"""Module -> rank; the last one is a convolution."""
SAVED = "model.action_in_proj.weight"
ALPHA = 6
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "task_type": None,
    "auto_mapping": None,
    "base_model_name_or_path": "lerobot/pi05_base",
    "revision": None,
    "inference_mode": True,
    "r": 2,
    "lora_alpha": ALPHA,
    "lora_dropout": 0.05,
    "target_modules": ["q_proj", "down_proj", "action_out_proj", "patch_embedding"],
    "exclude_modules": None,
    "modules_to_save": ["action_in_proj"],
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "init_lora_weights": True,
    "rank_pattern": {"mlp.down_proj": 4},
    "alpha_pattern": {"down_proj": 5},
    "layer_replication": None,
    "loftq_config": {},
    "lora_bias": False,
    "trainable_token_indices": None,
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_lerobot_folder(tmp_path / "base")


def make_adapter(
    base: Path, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any
) -> dict[str, Tensor]:
    """An adapter as lerobot saves it, beside its own processors; return what the merged weights must be."""
    generator = torch.Generator().manual_seed(3)
    make_lerobot_folder(folder, seed=5, use_peft=True, use_relative_actions=False)
    (folder / "model.safetensors").unlink()
    weights = load_file(base / "model.safetensors")
    tensors, merged = dict[str, Tensor](), dict[str, Tensor]()
    config = {**CONFIG, **changes}
    for module, rank in MODULES.items():
        weight = weights[module + ".weight"]
        a = torch.randn((rank, *weight.shape[1:]), generator=generator).to(dtype)
        b = torch.randn((weight.shape[0], rank, *(1,) * (weight.ndim - 2)), generator=generator).to(dtype)
        tensors |= {f"{BEFORE}{module}.lora_A.weight": a, f"{BEFORE}{module}.lora_B.weight": b}
        scale = (5 if "down_proj" in module else ALPHA) / (math.sqrt(rank) if config["use_rslora"] else rank)
        delta = (b.float().flatten(1) @ a.float().flatten(1)).reshape(weight.shape) * scale
        merged[module + ".weight"] = (weight.float() + delta).to(weight.dtype)
    saved = torch.randn(weights[SAVED].shape, generator=generator)
    tensors[BEFORE + SAVED] = merged[SAVED] = saved
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return {name.removeprefix("model."): value for name, value in merged.items()}


def check(folder: Path, base: Path, merged: dict[str, Tensor]) -> None:
    """The converted folder has the merged weights, and all others of the base to the bit."""
    ours, before = load_policy(folder).model.state_dict(), load_policy(base).model.state_dict()
    for name, value in ours.items():
        torch.testing.assert_close(value, merged.get(name, before[name]).float(), rtol=1e-6, atol=1e-6)
    assert set(merged) <= set(ours)


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("converted", [False, True])
def test_the_merged_weights_are_pefts(base: Path, tmp_path: Path, rslora: bool, converted: bool) -> None:
    merged = make_adapter(base, tmp_path / "lora", use_rslora=rslora)
    start = convert(base, tmp_path / "ours") if converted else base
    assert main(["convert", str(start), str(tmp_path / "out"), "--adapter", str(tmp_path / "lora")]) == 0
    check(tmp_path / "out", base, merged)
    assert provenance_of(tmp_path / "out")["adapter"]["source"] == "lora"


def test_a_sum_is_rounded_once_to_the_bases_dtype(base: Path, tmp_path: Path) -> None:
    weights = load_file(base / "model.safetensors")
    save_file({name: value.bfloat16() for name, value in weights.items()}, base / "model.safetensors")
    merged = make_adapter(base, tmp_path / "lora", torch.bfloat16)
    merged["action_in_proj.weight"] = load_file(tmp_path / "lora" / "adapter_model.safetensors")[
        BEFORE + SAVED
    ]
    out = load_file(convert(base, tmp_path / "out", adapter=tmp_path / "lora") / "model.safetensors")
    name = EXPERT.removeprefix("model.") + "mlp.down_proj.weight"
    assert torch.equal(out[name], merged[name]) and out[name].dtype == torch.bfloat16
    check(tmp_path / "out", base, merged)


def test_statistics_are_those_of_the_adapters_training_or_said_to_be_the_bases(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_adapter(base, tmp_path / "lora")
    policy = load_policy(convert(base, tmp_path / "out", adapter=tmp_path / "lora"))
    expected = load_policy(make_lerobot_folder(tmp_path / "tuned", seed=5))
    before = load_policy(base)
    assert isinstance(policy, Policy) and isinstance(expected, Policy) and isinstance(before, Policy)
    assert policy.action_normalizer.shift.tolist() == expected.action_normalizer.shift.tolist()
    assert policy.action_normalizer.shift.tolist() != before.action_normalizer.shift.tolist()
    for file in (tmp_path / "lora").glob("policy_*"):
        file.unlink()
    assert main(["convert", str(base), str(tmp_path / "kept"), "--adapter", str(tmp_path / "lora")]) == 0
    assert f"{tmp_path / 'lora'} has no statistics: those of {base} are kept" in capsys.readouterr().out
    kept = load_policy(tmp_path / "kept")
    assert isinstance(kept, Policy)
    assert kept.action_normalizer.shift.tolist() == before.action_normalizer.shift.tolist()


def test_an_openvla_takes_the_statistics_beside_its_adapter(tmp_path: Path) -> None:
    base, lora = make_openvla_folder(tmp_path / "base"), tmp_path / "lora"
    lora.mkdir()
    name = "language_model.model.layers.0.self_attn.q_proj"
    weight = load_file(base / "model.safetensors")[name + ".weight"]
    a, b = torch.randn(2, weight.shape[1]), torch.randn(weight.shape[0], 2)
    tensors = {f"{BEFORE}{name}.lora_A.weight": a, f"{BEFORE}{name}.lora_B.weight": b}
    save_file(tensors, lora / "adapter_model.safetensors")
    config = {**CONFIG, "r": 2, "rank_pattern": {}, "alpha_pattern": {}}
    (lora / "adapter_config.json").write_text(json.dumps(config))
    kept, before = load_policy(convert(base, tmp_path / "kept", adapter=lora)), load_policy(base)
    assert isinstance(kept, OpenVLAPolicy) and isinstance(before, OpenVLAPolicy)
    assert kept.stats.low.tolist() == before.stats.low.tolist()
    stats = make_norm_stats("my_robot", seed=8)
    (lora / "dataset_statistics.json").write_text(json.dumps(stats))
    out = convert(base, tmp_path / "out", adapter=lora)
    merged = load_policy(out).model.state_dict()[name + ".weight"]
    torch.testing.assert_close(merged, weight + ALPHA / 2 * b @ a, rtol=1e-6, atol=1e-6)
    assert json.loads((out / "dataset_statistics.json").read_text()) == stats


def test_an_embeddings_adapter_is_the_other_way_round(base: Path, tmp_path: Path) -> None:
    make_adapter(base, tmp_path / "lora")
    name = "model.paligemma_with_expert.paligemma.lm_head"
    weight = load_file(base / "model.safetensors")[name + ".weight"]
    a, b = torch.randn(2, weight.shape[0]), torch.randn(weight.shape[1], 2)
    tensors = {f"{BEFORE}{name}.lora_embedding_A": a, f"{BEFORE}{name}.lora_embedding_B": b}
    save_file(tensors, tmp_path / "lora" / "adapter_model.safetensors")
    out = convert(base, tmp_path / "out", adapter=tmp_path / "lora")
    policy = load_policy(out)
    assert isinstance(policy, Policy)
    torch.testing.assert_close(
        policy.model.embed_table, weight + ALPHA / 2 * (b @ a).t(), rtol=1e-6, atol=1e-5
    )


def edit(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return changed


DOWN = BEFORE + EXPERT + "mlp.down_proj.lora_B.weight"
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    *(
        (
            (
                lambda f, name=name, value=value: edit_json(
                    f / "adapter_config.json", lambda d: d.update({name: value})
                )
            ),
            name,
        )
        for name, value in {
            "peft_type": "IA3",
            "use_dora": True,
            "fan_in_fan_out": True,
            "init_lora_weights": "pissa",
            "trainable_token_indices": [3],
            "layer_replication": [[0, 1]],
            "new_trick": 1,
            "r": 0,
        }.items()
    ),
    (lambda f: edit_json(f / "adapter_config.json", lambda d: d.update(rank_pattern={})), "down_proj"),
    (edit(lambda t: t.pop(DOWN)), "mlp.down_proj.lora_A.weight without its other factor"),
    (edit(lambda t: t.update({DOWN: t[DOWN][:-1].contiguous()})), "mlp.down_proj.lora_B.weight of shape"),
    (
        edit(lambda t: t.update({DOWN.replace("layers.1", "layers.7"): t.pop(DOWN)})),
        "layers.7|without its other",
    ),
    (
        edit(lambda t: t.update({BEFORE + "model.head.weight": torch.ones(2)})),
        "model.head.weight, which .* does not have",
    ),
    (lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json is not there"),
    (lambda f: (f / "adapter_model.safetensors").unlink(), "adapter_model.safetensors is not there"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_not_such_an_adapter_is_refused_and_nothing_is_written(
    base: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    make_adapter(base, tmp_path / "lora")
    change(tmp_path / "lora")
    with pytest.raises(ValueError, match=message):
        convert(base, tmp_path / "out", adapter=tmp_path / "lora")
    assert not list(tmp_path.glob("out*"))


def test_an_adapter_alone_is_refused_with_the_command_that_merges_it(base: Path, tmp_path: Path) -> None:
    make_adapter(base, tmp_path / "lora")
    refused(tmp_path / "lora", f"vla convert BASE OUT --adapter {tmp_path / 'lora'}")


def test_a_base_that_is_refused_stays_refused(tmp_path: Path) -> None:
    base = make_lerobot_folder(tmp_path / "base", make_lerobot_config("pi0"))
    make_adapter(base, tmp_path / "lora")
    edit_json(base / "config.json", lambda data: data.update(adapt_to_pi_aloha=True))
    with pytest.raises(ValueError, match="adapt_to_pi_aloha"):
        convert(base, tmp_path / "out", adapter=tmp_path / "lora")
