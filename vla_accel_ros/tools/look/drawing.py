"""Draws one moment as a PNG: what the page shows, for a ticket or a terminal without a browser."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vla_accel_ros.tools.demo.picture import BAD, COLOURS, DIM, drawn

COLUMNS, LETTERS = 4, 52
MOST_LINES = 24
"""Of words, which would cover the joints below."""


def write(path: Path, moment: dict[str, Any]) -> None:
    """Draw it. moment: of server.Look. Raises OSError if the file cannot be written."""
    joints, cameras = moment["robot"]["joints"], moment["cameras"]
    rows = -(-len(joints) // COLUMNS)
    with drawn(path, (15, 3.6 + 2.0 * rows), 100) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=(3.2, 2.0 * rows))
        axes = np.ravel([*above.subplots(1, 2 * len(cameras) + 1), *below.subplots(rows, COLUMNS).flat])
        for axis in (*axes[: 2 * len(cameras) + 1], *axes[2 * len(cameras) + 1 + len(joints) :]):
            axis.set_axis_off()
        for i, camera in enumerate(cameras):
            _image(axes[2 * i], camera.get("camera"), f"{camera['name']}: {camera['problem'] or 'camera'}")
            _image(axes[2 * i + 1], camera.get("network"), f"{camera['image']}: network")
        words, *plots = axes[2 * len(cameras) :]
        text = words.text(0.0, 1.0, _words(moment), va="top", fontsize=8, transform=words.transAxes)
        text.set_in_layout(False)  # long words would leave no room to the pictures
        for joint, (axis, (name, lower, upper)) in enumerate(zip(plots, joints)):
            axis.set_title(f"{name}  {lower:.2f}..{upper:.2f}", fontsize=8)
            _joint(axis, moment, joint, (lower, upper))


def _image(axis: Any, url: str | None, title: str) -> None:
    axis.set_title(title, fontsize=8)
    if url:
        data = np.frombuffer(base64.b64decode(url.partition(",")[2]), np.uint8)
        axis.imshow(np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))[..., ::-1])


def _words(moment: dict[str, Any]) -> str:
    answer, chunks = moment["answer"], moment["chunks"]
    lines = [
        f"{moment['robot']['name']}: {moment['state'] or 'no motion told'}",
        *moment["reasons"],
        f"told “{moment['instruction']}”, says “{answer['text'] if answer else ''}”",
        f"chunk {chunks[-1]['age_s']:.2f} s old" if chunks else "no chunk",
        *(
            f"{name} {hz or 0:.1f} Hz, p50 {1e3 * (p50 or 0):.0f} ms"
            for name, hz, _, p50, *_ in moment["loops"]
        ),
        *(f"{name}: {words}" for name, level, words, _ in moment["lines"] if level),
    ]
    wrapped = [part for line in lines for part in textwrap.wrap(line, LETTERS, max_lines=3)]
    if len(wrapped) > MOST_LINES:
        wrapped[MOST_LINES - 1 :] = ["and more: vla doctor"]
    return "\n".join(wrapped)


def _joint(axis: Any, moment: dict[str, Any], joint: int, limits: tuple[float, float]) -> None:
    """Draw one joint: measured (broad), commanded and sent (thin), the last chunks' actions, limits."""
    axis.plot(*_line(moment["measured"], "positions", joint), COLOURS[0], linewidth=4.0, alpha=0.3)
    axis.plot(*_line(moment["commanded"], "positions", joint), COLOURS[0], linewidth=1.2)
    for sent in moment["sent"]:
        if joint in sent["joints"]:
            axis.plot(*_line(sent, "positions", sent["joints"].index(joint)), COLOURS[0], linewidth=0.8)
    for age, chunk in enumerate(reversed(moment["chunks"]), 1):
        times, values = _line(chunk, "actions", joint)
        committed, executed = chunk["committed"], chunk["executed"]
        for part, fill in ((slice(0, committed), "full"), (slice(committed, executed), "none")):
            dots = {"color": COLOURS[3], "markersize": 3, "fillstyle": fill, "alpha": 1 / age}
            axis.plot(times[part], values[part], "o", **dots)
    low, high = axis.get_ylim()
    axis.hlines(
        [x for x in limits if low < x < high], *axis.get_xlim(), color=BAD, linestyle="--", linewidth=0.8
    )
    axis.axvline(0.0, color=DIM, linewidth=0.8)
    axis.tick_params(labelsize=7)


def _line(packed: Mapping[str, Any], key: str, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of a row of what scene.packed wrote; none if there is none."""
    times, values = (np.frombuffer(base64.b64decode(packed[name]), "<f4") for name in ("times", key))
    return times, values.reshape(-1, len(times))[row] if len(times) else values
