"""Sizes of networks: how they are read from JSON and checked, and the sizes of pi0 and pi0.5.

All other modules take their shapes from here, so a 6 M parameter policy, a test model of a few thousand
parameters and the published 3.3 B one share one code. Sizes are frozen: a model is built once for them. Their
JSON form is stored in the checkpoint's `config.json` under the key `vla_accel_ros`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest

_Part = TypeVar("_Part")


TRAINED_AS = "trained_as"
"""Field beside our sizes of pi0 and pi0.5 with the settings of their training, see models.pi.training; the
parameter and argument of that name have the user's word for them."""

MOST: dict[str, int] = {
    "depth": 512,
    "width": 1 << 16,
    "mlp": 1 << 18,
    "heads": 1024,
    "kv_heads": 1024,
    "head_dim": 4096,
    "image_size": 4096,
    "patch": 4096,
    "vocab": 1 << 22,
    "action_vocab": 1 << 22,
    "horizon": 4096,
    "max_prompt": 1 << 16,
    "action_dim": 4096,
    "state_dim": 4096,
}
"""Upper limits that no network here comes near: layer lists and embeddings of these sizes are built before
the weight files can show that they do not exist. The largest published models have 126 layers of width
16384."""
_MOST_OTHERS = 1 << 20
_SHOWN = 1 << 62


def check_whole(config: Any, where: str, or_zero: Collection[str] = ()) -> None:
    """Raise ValueError unless every field of type int is a whole number from 1 to what MOST allows; from 0
    for the fields `or_zero`."""
    for field in fields(config):
        if field.type != "int":
            continue
        value, smallest = getattr(config, field.name), 0 if field.name in or_zero else 1
        largest = MOST.get(field.name, _MOST_OTHERS)
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            raise ValueError(
                f"{where}.{field.name} is {value!r}; it must be a whole number of at least {smallest}."
            )
        if value > largest:
            shown = value if value < _SHOWN else "beyond 2^62"
            raise ValueError(f"{where}.{field.name} is {shown}; no model here has more than {largest}.")


def check_expert(prefix: GemmaConfig, expert: GemmaConfig) -> None:
    """Raise ValueError unless the action expert can attend to the prefix and has an even width for the time
    embedding."""
    for name in ("depth", "kv_heads", "head_dim", "heads"):
        if getattr(prefix, name) != getattr(expert, name):
            raise ValueError(
                f"prefix.{name} {getattr(prefix, name)} differs from expert.{name} "
                f"{getattr(expert, name)}; the expert attends to the prefix, make them equal."
            )
    if expert.width % 2:
        raise ValueError(f"expert.width {expert.width} is odd; the time embedding needs an even one.")


def read_names(value: Any) -> tuple[str, ...]:
    """The cameras in JSON. Raises ValueError for anything but a list of names."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"config.image_names is {value!r}; it must be a list of names.")
    return tuple(value)


def whole_numbers(value: Any, where: str) -> tuple[int, ...]:
    """Return a list of whole numbers from 0 as a tuple. Raises ValueError for anything else."""
    if not isinstance(value, list | tuple) or not all(
        type(number) is int and number >= 0 for number in value
    ):
        raise ValueError(f"{where} is {value!r}; it must be a list of whole numbers.")
    return tuple(value)


class Sizes:
    """Of a whole network, a dataclass: its JSON form. ABSENT: values of fields that older folders lack.
    BESIDE: names that are there, too, and are no sizes."""

    ABSENT: ClassVar[Mapping[str, Any]] = {}
    BESIDE: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of numbers, strings and lists."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls: type[_Sizes], data: Any) -> _Sizes:
        """Inverse of to_json. Raises ValueError naming missing or unknown fields."""
        if isinstance(data, dict):
            data = {**cls.ABSENT, **{name: value for name, value in data.items() if name not in cls.BESIDE}}
        return _read(cls, data, "config")


_Sizes = TypeVar("_Sizes", bound=Sizes)


def _read(cls: type[_Part], data: Any, where: str) -> _Part:
    """Return a part of sizes, by the fields of its class. where: its name in errors, such as
    "config.vision"."""
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    values, kinds = dict(data) if isinstance(data, dict) else {}, get_type_hints(cls)
    if set(values) != names:
        raise ValueError(
            f"{where} must have exactly the fields {sorted(names)}: missing {sorted(names - set(values))}, "
            f"unknown {sorted(set(values) - names)}."
        )
    for name, value in values.items():
        kind, place = kinds[name], f"{where}.{name}"
        if isinstance(kind, type) and is_dataclass(kind):
            values[name] = _read(kind, value, place)
        elif kind == tuple[int, ...]:
            values[name] = whole_numbers(value, place)
        elif kind == tuple[str, ...]:
            values[name] = read_names(value)
        elif get_origin(kind) is tuple and isinstance(value, list):
            values[name] = tuple(value)
        elif kind is bool and not isinstance(value, bool):
            raise ValueError(f"{place} is {value!r}; write true or false.")
    return cls(**values)


def check_image_names(names: tuple[str, ...]) -> None:
    """Raise ValueError unless there is at least one camera, and no name twice."""
    if not names or len(set(names)) != len(names):
        raise ValueError(f"image_names {names} must be one or more different names.")


IMAGE_NAMES = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""The camera names of the published pi0 and pi0.5 checkpoints, in prefix order."""


@dataclass(frozen=True)
class VisionConfig:
    """A SigLIP encoder: square images of `image_size` pixels cut into `patch` x `patch` patches."""

    width: int
    depth: int
    mlp: int
    heads: int
    image_size: int
    patch: int

    def __post_init__(self) -> None:
        check_whole(self, "vision")
        if self.width % self.heads:
            raise ValueError(f"vision.width {self.width} is not a multiple of vision.heads {self.heads}.")
        if self.image_size % self.patch:
            raise ValueError(
                f"vision.image_size {self.image_size} is not a multiple of vision.patch {self.patch}."
            )

    @property
    def tokens(self) -> int:
        """Tokens of one image."""
        return (self.image_size // self.patch) ** 2


@dataclass(frozen=True)
class GemmaConfig:
    """A Gemma decoder stack. `heads` query heads share `kv_heads` key/value heads of `head_dim`."""

    width: int
    depth: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        check_whole(self, "gemma")
        if self.heads % self.kv_heads:
            raise ValueError(f"gemma.heads {self.heads} is not a multiple of gemma.kv_heads {self.kv_heads}.")
        if self.head_dim % 2:
            raise ValueError(f"gemma.head_dim {self.head_dim} is odd; rotary positions need an even one.")


@dataclass(frozen=True)
class LlamaConfig(GemmaConfig):
    """A Llama decoder stack: the sizes of GemmaConfig, and the epsilon of its norms."""

    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.norm_eps, float) or not 0 < self.norm_eps < 1:
            raise ValueError(f"llama.norm_eps is {self.norm_eps!r}; it must be between 0 and 1.")


@dataclass(frozen=True)
class BlocksConfig:
    """A stack of blocks with full attention, see layers.dit."""

    width: int
    depth: int
    mlp: int
    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        check_whole(self, "blocks", or_zero=("depth",))


@dataclass(frozen=True)
class PiConfig(Sizes):
    """A whole policy network.

    kind: "pi0" (the state is a suffix token) or "pi05" (state in the prompt, time modulates the norms).
    prefix, expert: the two Gemma stacks; they share depth and head shapes, because one attends to the other.
    action_dim, state_dim: padded sizes the network sees; a robot with fewer joints is zero-padded.
    horizon: actions in a chunk. max_prompt: most language tokens in a prompt.
    image_names: the cameras in prefix order.
    """

    kind: str
    vision: VisionConfig
    prefix: GemmaConfig
    expert: GemmaConfig
    vocab: int
    action_dim: int
    state_dim: int
    horizon: int
    max_prompt: int
    image_names: tuple[str, ...]

    BESIDE: ClassVar[tuple[str, ...]] = (TRAINED_AS,)

    def __post_init__(self) -> None:
        if self.kind not in ("pi0", "pi05"):
            raise ValueError(f"kind is '{self.kind}'; use 'pi0' or 'pi05'.")
        check_whole(self, "config")
        check_expert(self.prefix, self.expert)
        check_image_names(self.image_names)

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests; pi0 takes a newer state with every chunk."""
        seen = Leaf("seen", (len(self.image_names) * self.image_tokens, self.prefix.width))
        hidden = Leaf("hidden", (self.prefix.width,))
        state = ("state",) if self.kind == "pi0" else ()
        return Chain(
            (
                MicroRequest("encode", ("pixels",), (seen,)),
                MicroRequest("prefill", ("seen", "words"), (Leaf("kv"), hidden)),
                MicroRequest("denoise", ("x", "t", "kv", *state), (Leaf("actions"),), kept="step"),
                MicroRequest("decode", ("kv", "hidden"), (Leaf("answer"),), kept="step"),
            )
        )

    @property
    def image_tokens(self) -> int:
        """Prefix tokens of one image."""
        return self.vision.tokens

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a prefix: every camera and the longest prompt."""
        return len(self.image_names) * self.image_tokens + self.max_prompt


_SO400M = VisionConfig(width=1152, depth=27, mlp=4304, heads=16, image_size=224, patch=14)
_GEMMA_2B = GemmaConfig(width=2048, depth=18, mlp=16384, heads=8, kv_heads=1, head_dim=256)
_GEMMA_300M = GemmaConfig(width=1024, depth=18, mlp=4096, heads=8, kv_heads=1, head_dim=256)

PI0 = PiConfig("pi0", _SO400M, _GEMMA_2B, _GEMMA_300M, 257152, 32, 32, 50, 48, IMAGE_NAMES)
PI05 = PiConfig("pi05", _SO400M, _GEMMA_2B, _GEMMA_300M, 257152, 32, 32, 50, 200, IMAGE_NAMES)
