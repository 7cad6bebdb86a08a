"""Reads and writes requests of openpi's protocol by their keys (contract/sections/keys.py).

A server reads what openpi's policies take: uint8, or float in [0, 1]; [H, W, 3] or [3, H, W]; or the bytes of
a JPEG or PNG. A client writes what the public clients send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vla_accel_ros.contract.sections.keys import Keys, Path
from vla_accel_ros.sensing.cameras.compressed import decode
from vla_accel_ros.sensing.cameras.image import CompressedView


def pictures(keys: Keys, image_names: Sequence[str]) -> dict[str, Path]:
    """Policy image name -> where it is. Raises ValueError if the keys have a picture that the policy has
    not."""
    if keys.by_order and len(keys.images) <= len(image_names):
        return dict(zip(image_names, keys.images.values(), strict=False))
    if keys.by_order or not set(keys.images) <= set(image_names):
        raise ValueError(f"the keys have the pictures {list(keys.images)}, the policy {list(image_names)}")
    return dict(keys.images)


def images_in(request: Mapping[str, Any], keys: Keys, image_names: Sequence[str]) -> dict[str, np.ndarray]:
    """Policy image name -> uint8 [H, W, 3], RGB. Raises ValueError that names a missing or wrong key."""
    images = {}
    paths = pictures(keys, image_names)
    for name, path in paths.items():
        value = _find(request, path)
        if value is not None:
            images[name] = _picture(value, path)
        elif not keys.optional:
            raise missing(request, path)
    if not images:
        raise missing(request, next(iter(paths.values())))
    return images


def state_in(request: Mapping[str, Any], keys: Keys) -> np.ndarray:
    """The state float32 [D] in the policy's units. Raises ValueError as images_in does."""
    parts = [_part(request, path, count, 1 + keys.row) for path, count in keys.state]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _part(request: Mapping[str, Any], path: Path, count: int, dims: int) -> np.ndarray:
    value = vector(_required(request, path), path, dims).ravel()
    if count and len(value) != count:
        raise ValueError(f"{shown(path)} has {len(value)} numbers, not {count}")
    return value


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
    """The request of a client. images: by the names of `keys.images`, uint8 [H, W, 3]. state: float [D], in
    the units of the policy's training. Raises ValueError if a picture that the keys require is absent, or the
    state has another length."""
    request: dict[str, Any] = {}
    for number, (name, path) in enumerate(keys.images.items()):
        if name in images:
            _put(request, path, _sent(images[name], keys))
        elif not keys.optional or not number:
            raise ValueError(
                f"no camera is the image {name}, but {', '.join(images) or 'none'}: the keys have it"
            )
    for path in keys.blank:
        side = keys.size or 224
        _put(request, path, _sent(np.zeros((side, side, 3), np.uint8), keys))
    for path, part in zip((path for path, _ in keys.state), split(keys, state), strict=True):
        _put(request, path, part[None] if keys.row else part)
    for path, value in keys.constants.items():
        _put(request, path, value)
    _put(request, keys.prompt[0], prompt)
    return request


def split(keys: Keys, state: np.ndarray) -> list[np.ndarray]:
    """The vectors of a state [D]. Raises ValueError for another length than theirs."""
    if not keys.state:
        return []
    counts = [count for _, count in keys.state]
    needed, free = sum(counts), not all(counts)
    if len(state) < needed + free or (len(state) > needed and not free):
        at_least = "at least " * free
        raise ValueError(f"the state has {len(state)} numbers, the keys need {at_least}{needed + free}")
    return np.split(np.asarray(state, np.float32 if keys.single else np.float64), np.cumsum(counts[:-1]))


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


def _put(request: Any, path: Path, value: Any) -> None:
    """Set request[path[0]][path[1]]...; maps and lists on the way are made."""
    part, *others = path
    if isinstance(part, int):
        request += [None] * (part + 1 - len(request))
    if others:
        inner = request[part] if isinstance(part, int) else request.get(part)
        inner = inner if inner is not None else [] if isinstance(others[0], int) else {}
        _put(inner, tuple(others), value)
        value = inner
    request[part] = value


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
