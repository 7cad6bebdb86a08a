"""Where a request to a policy server has pictures, state and prompt: only the wire is common, not the keys.

The section `keys` of a contract names a preset of a public server, or says it key by key; `vla serve` reads
requests by it, the node openpi_inference writes them. A key within another is written `images > cam_high`,
one of a list `images > 0`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vla_accel_ros.contract.files.fields import Fields, closest

Path = tuple[str | int, ...]
NATIVE = "native"
OPENPI, VLLM_OMNI, STARVLA, GALAXEA = DIALECTS = ("openpi", "vllm-omni", "starvla", "galaxea")
JOINTS, VELOCITIES, HANDS, TWIST = ANSWERS = ("joints", "velocities", "hands", "twist")
MOST_SIZE, MOST_CONSTANTS = 4096, 64
_KEY, _KEY_FORM = r"\S(.{0,198}\S)?", "a key such as state, or images > cam_high"


@dataclass(frozen=True)
class Keys:
    """Where each part of an observation is.

    images: picture -> its key. by_order: the names are the preset's own, so the policy's pictures are these
    in its order. state: the vectors that make the state, with their lengths, 0 for the rest; empty to leave
    it out. prompt: the first one that is there. optional: pictures after the first may be absent.

    Of a client: size, the side of the pictures that it sends, 0 for the camera's; channels_first; turned, by
    half a turn; single, whether the state is float32; row, whether it is [1, n]; constants and blank, what it
    sends besides: values, and black pictures. continues: whether the server takes delay and action_prefix;
    agreeing: also rows after the delay. dialect: the form of requests and answers. answers: what an action
    is, as a contract names it: joints (absolute positions), velocities of them, hands or twist; "" for what
    the contract says.
    """

    images: Mapping[str, Path]
    by_order: bool = False
    state: tuple[tuple[Path, int], ...] = ((("state",), 0),)
    prompt: tuple[Path, ...] = (("prompt",), ("task",))
    optional: bool = False
    size: int = 224
    channels_first: bool = False
    turned: bool = False
    single: bool = False
    row: bool = False
    constants: Mapping[Path, Any] = field(default_factory=dict)
    blank: tuple[Path, ...] = ()
    continues: bool = False
    agreeing: bool = True
    dialect: str = OPENPI
    answers: str = ""


def _named(*paths: Path) -> Keys:
    """Pictures whose names are the last words of their keys."""
    return Keys({str(path[-1]).rpartition("/")[2]: path for path in paths}, by_order=True)


_ALOHA = _named(*(("images", name) for name in ("cam_high", "cam_left_wrist", "cam_right_wrist")))
_LIBERO = Keys(
    {"image": ("observation/image",), "wrist_image": ("observation/wrist_image",)},
    by_order=True,
    turned=True,
    answers=HANDS,
)

PRESETS: Mapping[str, Keys] = {
    "openpi-droid": replace(
        _named(("observation/exterior_image_1_left",), ("observation/wrist_image_left",)),
        state=((("observation/joint_position",), 7), (("observation/gripper_position",), 0)),
        answers=VELOCITIES,
    ),
    "openpi-libero": replace(_LIBERO, state=((("observation/state",), 0),)),
    "openpi-aloha": replace(_ALOHA, optional=True, channels_first=True, answers=JOINTS),
    "openpi-ur5": replace(
        _named(("base_rgb",), ("wrist_rgb",)), state=((("joints",), 6), (("gripper",), 0)), answers=JOINTS
    ),
    "picpp": replace(
        _LIBERO,
        images={"base": ("images", 0), "wrist": ("images", 1)},
        prompt=(("task",), ("prompt",)),
        size=256,
        single=True,
    ),
    "galaxea-droid": Keys(
        {"exterior_image": ("images", "exterior_image"), "wrist_image": ("images", "wrist_image")},
        by_order=True,
        state=((("state", "right_arm"), 7), (("state", "right_gripper"), 1)),
        prompt=(("task",),),
        channels_first=True,
        single=True,
        constants={("frequency",): 15, ("embodiment_type",): "Droid_Franka"},
        blank=(("images", "dummy_wrist_right"),),
        dialect=GALAXEA,
        answers=JOINTS,
    ),
}
"""Public servers whose pictures have names of their own."""


def _by_name(name: str, images: Sequence[str]) -> Keys | None:
    """The keys of public servers that take any pictures, by the policy's names of them."""
    if name == NATIVE:
        return Keys({image: ("images", image) for image in images}, optional=True, size=0)
    if name == "lerobot":
        return Keys(
            {image: (f"observation.images.{image}",) for image in images},
            state=((("observation.state",), 0),),
            prompt=(("task",), ("prompt",)),
            size=0,
            single=True,
        )
    if name == "picpp-pi06":
        return Keys({image: (image,) for image in images}, single=True, agreeing=False)
    if name == "starvla":
        return Keys(
            {image: ("image", index) for index, image in enumerate(images)},
            prompt=(("lang",),),
            single=True,
            row=True,
            dialect=STARVLA,
        )
    return None


NAMES = (NATIVE, *PRESETS, "picpp-pi06", "lerobot", "starvla")


def keys_of(name: str, images: Sequence[str]) -> Keys:
    """The keys of a preset. images: the policy's pictures. Raises ValueError for an unknown name."""
    keys = PRESETS.get(name) or _by_name(name, images)
    if keys is None:
        raise ValueError(f"the keys {name!r} are unknown: give {', '.join(NAMES)}")
    return keys


def read_keys(file: Fields, images: Sequence[str]) -> Keys:
    """The section `keys` of a contract. images: of its cameras."""
    if not file.has("keys"):
        return keys_of(NATIVE, images)
    fields = file.child("keys")
    keys = keys_of(fields.choice("preset", NAMES, NATIVE), images)
    changes = dict[str, Any]()
    if fields.has("images"):
        changes |= {"images": _pictures(fields, images), "by_order": False, "optional": False}
    if fields.take_off("state"):
        changes["state"] = ()
    elif fields.has("state"):
        counts = fields.named_numbers("state")
        changes["state"] = tuple((path_of(key), _count(fields, key, n)) for key, n in counts.items())
    if fields.has("prompt"):
        changes["prompt"] = (path_of(fields.text("prompt", _KEY, _KEY_FORM)),)
    if fields.has("size"):
        size = fields.number("size", least=0, most=MOST_SIZE)
        changes["size"] = int(size) if size == size else 0
    if fields.has("layout"):
        changes["channels_first"] = fields.choice("layout", ("hwc", "chw")) == "chw"
    if fields.has("turned"):
        changes["turned"] = fields.flag("turned")
    if fields.has("continues"):
        changes["continues"] = fields.flag("continues")
    if fields.has("constants"):
        changes["constants"] = {**keys.constants, **_constants(fields)}
    if fields.has("blank"):
        changes["blank"] = tuple(map(path_of, fields.texts("blank", _KEY, _KEY_FORM)))
    if fields.has("dialect"):
        changes["dialect"] = fields.choice("dialect", DIALECTS)
    if fields.has("answers"):
        changes["answers"] = fields.choice("answers", ANSWERS)
    fields.close()
    keys = replace(keys, **changes)
    _check_paths(file, keys)
    return keys


def path_of(key: str) -> Path:
    """("images", "cam_high") of `images > cam_high`."""
    first, *words = (word.strip() for word in key.split(" > "))
    return (first, *(int(word) if word.isdecimal() else word for word in words))


def _check_paths(file: Fields, keys: Keys) -> None:
    """No key holds two things, and a list has no gap."""
    paths = [*keys.images.values(), *(path for path, _ in keys.state), keys.prompt[0], *keys.constants]
    paths += keys.blank
    within: dict[Path, set[str | int]] = {}
    for number, path in enumerate(paths):
        if any(path[: len(other)] == other[: len(path)] for other in paths[:number]):
            shown = " > ".join(map(str, path))
            file.refuse("keys", shown, "is there twice, or holds another key", "give each part its own")
            return
        for depth in range(1, len(path)):
            within.setdefault(path[:depth], set()).add(path[depth])
    for path, parts in within.items():
        indices = {part for part in parts if isinstance(part, int)}
        if indices and parts != set(range(len(parts))):
            shown = ", ".join(sorted(map(str, parts)))
            file.refuse("keys", " > ".join(map(str, path)), f"holds {shown}", "number a list from 0 on")


def _pictures(fields: Fields, images: Sequence[str]) -> dict[str, Path]:
    keys = {}
    for name, key in _entries(fields, "images"):
        if name not in images:
            fix = closest(name, images, f"a camera's image is {' or '.join(images) or 'absent'}")
            fields.refuse(f"images.{name}", key, "is no image of cameras", fix)
        elif not isinstance(key, str) or not key.strip():
            fields.refuse(f"images.{name}", key, f"is not {_KEY_FORM}", "fix it")
        else:
            keys[name] = path_of(key)
    for image in images:
        if image not in keys and fields.valid("images"):
            fields.missing(f"images.{image}", "add the server's key of it")
    return {image: keys[image] for image in images if image in keys}


def _constants(fields: Fields) -> dict[Path, Any]:
    constants = {}
    for key, value in _entries(fields, "constants"):
        if not isinstance(value, (str, int, float, bool)):
            fields.refuse(f"constants.{key}", value, "is no text, number, true or false", "fix it")
        constants[path_of(key)] = value
    return constants


def _entries(fields: Fields, key: str) -> Collection[tuple[str, Any]]:
    value = fields.take(key)
    if not isinstance(value, dict) or not 0 < len(value) <= MOST_CONSTANTS or not all(map(_is_text, value)):
        fields.refuse(key, value, "is no map of keys", f"write {{key: value}}, at most {MOST_CONSTANTS}")
        return []
    return value.items()


def _is_text(key: Any) -> bool:
    return isinstance(key, str) and bool(key.strip())


def _count(fields: Fields, key: str, value: float) -> int:
    if not (value == value and value.is_integer() and 0 < value <= 256):
        fields.refuse(f"state.{key}", value, "is no number of joints", "say how many numbers this key has")
        return 1
    return int(value)
