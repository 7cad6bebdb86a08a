"""The bundled policy's actions with this GPU's kernels, in precisions with 8-bit rows, against its exact
engine on the same GPU and against the plain network in float32.

Observations and calibration are files: `record` makes them where the simulation is, and they may be copied to
a GPU without it. Without a GPU the kernels' references compute everything, which only shows that it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from precision import chunks, frames

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.calibration import read
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.types import Observation

DTYPES = ("bfloat16", "float32")


def record(path: Path, count: int) -> None:
    """Record this many observations of demonstrations in the simulation, and write them."""
    seen = list(frames(count))
    images = {f"image {name}": np.stack([one.images[name] for one in seen]) for name in seen[0].images}
    np.savez_compressed(
        path,
        state=np.stack([one.state for one in seen]),
        instruction=np.array([one.instruction for one in seen]),
        **images,  # type: ignore[arg-type]  # one argument each
    )


def recorded(path: Path, most: int) -> list[Observation]:
    """Read at most this many observations of such a file."""
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    images = {name.removeprefix("image "): found[name] for name in found if name.startswith("image ")}
    return [
        Observation({name: each[row] for name, each in images.items()}, state, str(words), row + 1)
        for row, (state, words) in enumerate(zip(found["state"], found["instruction"], strict=True))
    ][:most]


def ways(calibration: Path) -> dict[str, dict[str, Any]]:
    """Return the engine options of each row, by its name."""
    options = {precision: {"precision": precision} for precision in ("exact", "fp8", "w8a8")}
    return {**options, "w8a8, calibrated": {"precision": "w8a8", "calibration": str(calibration)}}


def measure(
    model: Path, calibration: Path, observations: list[Observation], dtypes: Sequence[str] = DTYPES
) -> dict[str, Any]:
    """Errors of each way in each dtype. Chunks of an observation begin with the same noise in all. A way that
    the device refuses or fails at has the reason in its row."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    states = np.stack([one.state for one in observations])[:, None]
    plain = load_policy(model, device, torch.float32)
    wanted = chunks(Engine(plain, step_dt_s=1 / 30), observations)
    rows: list[dict[str, Any]] = []
    for dtype in dtypes:
        policy = load_policy(model, device, getattr(torch, dtype))
        exact = None
        for name, options in ways(calibration).items():
            own = {"dtype": dtype, "precision": name}
            try:
                engine = Engine(policy, step_dt_s=1 / 30, fast=True, **options)
                made = chunks(engine, observations)
            except Exception as fault:  # whatever a compiler, a driver or a library says
                if exact is None:
                    raise
                rows.append({**own, "refused": f"{type(fault).__name__}: {fault}".splitlines()[0]})
                print(f"{dtype}, {name}: {rows[-1]['refused']}", flush=True)
                continue
            exact = made if exact is None else exact
            rows.append(
                {
                    **own,
                    "to_exact": _apart(made, exact, states),
                    "to_float32": _apart(made, wanted, states),
                    "captured": device.type == "cuda",
                    "copies_mb": round(engine.runner.copied_bytes / 1e6, 2),
                }
            )
            print(f"{dtype}, {name}: {rows[-1]['to_exact']}", flush=True)
            del engine
    said = read(calibration, plain.model)
    return {
        "computed by": "the kernels" if device.type == "cuda" else "the kernels' references on a CPU",
        "frames": len(observations),
        "moved_rms_mrad": round(1e3 * float(np.sqrt(np.mean((wanted - states) ** 2))), 2),
        "stay_exact": said.exact(),
        "rows": rows,
    }


def _apart(made: np.ndarray, wanted: np.ndarray, states: np.ndarray) -> dict[str, float]:
    """Actions [N, H, D]; of how far they move from joints [N, 1, D], the cosine of all and the worst of an
    observation."""
    off = made - wanted
    pairs = [(one.ravel(), other.ravel()) for one, other in zip(made - states, wanted - states, strict=True)]
    found = {
        "rms_mrad": 1e3 * float(np.sqrt(np.mean(off**2))),
        "max_mrad": 1e3 * float(np.abs(off).max()),
        "over_moved": float(np.linalg.norm(off) / np.linalg.norm(wanted - states)),
    }
    cosines = {"cosine": _cosine(made - states, wanted - states), "worst": min(_cosine(*p) for p in pairs)}
    rounded = {name: float(f"{value:.4g}") for name, value in found.items()}
    return {**rounded, **{name: float(f"{value:.7f}") for name, value in cosines.items()}}


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Return the table in Markdown; rms and largest error in mrad."""
    about = f"{found['computed by']}, {found['frames']} frames, moved {found['moved_rms_mrad']} mrad"
    yield f"| {about} | rms, max to exact | over moved | cosine, worst | rms, max to float32 |"
    yield "|---|---|---|---|---|"
    for row in found["rows"]:
        name = f"{row['dtype']}, {row['precision']}"
        if "refused" in row:
            yield f"| {name} | {row['refused']} |  |  |  |"
            continue
        to, plain = row["to_exact"], row["to_float32"]
        yield (
            f"| {name} | {to['rms_mrad']:.2f}, {to['max_mrad']:.1f} | {100 * to['over_moved']:.3f} % | "
            f"{to['cosine']:.6f}, {to['worst']:.6f} | {plain['rms_mrad']:.2f}, {plain['max_mrad']:.1f} |"
        )
