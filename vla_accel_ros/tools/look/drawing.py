"""Draws one moment as a PNG: what the page shows, for a ticket or a terminal without a browser."""

from __future__ import annotations

import base64
import textwrap
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vla_accel_ros.tools.demo.picture import COLOURS, DIM, INK, STYLE

COLUMNS = 4
LETTERS = 52


def write(path: Path, moment: dict[str, Any]) -> None:
    """Draw it. moment: of server.Look. Raises OSError if the file cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    joints, cameras = moment["robot"]["joints"], moment["cameras"]
    rows = -(-len(joints) // COLUMNS)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(15, 3.6 + 2.0 * rows), constrained_layout=True)
        above, below = figure.subfigures(2, 1, height_ratios=(3.2, 2.0 * rows))
        axes = np.ravel(above.subplots(1, 2 * len(cameras) + 1))
        for i, camera in enumerate(cameras):
            _image(axes[2 * i], camera.get("camera"), f"{camera['name']}: {camera['problem'] or 'camera'}")
            _image(axes[2 * i + 1], camera.get("network"), f"{camera['image']}: network")
        _words(axes[-1], moment)
        plots = np.ravel(below.subplots(rows, COLUMNS, sharex=True))
        for joint, axis in enumerate(plots):
            if joint < len(joints):
                _joint(axis, moment, joint, *joints[joint])
            else:
                axis.set_axis_off()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)
        plt.close(figure)


def _image(axis: Any, url: str | None, title: str) -> None:
    axis.set_axis_off()
    axis.set_title(title, fontsize=8)
    if url:
        data = np.frombuffer(base64.b64decode(url.partition(",")[2]), np.uint8)
        axis.imshow(np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))[..., ::-1])


def _words(axis: Any, moment: dict[str, Any]) -> None:
    answer, chunks = moment["answer"], moment["chunks"]
    lines = [
        f"{moment['robot']['name']}: {moment['state'] or 'no motion told'}",
        *moment["reasons"],
        f"told “{moment['instruction']}”",
        f"says “{answer['text'] if answer else ''}”",
        f"chunk {chunks[-1]['age_s']:.2f} s old" if chunks else "no chunk",
        *(
            f"{name} {hz or 0:.1f} Hz, p50 {1e3 * (p50 or 0):.0f} ms"
            for name, hz, _, p50, *_ in moment["loops"]
        ),
        *(f"{name}: {words}" for name, level, words, _ in moment["lines"] if level),
    ]
    axis.set_axis_off()
    axis.text(
        0.0,
        1.0,
        "\n".join(textwrap.fill(line, LETTERS, max_lines=3) for line in lines),
        va="top",
        fontsize=8,
        transform=axis.transAxes,
    )


def _joint(axis: Any, moment: dict[str, Any], joint: int, name: str, lower: float, upper: float) -> None:
    """Draw one joint: measured (broad), commanded and sent (thin), the last chunks' actions, limits."""
    for key, wide, alpha in (("measured", 4.0, 0.3), ("commanded", 1.2, 1.0)):
        times = _floats(moment[key]["times"])
        positions = _floats(moment[key]["positions"]).reshape(-1, max(len(times), 1))
        if len(times):
            axis.plot(times, positions[joint], color=COLOURS[0], linewidth=wide, alpha=alpha)
    for sent in moment["sent"]:
        if joint in sent["joints"]:
            times = _floats(sent["times"])
            positions = _floats(sent["positions"]).reshape(-1, len(times))
            axis.plot(times, positions[sent["joints"].index(joint)], color=COLOURS[0], linewidth=0.8)
    for age, chunk in enumerate(reversed(moment["chunks"])):
        times = _floats(chunk["times"])
        values = _floats(chunk["actions"]).reshape(-1, len(times))[joint]
        parts = (slice(0, chunk["committed"]), "full"), (slice(chunk["committed"], chunk["executed"]), "none")
        for part, fill in parts:
            axis.plot(
                times[part],
                values[part],
                "o",
                color=COLOURS[3],
                markersize=3,
                fillstyle=fill,
                alpha=1 / (1 + age),
            )
    low, high = axis.get_ylim()
    for limit in (lower, upper):
        if low - 0.3 < limit < high + 0.3:
            axis.axhline(limit, color="#dc2626", linestyle="--", linewidth=0.8)
    axis.axvline(0.0, color=DIM, linewidth=0.8)
    axis.set_title(f"{name}  {lower:.2f}..{upper:.2f}", fontsize=8, color=INK)
    axis.tick_params(labelsize=7)


def _floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")
