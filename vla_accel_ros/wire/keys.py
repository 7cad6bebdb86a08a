"""Where the clients of openpi's protocol put what a policy reads: only the wire is common, not the keys.

A path leads through maps and lists: ("images", "cam_high") is request["images"]["cam_high"]. Pictures are
named in the order of the policy's own. A server reads what openpi's policies take: uint8, or float in [0, 1];
[H, W, 3] or [3, H, W]; or the bytes of a JPEG or PNG. A client writes what the public clients send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vla_accel_ros.sensing.cameras.compressed import decode
from vla_accel_ros.sensing.cameras.image import CompressedView

Path = tuple[str | int, ...]
NATIVE = "native"


@dataclass(frozen=True)
class Keys:
    """Where each part of an observation is.

    images: one path for each picture, in the order of the policy's. state: vectors that are joined. prompt:
    the first one that is there. optional: pictures after the first may be absent.

    Of a client: size, the side of the pictures that it sends, 0 for the camera's; channels_first; turned, by
    half a turn; parts, the lengths of the state's vectors, the last one free. unfit: why the answers cannot
    move the joints of a contract, "" if they are absolute positions of joints.
    """

    images: tuple[Path, ...]
    state: tuple[Path, ...] = (("state",),)
    prompt: tuple[Path, ...] = (("prompt",),)
    optional: bool = False
    size: int = 224
    channels_first: bool = False
    turned: bool = False
    parts: tuple[int, ...] = ()
    unfit: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """A word for each picture: "cam_high", "wrist_image_left"."""
        return tuple(
            str(path[-1]).rpartition("/")[2] if isinstance(path[-1], str) else ("base", "wrist")[path[-1]]
            for path in self.images
        )


PRESETS: Mapping[str, Keys] = {
    "openpi-droid": Keys(
        images=(("observation/exterior_image_1_left",), ("observation/wrist_image_left",)),
        state=(("observation/joint_position",), ("observation/gripper_position",)),
        parts=(7,),
        unfit="velocities of joints",
    ),
    "openpi-libero": Keys(
        images=(("observation/image",), ("observation/wrist_image",)),
        state=(("observation/state",),),
        turned=True,
        unfit="displacements of a hand",
    ),
    "openpi-aloha": Keys(
        images=tuple(("images", name) for name in ("cam_high", "cam_left_wrist", "cam_right_wrist")),
        optional=True,
        channels_first=True,
    ),
    "openpi-ur5": Keys(images=(("base_rgb",), ("wrist_rgb",)), state=(("joints",), ("gripper",)), parts=(6,)),
    "picpp": Keys(
        images=(("images", 0), ("images", 1)),
        prompt=(("task",), ("prompt",)),
        size=256,
        turned=True,
        unfit="displacements of a hand",
    ),
}
"""Public clients of openpi and pi.cpp, by name."""


def keys_of(name: str, image_names: Sequence[str]) -> Keys:
    """The keys of a preset, or native ones for these pictures: images/NAME, state, prompt (or task). Raises
    ValueError for an unknown name."""
    if name == NATIVE:
        return Keys(
            images=tuple(("images", image) for image in image_names),
            prompt=(("prompt",), ("task",)),
            optional=True,
            size=0,
        )
    if name not in PRESETS:
        raise ValueError(f"the keys {name!r} are unknown: give {NATIVE}, {', '.join(PRESETS)}")
    return PRESETS[name]


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


def write(keys: Keys, images: Mapping[str, np.ndarray], state: np.ndarray, prompt: str) -> dict[str, Any]:
    """The request of a client. images: by `keys.names`, uint8 [H, W, 3]. state: float [D], in the units of
    the policy's training. Raises ValueError if a picture that the keys require is absent, or the state too
    short."""
    request: dict[str, Any] = {}
    for number, (name, path) in enumerate(zip(keys.names, keys.images, strict=True)):
        if name in images:
            _put(request, path, _sent(images[name], keys))
        elif not keys.optional or not number:
            raise ValueError(
                f"no camera is the image {name}, but {', '.join(images) or 'none'}: the keys have it"
            )
    if len(state) <= sum(keys.parts):
        raise ValueError(f"the state has {len(state)} numbers, the keys need more than {sum(keys.parts)}")
    vectors = np.split(np.asarray(state, np.float64), np.cumsum(keys.parts, dtype=int))
    for path, part in zip(keys.state, vectors, strict=True):
        _put(request, path, part)
    _put(request, keys.prompt[0], prompt)
    return request


def resize_with_pad(picture: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] -> [size, size, 3]: scaled by PIL's bilinear filter, centred on black, as openpi's
    clients do it (openpi_client.image_tools)."""
    height, width = picture.shape[:2]
    if (height, width) == (size, size):
        return picture
    ratio = max(width / size, height / size)
    rows, columns = int(height / ratio), int(width / ratio)
    scaled = Image.fromarray(picture).resize((columns, rows), resample=Image.Resampling.BILINEAR)
    padded = np.zeros((size, size, 3), np.uint8)
    row, column = (size - rows) // 2, (size - columns) // 2
    padded[row : row + rows, column : column + columns] = np.asarray(scaled)
    return padded


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
    first, *parts = path
    return str(first) + "".join(f"[{part!r}]" for part in parts)


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


def _put(request: dict[str, Any], path: Path, value: Any) -> None:
    first, *parts = path
    assert isinstance(first, str)
    if not parts:
        request[first] = value
    elif isinstance(parts[0], str):
        request.setdefault(first, {})[parts[0]] = value
    else:
        request.setdefault(first, []).append(value)


def _sent(picture: np.ndarray, keys: Keys) -> np.ndarray:
    picture = picture[::-1, ::-1] if keys.turned else picture
    picture = resize_with_pad(np.ascontiguousarray(picture), keys.size) if keys.size else picture
    return picture.transpose(2, 0, 1) if keys.channels_first else picture


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
