"""openpi's JAX folders of a pi0-FAST: arrays, what openpi computes otherwise than lerobot, what is asked.

WRITTEN are the tokens that openpi's own Pi0FAST.sample_actions (15a9616a, JAX 0.5.3) wrote with these arrays
in float32, for these inputs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import torch
from oracle import FOLDER

from shared.decoding import decode
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Act, Request
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.conversion import convert
from vla_accel_ros.models.pi_fast.policy import PiFastPolicy
from vla_accel_ros.types import Observation

CAMERAS = ("base_0_rgb", "base_1_rgb", "wrist_0_rgb")
STEPS, JOINTS, SIDE = 24, 7, 28
IMAGE, WORDS = "PaliGemma/img/", "PaliGemma/llm/"
BLOCK = f"{IMAGE}Transformer/encoderblock/"
ATTENTION = f"{BLOCK}MultiHeadDotProductAttention_0/"
SHAPES: dict[str, tuple[int, ...]] = {
    f"{IMAGE}embedding/kernel": (14, 14, 3, 16),
    f"{IMAGE}embedding/bias": (16,),
    f"{IMAGE}pos_embedding": (1, 4, 16),
    f"{IMAGE}Transformer/encoder_norm/scale": (16,),
    f"{IMAGE}Transformer/encoder_norm/bias": (16,),
    f"{IMAGE}head/kernel": (16, 32),
    f"{IMAGE}head/bias": (32,),
    **{f"{BLOCK}LayerNorm_{n}/{leaf}": (2, 16) for n in (0, 1) for leaf in ("scale", "bias")},
    f"{BLOCK}MlpBlock_0/Dense_0/kernel": (2, 16, 24),
    f"{BLOCK}MlpBlock_0/Dense_0/bias": (2, 24),
    f"{BLOCK}MlpBlock_0/Dense_1/kernel": (2, 24, 16),
    f"{BLOCK}MlpBlock_0/Dense_1/bias": (2, 16),
    **{f"{ATTENTION}{name}/kernel": (2, 16, 2, 8) for name in ("query", "key", "value")},
    **{f"{ATTENTION}{name}/bias": (2, 2, 8) for name in ("query", "key", "value")},
    f"{ATTENTION}out/kernel": (2, 2, 8, 16),
    f"{ATTENTION}out/bias": (2, 16),
    f"{WORDS}embedder/input_embedding": (1408, 32),
    f"{WORDS}final_norm/scale": (32,),
    f"{WORDS}layers/attn/q_einsum/w": (3, 2, 32, 16),
    f"{WORDS}layers/attn/kv_einsum/w": (3, 2, 1, 32, 16),
    f"{WORDS}layers/attn/attn_vec_einsum/w": (3, 2, 16, 32),
    f"{WORDS}layers/mlp/gating_einsum": (3, 2, 32, 48),
    f"{WORDS}layers/mlp/linear": (3, 48, 32),
    f"{WORDS}layers/pre_attention_norm/scale": (3, 32),
    f"{WORDS}layers/pre_ffw_norm/scale": (3, 32),
}
SETTINGS = "action_horizon=10 adapt_to_pi=false delta_action_mask=none"
WRITTEN = [1215, 226, 1215, 295, 295, 672, 521, 1365, 264, 226, *[1215] * 13, 635]
pytestmark = pytest.mark.skipif(
    not (FOLDER / "pi0_fast").is_dir(), reason="VLA_ORACLES has no such recording"
)


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(17)
    values = {}
    for name, shape in SHAPES.items():
        spread = 0.3 if name.endswith(("scale", "bias")) else 1.4 / max(shape[-2:]) ** 0.5
        values[name] = (spread * random.standard_normal(shape)).astype(np.float32)
    return values


def write_arrays(folder: Path, values: dict[str, np.ndarray]) -> None:
    """As Orbax lays them out without its packed store."""
    path, tree = folder / "params", {}
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for name, value in values.items():
        keys = ["params", *name.split("/"), "value"]
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path / '.'.join(keys)}/"}}
        store = tensorstore.open(spec, create=True, dtype=tensorstore.float32, shape=value.shape).result()
        store.write(value).result()
        tree[str(tuple(keys))] = {"key_metadata": [{"key": key, "key_type": 2} for key in keys]}
    (path / "_METADATA").write_text(json.dumps({"tree_metadata": tree, "use_zarr3": False}))


def make_folder(folder: Path) -> Path:
    write_arrays(folder, arrays())
    low = np.linspace(-1.0, -0.5, JOINTS)
    stats = {"mean": [0.0] * JOINTS, "std": [1.0] * JOINTS, "q01": [*low], "q99": [*(low + 2.0)]}
    (folder / "assets" / "arm").mkdir(parents=True)
    (folder / "assets" / "arm" / "norm_stats.json").write_text(
        json.dumps({"norm_stats": {"state": stats, "actions": stats}})
    )
    for name in ("checkpoint/tokenizer", "fast_tokenizer"):
        shutil.copytree(FOLDER / "pi0_fast" / name, folder / Path(name).name)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "checkpoint")


def load(folder: Path, trained_as: str = SETTINGS, **arguments: Any) -> PiFastPolicy:
    policy = load_policy(folder, trained_as=trained_as, **arguments)
    assert isinstance(policy, PiFastPolicy)
    return policy


def seen() -> Observation:
    """With the last camera absent."""
    random = np.random.default_rng(2)
    images = {name: random.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for name in CAMERAS[:2]}
    state = np.linspace(-0.8, 0.9, JOINTS).astype(np.float32)
    return Observation(images, state, "Pick up\nthe RED_cube ", 1)


def test_prompt_is_openpis(folder: Path) -> None:
    """Small letters, underscores as spaces, line ends kept, no id at its end; absent cameras are black."""
    policy, observation = load(folder), seen()
    low = np.linspace(-1.0, -0.5, JOINTS)
    unit = (observation.state - low) / (2.0 + 1e-6) * 2.0 - 1.0
    bins = np.digitize(unit, np.linspace(-1, 1, 257)[:-1]) - 1
    text = f"Task: pick up\nthe red cube, State: {' '.join(map(str, bins))};\n"
    inputs = policy.inputs(observation)
    assert inputs.tokens.tolist() == policy.tokenizer.encode(text, bos=True)
    assert inputs.image_names == CAMERAS and inputs.images.shape == (3, 3, SIDE, SIDE)
    assert (inputs.images[2] == -1.0).all()


def written(policy: PiFastPolicy) -> list[int]:
    with torch.inference_mode():
        inputs = policy.inputs(seen())
        left = policy.prefill(policy.encode(inputs.images)["seen"], inputs.tokens)
        steps = decode(policy.model, left["kv"], left["hidden"][None], STEPS)
        return [int(step.tokens[0]) for step in steps]


def test_tokens_are_those_that_openpi_writes(folder: Path) -> None:
    assert written(load(folder)) == WRITTEN


def test_fast_stages_write_the_same(folder: Path, device: str) -> None:
    """Positions of generated tokens leave out one, and absent cameras are black, there, too."""
    engine = Engine(load(folder, device=device), fast=True)
    with engine.observe(seen()) as prefix:
        request = engine.scheduler.submit(Request(Act(), prefix=prefix))
        with pytest.raises(ValueError, match="Action: "):  # openpi's random network writes no chunk
            engine.scheduler.wait(request)
    assert request.tokens[:STEPS] == WRITTEN


def test_chunks_are_in_units_of_quantiles_and_have_all_their_numbers(folder: Path) -> None:
    policy = load(folder)
    low = np.linspace(-1.0, -0.5, JOINTS)
    chunk = low + 1.0 + 0.9 * np.sin(np.linspace(0.0, 2.0, 10))[:, None] * np.linspace(0.1, 1.0, JOINTS)
    tokens = policy.raw_actions(chunk, seen().state)
    back = policy.actions(tokens[None], seen().state)
    assert back.shape == (10, JOINTS) and np.abs(back - chunk).max() < 0.06
    assert policy.fast is not None
    unit = policy.fast.encode(np.zeros((9, JOINTS)))
    codes = policy.tokenizer.words - 1 - 128 - np.array(unit)
    before = policy.tokenizer.encode("Action: ")
    short = torch.tensor([[*before, *codes.tolist(), policy.end_token]])
    with pytest.raises(ValueError, match=r"63 numbers.*70"):
        policy.actions(short, seen().state)


def test_folder_is_described_and_its_settings_are_asked_for(folder: Path) -> None:
    said = describe(folder, trained_as=SETTINGS)
    assert said.missing == () and said.config.kind == "pi0_fast" and said.horizon == 10
    assert said.config.image_names == CAMERAS and said.actions.shape == (2, JOINTS)
    assert describe(folder, trained_as="pi0_fast_libero").config.image_names[1] == "left_wrist_0_rgb"
    with pytest.raises(ValueError) as asked:
        load(folder, "")
    assert all(name in str(asked.value) for name in ("action_horizon", "adapt_to_pi", "delta_action_mask"))
    assert "use_quantile_norm" not in str(asked.value)
    with pytest.raises(ValueError, match="pi05_libero is of a pi05"):
        load(folder, "pi05_libero")
    assert load(folder, "pi0_fast_libero").delta_mask.tolist() == [True] * 6 + [False]


def test_converted_folder_writes_the_same(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "converted", trained_as=SETTINGS)
    assert written(load(tmp_path / "converted", "")) == WRITTEN


def test_everything_wrong_with_the_arrays_is_in_one_error(folder: Path) -> None:
    values = arrays()
    values[f"{WORDS}extra/scale"] = values.pop(f"{WORDS}final_norm/scale")
    values[f"{WORDS}layers/mlp/gating_einsum"] = np.zeros((3, 2, 32, 40), np.float32)
    write_arrays(folder, values)
    with pytest.raises(ValueError) as refused:
        load(folder)
    assert all(name in str(refused.value) for name in ("extra/scale", "language_model.norm", "gate_proj"))


def test_missing_tokenizer_of_actions_is_asked_for(folder: Path) -> None:
    shutil.rmtree(folder / "fast_tokenizer")
    with pytest.raises(ValueError, match="fast_tokenizer"):
        load(folder)
    assert "fast_tokenizer" in str(describe(folder, trained_as=SETTINGS).missing)


def test_text_that_is_no_chunk_is_refused_in_the_engine(folder: Path) -> None:
    engine = Engine(load(folder))
    with engine.observe(seen()) as prefix, pytest.raises(ValueError, match="Action: "):
        engine.act(prefix)
