"""Sizes are read off tensors of any shape: it is refused in one sentence, whatever a header says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from builders import make_checkpoint, make_config
from folders import edit_weights, refused
from openvla_builders import make_published_config
from smolvla_recording import FOLDER

from vla_accel_ros.models.checkpoints.shards import read_headers
from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.inferred import Shapes, axes, depth
from vla_accel_ros.models.openvla.config import OPENVLA_7B
from vla_accel_ros.models.openvla.sizes import infer_openvla
from vla_accel_ros.models.pi.infer_config import PREFIX, infer_config
from vla_accel_ros.models.pi.jax_names import jax_config
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.smolvla.sizes import infer_smolvla

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
