"""Where the clients of openpi's protocol put what a policy reads: only the wire is common, not the keys.

A path leads through maps and lists: ("images", "cam_high") is request["images"]["cam_high"]. Pictures are
named in the order of the policy's own, and arrive as openpi's policies take them: uint8, or float in [0, 1];
[H, W, 3] or [3, H, W]; or the bytes of a JPEG or PNG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_accel_ros.sensing.cameras.compressed import decode
from vla_accel_ros.sensing.cameras.image import CompressedView

Path = tuple[str | int, ...]
NATIVE = "native"


@dataclass(frozen=True)
class Keys:
    """Where each part of an observation is.

    images: one path for each picture, in the order of the policy's. state: vectors that are joined. prompt:
    the first one that is there. optional: pictures after the first may be absent.
    """

    images: tuple[Path, ...]
    state: tuple[Path, ...] = (("state",),)
    prompt: tuple[Path, ...] = (("prompt",),)
    optional: bool = False


PRESETS: Mapping[str, Keys] = {
    "openpi-droid": Keys(
        images=(("observation/exterior_image_1_left",), ("observation/wrist_image_left",)),
        state=(("observation/joint_position",), ("observation/gripper_position",)),
    ),
    "openpi-libero": Keys(
        images=(("observation/image",), ("observation/wrist_image",)), state=(("observation/state",),)
    ),
    "openpi-aloha": Keys(
        images=tuple(("images", name) for name in ("cam_high", "cam_left_wrist", "cam_right_wrist")),
        optional=True,
    ),
    "openpi-ur5": Keys(images=(("base_rgb",), ("wrist_rgb",)), state=(("joints",), ("gripper",))),
    "picpp": Keys(images=(("images", 0), ("images", 1)), prompt=(("task",), ("prompt",))),
}
"""Public clients of openpi and pi.cpp, by name."""


def keys_of(name: str, image_names: Sequence[str]) -> Keys:
    """The keys of a preset, or the policy's own: images/NAME, state, prompt (or task). Raises ValueError for
    an unknown name, and if the policy has fewer pictures than the preset."""
    if name == NATIVE:
        return Keys(
            images=tuple(("images", image) for image in image_names),
            prompt=(("prompt",), ("task",)),
            optional=True,
        )
    if name not in PRESETS:
        raise ValueError(f"the keys {name!r} are unknown: give {NATIVE}, {', '.join(PRESETS)}")
    keys = PRESETS[name]
    if len(keys.images) > len(image_names):
        raise ValueError(f"the keys {name} have {len(keys.images)} pictures, the policy {list(image_names)}")
    return keys


def images_in(request: Mapping[str, Any], keys: Keys, image_names: Sequence[str]) -> dict[str, np.ndarray]:
    """Policy image name -> uint8 [H, W, 3], RGB. Raises ValueError that names a missing or wrong key."""
    pictures = {}
    for name, path in zip(image_names, keys.images, strict=False):
        value = _find(request, path)
        if value is not None:
            pictures[name] = _picture(value, path)
        elif not keys.optional:
            raise missing(request, path)
    if not pictures:
        raise missing(request, keys.images[0])
    return pictures


def state_in(request: Mapping[str, Any], keys: Keys) -> np.ndarray:
    """The state float32 [D] in the policy's units. Raises ValueError as images_in does."""
    return np.concatenate([vector(_required(request, path), path, 1).ravel() for path in keys.state])


def prompt_in(request: Mapping[str, Any], keys: Keys, default: str) -> str:
    """The instruction; default: where the request has none, "" to require it. Raises ValueError as images_in
    does."""
    value = next(
        (text for path in keys.prompt if (text := _find(request, path)) is not None), default or None
    )
    if value is None:
        raise missing(request, keys.prompt[0])
    if isinstance(value, np.ndarray) and value.dtype.kind == "U" and value.size == 1:
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise ValueError(f"{shown(keys.prompt[0])} is {type(value).__name__}: send text")
    return value


def vector(value: Any, path: Path, dims: int) -> np.ndarray:
    """float32 of at most so many dimensions. Raises ValueError if it is none, or not finite."""
    if isinstance(value, (bool, int, float, np.generic, list)):
        try:
            value = np.asarray(value, np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{shown(path)} holds no numbers") from error
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf" or value.ndim > dims:
        kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{shown(path)} is {kind}: send numbers of {dims} dimensions")
    with np.errstate(over="ignore"):
        values = value.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"{shown(path)} is not finite")
    return values


def missing(request: Mapping[str, Any], path: Path) -> ValueError:
    """What to raise for a request without a key."""
    return ValueError(f"the request has no {shown(path)}, but {', '.join(_listed(request)) or 'nothing'}")


def shown(path: Path) -> str:
    """The path as it is written in Python: images["cam_high"]."""
    first, *others = path
    return str(first) + "".join(f"[{part!r}]" for part in others)


def _required(request: Mapping[str, Any], path: Path) -> Any:
    value = _find(request, path)
    if value is None:
        raise missing(request, path)
    return value


def _find(request: Any, path: Path) -> Any:
    for part in path:
        if isinstance(part, str):
            request = request.get(part) if isinstance(request, Mapping) else None
        else:
            request = request[part] if isinstance(request, list) and part < len(request) else None
    return request


def _listed(request: Mapping[str, Any]) -> list[str]:
    names = []
    for key, value in list(request.items())[:20]:
        names += [shown((key, name)) for name in list(value)[:8]] if isinstance(value, Mapping) else [key]
    return [name[:60] for name in names]


def _picture(value: Any, path: Path) -> np.ndarray:
    if isinstance(value, bytes):
        pixels = decode(CompressedView(0, "", "", np.frombuffer(value, np.uint8)))
        return np.ascontiguousarray(pixels[..., ::-1])
    if not isinstance(value, np.ndarray) or value.ndim != 3 or value.dtype.kind not in "uf":
        kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{shown(path)} is {kind}: send uint8 [H, W, 3], or the bytes of a jpeg or png")
    if value.dtype.kind == "f":
        if not ((value >= 0.0) & (value <= 1.0)).all():
            raise ValueError(f"{shown(path)} has floats outside of 0 to 1")
        value = (255 * value).astype(np.uint8)
    elif value.dtype != np.uint8:
        raise ValueError(f"{shown(path)} is {value.dtype}: send uint8, or floats in 0 to 1")
    if value.shape[0] == 3 and value.shape[2] != 3:
        value = value.transpose(1, 2, 0)
    if value.shape[2] != 3 or not value.size:
        raise ValueError(f"{shown(path)} has the shape {list(value.shape)}: send [H, W, 3] or [3, H, W]")
    return np.ascontiguousarray(value)
