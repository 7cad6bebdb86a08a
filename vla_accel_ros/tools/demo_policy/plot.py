"""The loss plot of a training run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

PANELS = {
    "flow": "flow matching loss",
    "text": "answer cross-entropy",
    "place": "localisation loss",
    "uv_error": "localisation error [image widths]",
}


def plot_loss(log: Path, picture: Path) -> None:
    """Reads the run's `loss.json` and writes a PNG: one panel a term, one colour a round, log scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    entries = json.loads(log.read_text())
    figure, axes = plt.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.2), constrained_layout=True)
    rounds = sorted({entry["round"] for entry in entries})
    for axis, (name, title) in zip(axes, PANELS.items()):
        for number in rounds:
            points = [(entry["step"], entry[name]) for entry in entries if entry["round"] == number]
            step, value = np.array(points).T
            axis.semilogy(step, value, linewidth=1, label=f"round {number:.0f}")
        axis.set(title=title, xlabel="step")
        axis.grid(True, which="both", alpha=0.25)
    if rounds:
        axes[0].legend()
    figure.savefig(picture, dpi=110)
    plt.close(figure)
