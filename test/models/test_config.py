"""Sizes refuse what cannot be built, survive their JSON form, and are read off tensors of any shape; every
family has what its protocols list; results are right with other instructions."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config, make_observation, make_policy
from folders import edit_weights, refused
from openvla_builders import make_openvla_folder, make_openvla_observation, make_published_config
from smolvla_recording import FOLDER

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.shards import read_headers
from vla_accel_ros.models.config import PI0, PI05, GemmaConfig, LlamaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.inferred import Shapes, axes, depth
from vla_accel_ros.models.openvla.config import OPENVLA_7B
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.models.openvla.sizes import infer_openvla
from vla_accel_ros.models.pi.infer_config import PREFIX, infer_config
from vla_accel_ros.models.pi.jax_names import jax_config
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policies import CapturablePolicy, FlowPolicy, TokenPolicy, WordedPolicy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.models.smolvla.sizes import infer_smolvla
from vla_accel_ros.types import Observation


def test_longest_prefix() -> None:
    assert PI0.max_tokens == 3 * 256 + 48
    assert PI05.max_tokens == 3 * 256 + 200


def test_json_names_missing_and_unknown_fields() -> None:
    data = make_config().to_json()
    data["vision"]["colour"] = data["vision"].pop("width")
    with pytest.raises(ValueError, match=r"config\.vision .* missing \['width'\], unknown \['colour'\]"):
        PiConfig.from_json(data)
    with pytest.raises(ValueError, match=r"^config must"):
        PiConfig.from_json([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "pi1"}, "kind is 'pi1'"),
        ({"horizon": 0}, r"config\.horizon is 0"),
        ({"vocab": 1.5}, r"config\.vocab is 1\.5"),
        ({"image_names": ("a", "a")}, "image_names"),
        ({"image_names": ()}, "image_names"),
    ],
)
def test_policy_sizes_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


@pytest.mark.parametrize("names", ["abc", [1, 2], None, [""]])
def test_cameras_in_json_are_a_list_of_names(names: object) -> None:
    data = {**make_config().to_json(), "image_names": names}
    with pytest.raises(ValueError, match=r"config\.image_names is .*"):
        PiConfig.from_json(data)


def test_the_expert_must_fit_the_prefix() -> None:
    prefix = make_config().prefix
    with pytest.raises(ValueError, match=r"prefix\.depth 2 differs from expert\.depth 3"):
        make_config(expert=dataclasses.replace(prefix, depth=3))
    with pytest.raises(ValueError, match=r"prefix\.head_dim 8 differs from expert\.head_dim 4"):
        make_config(expert=dataclasses.replace(prefix, head_dim=4))


def test_parts_are_checked() -> None:
    with pytest.raises(ValueError, match=r"vision\.image_size 30"):
        VisionConfig(width=8, depth=1, mlp=8, heads=2, image_size=30, patch=14)
    with pytest.raises(ValueError, match=r"vision\.width 9"):
        VisionConfig(width=9, depth=1, mlp=8, heads=2, image_size=28, patch=14)
    with pytest.raises(ValueError, match=r"gemma\.heads 3"):
        GemmaConfig(width=8, depth=1, mlp=8, heads=3, kv_heads=2, head_dim=4)
    with pytest.raises(ValueError, match=r"gemma\.head_dim 5"):
        GemmaConfig(width=8, depth=1, mlp=8, heads=2, kv_heads=1, head_dim=5)


@pytest.mark.parametrize("epsilon", [None, "1e-6", 0.0, 1.0, float("nan"), True])
def test_an_epsilon_that_is_none_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"llama\.norm_eps is"):
        LlamaConfig(8, 1, 8, 1, 1, 8, epsilon)


LAYER = PREFIX + "layers.0.self_attn."
"""Of an openpi checkpoint."""
ODD: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (0, 4), (1, 2, 0, 3, 4))


def test_a_shape_with_these_axes() -> None:
    assert axes({"w": (2, 3)}, "w", 2) == (2, 3)
    for shape in ODD:
        with pytest.raises(ValueError, match=r"w has shape \[.*\]"):
            axes({"w": shape}, "w", 2)
    with pytest.raises(KeyError):
        axes({}, "w", 2)


@pytest.mark.parametrize(
    ("names", "layers"),
    [(["a.0.w", "a.11.w"], 12), (["b.3.w"], 1), (["a.x.w", "a.-4.w", "a.\u0664.w", "a.2"], 3), ([], 1)],
)
def test_layers_are_counted_by_their_numbers(names: list[str], layers: int) -> None:
    assert depth(dict.fromkeys(names, (1,)), "a.") == layers


def _pi(kind: str) -> tuple[Shapes, Callable[[Shapes], object]]:
    config = make_config(kind, vision=VisionConfig(72, 1, 24, 1, 28, 14))
    with torch.device("meta"):
        model = Pi(config)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return shapes, lambda some: infer_config(some, "a file")


def _openvla() -> tuple[Shapes, Callable[[Shapes], object]]:
    data = json.loads((Path(__file__).parents[1] / "data" / "openvla_parameters.json").read_text())
    shapes = {name.replace("*", "0"): tuple(shape) for name, (_, shape) in data.items()}
    assert infer_openvla(shapes, make_published_config()) == OPENVLA_7B
    return shapes, lambda some: infer_openvla(some, make_published_config())


def _smolvla() -> tuple[Shapes, Callable[[Shapes], object]]:
    shapes = {name: stored.shape for name, stored in read_headers(FOLDER / "model.safetensors").items()}
    data = json.loads((FOLDER / "config.json").read_text())
    head = shapes["model.vlm_with_expert.vlm.model.text_model.layers.0.self_attn.k_proj.weight"][0]
    return shapes, lambda some: infer_smolvla(some, data, head, 8)


def _found(infer: Callable[[Shapes], object], shapes: Shapes) -> object:
    """The sizes, or the sentence that refuses them."""
    try:
        return infer(shapes)
    except ValueError as error:
        assert "\n" not in str(error) and "unpack" not in str(error) and "literal" not in str(error)
        return None


@pytest.mark.parametrize("make", [lambda: _pi("pi0"), lambda: _pi("pi05"), _openvla, _smolvla])
def test_no_shape_of_a_tensor_stops_the_reading_of_sizes(
    make: Callable[[], tuple[Shapes, Callable[[Shapes], object]]],
) -> None:
    shapes, infer = make()
    right = infer(shapes)
    read = [name for name in _once(shapes) for odd in ODD if _found(infer, {**shapes, name: odd}) != right]
    assert len(set(read)) > 5


def _once(names: Iterable[str]) -> list[str]:
    """Those of first layers, and outside of layers."""
    return [name for name in names if not any(f".{number}." in name for number in range(1, 32))]


def test_no_shape_of_an_array_of_jax_stops_it_either() -> None:
    for odd in ODD:
        with pytest.raises(ValueError, match=r"PaliGemma/img/embedding/kernel has shape"):
            jax_config({"PaliGemma/img/embedding/kernel": odd})


@pytest.mark.parametrize("shape", [(), (0, 32), (4,)])
def test_a_folder_with_such_a_tensor_is_refused_with_its_file(shape: tuple[int, ...], tmp_path: Path) -> None:
    config = make_config("pi0", vision=VisionConfig(72, 1, 24, 1, 28, 14))
    folder = make_checkpoint(tmp_path / "folder", config)
    (folder / "config.json").unlink()
    edit_weights(
        folder / "model.safetensors",
        lambda tensors: tensors.update({LAYER + "k_proj.weight": torch.zeros(shape)}),
    )
    refused(folder, "model.safetensors", f"k_proj.weight has shape {list(shape)}")


def test_a_layer_without_a_number_is_a_tensor_too_many(tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path / "folder", make_config("pi0", vision=VisionConfig(72, 1, 24, 1, 28, 14))
    )
    (folder / "config.json").unlink()
    name = PREFIX + "layers.last.norm.weight"
    edit_weights(folder / "model.safetensors", lambda tensors: tensors.update({name: torch.zeros(4)}))
    settings = "action_horizon=50 use_quantile_norm=false adapt_to_pi=false delta_action_mask=none"
    refused(folder, "unexpected", name, trained_as=settings)


def of_pi(policy: Policy) -> tuple[WordedPolicy, FlowPolicy]:
    return policy, policy


def of_smolvla(policy: SmolVLAPolicy) -> tuple[FlowPolicy, CapturablePolicy]:
    return policy, policy


def of_openvla(policy: OpenVLAPolicy) -> tuple[WordedPolicy, TokenPolicy]:
    return policy, policy


def assert_host_images(policy: WordedPolicy, observation: Observation) -> None:
    images = policy.host_images(observation)
    assert [id(image) for image in images] == [id(image) for image in policy.host_inputs(observation).images]
    assert all(np.shares_memory(image, given) for image, given in zip(images, observation.images.values()))
    with pytest.raises(ValueError, match=r"observation\.images has \[\]|observation\.images is empty"):
        policy.host_images(Observation({}, observation.state, "lift", 0))


def test_images_on_the_host_are_those_received_once_checked(tmp_path: Path) -> None:
    openvla = cast(OpenVLAPolicy, load_policy(make_openvla_folder(tmp_path)))
    assert_host_images(of_openvla(openvla)[0], make_openvla_observation())
    assert_host_images(of_pi(make_policy("pi0"))[0], make_observation())


HERE = Path(__file__).parent
SUITE = (
    "smolvla/test_smolvla.py",
    "openvla/test_openvla.py",
    "processing/test_conventions.py",
    "test_oracles.py::test_actions",
    "test_oracles.py::test_prefix_keys_and_values",
)


def test_a_part_of_the_model_tests_passes_with_other_kernels() -> None:
    chosen = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **chosen}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run(
        [*pytest_, *SUITE], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 30
