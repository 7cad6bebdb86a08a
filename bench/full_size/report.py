"""Shows the results as a table and as bars, from the JSON alone, so that both can be made again anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STAGES = ("encode", "prefill", "denoise")
WAYS = ("ours", "compiled", "plain graph", "plain eager")
TITLES = {
    "ours": "ours",
    "compiled": "torch.compile",
    "plain graph": "plain torch, one CUDA graph",
    "plain eager": "plain torch, eager",
}


def table(document: dict[str, Any]) -> str:
    """A line for each case and way, in milliseconds, and one for each kernel, in microseconds."""
    lines = [
        f"{'':16}{'p50':>9}{'p99':>9}{'encode':>9}{'prefill':>9}{'denoise':>9}{'/roof':>7}{'error':>9}{'kernels':>9}"
    ]
    for case in document["cases"]:
        roof = case["roofline_ms"]
        lines.append(f"{case['kind']}, {case['views']} view{'s' * (case['views'] > 1)}")
        lines.append(
            f"  {'roofline':14}{roof['total']:9.2f}{'':9}"
            + "".join(f"{roof[stage]:9.2f}" for stage in STAGES)
        )
        for way in WAYS:
            if way in case:
                lines.append(f"  {way:14}{_figures(case[way], roof['total'])}{_beside(case[way])}")
    for check in document.get("kernels", []):
        lines.append(
            f"{check['kind']}, {check['keys']} keys, batch {check['batch']}: kernel, error, us, roofline us"
        )
        for name, row in check["kernels"].items():
            times = f"{row['us']:8.2f}{row['roofline_us']:8.2f}" if "us" in row else ""
            lines.append(f"  {name:18}{row['error']:10.2e}{times}")
    return "\n".join(lines)


def _figures(way: dict[str, Any], roof: float) -> str:
    if "none" in way:
        return f" none: {way['none']}"
    total = way.get("total", way)
    text = f"{total['p50_ms']:9.2f}{total['p99_ms']:9.2f}"
    text += "".join(f"{way[stage]['p50_ms']:9.2f}" if stage in way else f"{'':9}" for stage in STAGES)
    text += f"{total['p50_ms'] / roof:7.2f}"
    text += f"{way['error']:9.1e}" if "error" in way else f"{'':9}"
    return text + (f"{way['kernels']:9}" if "kernels" in way else "")


def _beside(way: dict[str, Any]) -> str:
    """What was measured in the same process, where that is another one than the other ways'."""
    beside = [f"{name} {figures['p50_ms']:.2f}" for name, figures in way.get("beside", {}).items()]
    return f"  (in the same process: {', '.join(beside)})" if beside else ""


def chart(document: dict[str, Any], path: Path) -> None:
    """Bars of the medians, ours in its stages, with the roofline as a line across each group; a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = document["cases"]
    figure, axes = plt.subplots(figsize=(1.6 + 1.5 * len(cases), 4.0), layout="constrained")
    width = 0.8 / len(WAYS)
    shades = dict(zip(STAGES, ("#1b6ca8", "#4d9fd6", "#a9d4f2"), strict=True))
    greys = dict(zip(WAYS[1:], ("#7a7a7a", "#a3a3a3", "#cccccc"), strict=True))
    for group, case in enumerate(cases):
        for index, way in enumerate(WAYS):
            if way not in case or "none" in case[way]:
                continue
            left, row = group + (index - (len(WAYS) - 1) / 2) * width, case[way]
            if way == "ours":
                below = 0.0
                for stage in STAGES:
                    height = row[stage]["p50_ms"]
                    axes.bar(left, height, width, bottom=below, color=shades[stage])
                    below += height
            else:
                below = row.get("total", row)["p50_ms"]
                axes.bar(left, below, width, color=greys[way])
            axes.text(left, below, f"{below:.1f}", ha="center", va="bottom", fontsize=7)
        axes.hlines(case["roofline_ms"]["total"], group - 0.42, group + 0.42, color="#c0392b", linewidth=1.5)
    for stage in STAGES:
        axes.bar(0, 0, color=shades[stage], label=f"ours: {stage}")
    for way in WAYS[1:]:
        if any(way in case for case in cases):
            axes.bar(0, 0, color=greys[way], label=TITLES[way])
    axes.plot([], [], color="#c0392b", label="roofline")
    names = [f"{case['kind']}\n{case['views']} view{'s' * (case['views'] > 1)}" for case in cases]
    axes.set_xticks(range(len(cases)), names)
    axes.set_ylabel("images to actions [ms], log scale")
    axes.set_yscale("log")
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    gpu = document.get("machine", {}).get("gpu", "unknown GPU")
    axes.set_title(f"{gpu}, bfloat16, chunk 50, {document['steps']} steps, batch 1", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
