"""A GPU in numbers, each with its source and relative error; from a YAML file of devices/ or a path.

A file has `name`, whole numbers, and `numbers`: each {value, source, from, within}. A file without its own
`gemm` may have `like`: another file whose measured products correct the model. source is measured (here),
published (by a named other), datasheet, or derived (from another number, with the reason); `within` is the
relative error. The `modes` of a Jetson scale clock, memory and SMs. `vla plan --measure` writes such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import yaml

from vla_accel_ros.contract.files import bounded_yaml
from vla_accel_ros.planning.operations import BYTES, GATED, PACKED, ROWS, SDPA

FOLDER = Path(__file__).parent / "devices"
SOURCES = ("measured", "published", "datasheet", "derived")
NUMBERS = {
    "bandwidth_gb_s": "memory bandwidth that a kernel reaches, GB/s",
    "bf16_tflops": "rate of resident bfloat16 tiles, TFLOP/s, without launches",
    "fp8_tflops": "rate of resident float8 tiles, TFLOP/s, without launches",
    "int8_tflops": "rate of resident int8 tiles, TFLOP/s, without launches",
    "fp4_tflops": "rate of resident 4-bit tiles, TFLOP/s, without launches",
    "int8_rows_tflops": "rate of products of int8 rows (precision w8a8), TFLOP/s, see planning.rows",
    "rows_chunk_us": "least time of a block of 8-bit rows for a chunk of the inner dimension, us",
    "fp32_tflops": "rate of exact float32 products, TFLOP/s",
    "sustained_share": "share of the rate of tiles that large products sustain",
    "start_us": "time of a product in a graph, besides its tiles and bytes, us",
    "narrow_start_us": "time of a product for few rows, besides its weights, us",
    "narrow_share": "share of the bandwidth at which a product for few rows reads weights",
    "attention_share": "share of the bfloat16 rate that attention reaches if its blocks fill the device",
    "pass_start_us": "time of a pass over rows in a graph, besides its bytes, us",
    "plain_start_us": "time of a plain torch operation on few rows in a graph, besides its bytes, us",
    "overlap_share": "time of a chain of launches for few rows, as a share of their sum",
    "widen_int8_g_s": "int8 or fp8 weights that few-row products dequantise, 10^9 a second",
    "widen_int4_g_s": "int4 weights that few-row products dequantise, 10^9 a second",
    "frame_us": "host time around a frame's and a chunk's launches, us",
    "context_gb": "memory of the CUDA context and its libraries, GB",
}
OPTIONAL = ("fp8_tflops", "int8_tflops", "fp4_tflops", "int8_rows_tflops", "rows_chunk_us")
"""Numbers that a file may lack: the device does not multiply that dtype, or it was not measured."""


@dataclass(frozen=True)
class Number:
    """A value, its source, its origin in words, and its relative error."""

    value: float
    source: str
    words: str
    within: float

    def scaled(self, factor: float) -> Number:
        """Return the number times a factor."""
        return replace(self, value=self.value * factor)


@dataclass(frozen=True)
class Mode:
    """A power mode: watts of the module, and its shares of clock, memory clock and SMs."""

    watts: float
    clock: float = 1.0
    memory: float = 1.0
    sms: float = 1.0


@dataclass(frozen=True)
class Shape:
    """A measured product [m, k] x [k, n]: microseconds in a graph, with weights not in cache. dtype sdpa or
    packed (planning.operations): an attention of m queries of all heads, n numbers in a head, k keys. dtype
    "int8 rows", "fp8 gated rows" and the like: this project's kernel of 8-bit rows, see planning.rows; n is
    that of the weights, so it includes gate and up."""

    m: int
    n: int
    k: int
    dtype: str
    us: float


@dataclass(frozen=True)
class Device:
    """numbers: by the names of NUMBERS. unified: the host and the GPU share memory. fast_memory: stacked
    memory, see engine.stages.precision. gemm: measured products and attentions, which correct the model near
    their shapes. like: a device with the same SMs, whose corrections are used if this one has no gemm; None =
    none."""

    name: str
    title: str
    sms: int
    memory_gb: float
    unified: bool
    fast_memory: bool
    capability: int
    watts: float
    numbers: Mapping[str, Number]
    modes: Mapping[str, Mode] = field(default_factory=dict)
    mode: str = ""
    gemm: tuple[Shape, ...] = ()
    like: Device | None = None

    def value(self, name: str) -> float:
        """Return a number's value. Raises ValueError if the device lacks it."""
        if name not in self.numbers:
            raise ValueError(f"{self.title} has no {name}: {NUMBERS[name]}.")
        return self.numbers[name].value

    def rate(self, dtype: str) -> float:
        """Return FLOP/s of resident tiles. Raises ValueError if the device does not multiply the dtype."""
        return 1e12 * self.value(f"{dtype}_tflops")

    def in_mode(self, mode: str) -> Device:
        """Return the device in a power mode. Raises ValueError, naming its modes, if it has no such mode."""
        if mode not in self.modes:
            raise ValueError(
                f"{self.title} has no power mode {mode!r}; it has {', '.join(self.modes) or 'none'}."
            )
        shares, numbers = self.modes[mode], {}
        for name, number in self.numbers.items():
            factor = 1.0
            if name.endswith("_tflops"):
                factor = shares.clock * shares.sms
            elif name == "bandwidth_gb_s":
                factor = shares.memory
            elif name.endswith(("start_us", "chunk_us")) and shares.clock > 0:
                factor = 1.0 / shares.clock
            numbers[name] = number.scaled(factor)
        sms = max(1, round(self.sms * shares.sms))
        return replace(self, numbers=numbers, sms=sms, watts=shares.watts, mode=mode, gemm=(), like=None)


def names() -> list[str]:
    """Return the names of the devices with a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Device:
    """Return a device by name, `NAME:MODE` for a power mode, or the path of a file.

    Raises ValueError, with one sentence, if the name is unknown or the file is malformed.
    """
    base, colon, mode = name.partition(":") if not Path(name).is_file() else (name, "", "")
    path = Path(base) if Path(base).is_file() else FOLDER / f"{base}.yaml"
    if not path.is_file():
        raise ValueError(f"no device {base!r}; there are {', '.join(names())}, or give a file.")
    try:
        data = bounded_yaml.load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no device file: {' '.join(str(error).split())}.") from error
    device = read(data, str(path))
    return device.in_mode(mode) if colon else device


def read(data: Any, where: str) -> Device:
    """Return the device in a file's content. Raises ValueError naming the file and the error."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} is no device file: it must be a mapping.")
    try:
        numbers = {name: _number(name, entry, where) for name, entry in data["numbers"].items()}
        missing = NUMBERS.keys() - numbers.keys() - set(OPTIONAL)
        if missing:
            raise ValueError(f"{where} lacks {', '.join(sorted(missing))}.")
        return Device(
            name=str(data["name"]),
            title=str(data["title"]),
            sms=int(_amount(data, "sms", where, whole=True)),
            memory_gb=_amount(data, "memory_gb", where),
            unified=bool(data["unified"]),
            fast_memory=bool(data["fast_memory"]),
            capability=int(_amount(data, "capability", where, whole=True)),
            watts=_amount(data, "watts", where),
            numbers=numbers,
            modes={
                str(name): _mode(entry, f"{where}, mode {name}")
                for name, entry in (data.get("modes") or {}).items()
            },
            gemm=tuple(_shape(entry, where) for entry in data.get("gemm") or ()),
            like=load(str(data["like"])) if "like" in data else None,
        )
    except KeyError as error:
        raise ValueError(f"{where} is no device file: it lacks {error.args[0]!r}.") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{where} is no device file: {error}.") from error


def _number(name: str, given: Any, where: str) -> Number:
    if name not in NUMBERS:
        raise ValueError(f"{where} has the number {name}, which is not known; use {', '.join(NUMBERS)}.")
    value, source, within = _float(given["value"]), given["source"], _float(given["within"])
    if source not in SOURCES or not 0 < value < inf or not 0 <= within < 1:
        raise ValueError(
            f"{where}: {name} is {given['value']} from {source!r} within {given['within']}; give a positive "
            f"number, one of {', '.join(SOURCES)}, and a share below 1."
        )
    return Number(value, source, str(given["from"]), within)


def _mode(given: Any, where: str) -> Mode:
    mode = Mode(**given)
    return Mode(**{name: _amount(vars(mode), name, where) for name in vars(mode)})


def _shape(given: Any, where: str) -> Shape:
    shape = Shape(*given)
    where = f"{where}, gemm {given}"
    m, n, k = (int(_amount(vars(shape), name, where, whole=True)) for name in ("m", "n", "k"))
    dtype, _, by = str(shape.dtype).partition(" ")
    if shape.dtype not in (SDPA, PACKED) and (dtype not in BYTES or by not in ("", ROWS, GATED)):
        raise ValueError(f"{where}: dtype is {shape.dtype!r}; use {', '.join((*BYTES, SDPA, PACKED))}.")
    return Shape(m, n, k, shape.dtype, _amount(vars(shape), "us", where))


def _amount(data: Mapping[str, Any], name: str, where: str, whole: bool = False) -> float:
    """Return a positive number of a file. Raises KeyError if it is not there."""
    value = _float(data[name])
    if not 0 < value < inf or (whole and value % 1):
        raise ValueError(
            f"{where}: {name} is {data[name]!r}; give a positive {'whole ' if whole else ''}number."
        )
    return value


def _float(value: Any) -> float:
    """Return a number of a YAML file, which takes 1e3 for a text; NaN for anything else."""
    try:
        return nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return nan


_OTHERS = {"Laptop", "D", "Ti", "SUPER"}
"""Words of cards that are not those of the number before them."""


def named_like(gpu: str) -> str | None:
    """Return the device file for a GPU's CUDA name; None if there is none.

    Jetsons have none: their CUDA name does not say which module or power mode it is.
    """
    words = set(gpu.replace("-", " ").split())
    for name in names():
        word = name.split("-")[-1].upper()
        if not name.startswith(("orin", "thor")) and word in words and not words & _OTHERS:
            return name
    return None
