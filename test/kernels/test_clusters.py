"""The next entry of a table is launched where the clusters of the first do not run at once."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vla_accel_ros.kernels import ops as kernel_ops
from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.cuda.compiling import Kernel, clusters_of
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import Hopper, TritonOps, project_shape
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.tuning import Table

FIRST, NEXT = (Config(64, 64, 64, split, 8, 8, "cuda") for split in (6, 4))
A, WEIGHT = torch.zeros(1, 51, 4096), torch.zeros(1024, 4096)
X = torch.zeros(1, 51, 1024)
STREAM = 7


class Driver:
    """Stands for the driver of a GPU: `most` clusters of a number of blocks, by stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: dict[tuple[int, int], int]) -> None:
        from cuda.bindings import driver

        self.most, self.asked, self.launched = most, list[tuple[int, int]](), list[int]()
        for name in ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelSetAttribute"):
            monkeypatch.setattr(driver, name, lambda *_: (0, 1))
        monkeypatch.setattr(driver, "cuOccupancyMaxActiveClusters", self._most)
        monkeypatch.setattr(driver, "cuLaunchKernelEx", self._launch)
        monkeypatch.setattr(compiling, "compiled", lambda *_: b"")
        current = SimpleNamespace(cuda_stream=STREAM)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: current)

    def _most(self, function: object, config: Any) -> tuple[int, int]:
        blocks = config.attrs[0].value.clusterDim.x
        self.asked.append((int(config.hStream), blocks))
        return 0, self.most[int(config.hStream), blocks]

    def _launch(self, config: Any, *_: object) -> tuple[int]:
        self.launched.append(config.attrs[0].value.clusterDim.x)
        return (0,)


def ops_of(gpu: Gpu) -> TritonOps:
    """Ops whose project launches a kernel of 16 clusters."""
    key = project_shape(A, WEIGHT).key
    ops = TritonOps(torch.device("cpu"), Table(gpu, hopper={key: FIRST}, smaller={key: NEXT}))
    kernel = Kernel("products", "product", {}, torch.device("cuda", 0), 288, 200_000)

    def launch(*_: object, config: Config, pdl: bool = False) -> None:
        kernel.launch((16 * config.split, 1, 1), (), pdl, config.split)

    ops.hopper["project"] = Hopper(lambda *_, config: True, launch)
    return ops


@pytest.mark.parametrize(
    ("gpu", "stream", "most", "blocks"),
    [
        (Gpu(132, 90, of_all=132), 0, {6: 17, 4: 30}, 6),
        (Gpu(132, 90, of_all=132), 0, {6: 16, 4: 30}, 6),
        (Gpu(132, 90, of_all=132), 0, {6: 15, 4: 30}, 4),
        (Gpu(132, 90, of_all=132), 0, {6: 15, 4: 15}, 6),
        (Gpu(114, 90, of_all=132), STREAM, {6: 15, 4: 20}, 4),
        (Gpu(64, 90, of_all=132), STREAM, {6: 8, 4: 16}, 6),
    ],
    ids=["room", "just", "next", "neither", "partition", "partition too small in any case"],
)
def test_project_launches_the_first_entry_whose_clusters_run_at_once(
    gpu: Gpu,
    stream: int,
    most: dict[int, int],
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    kernel_ops.warn_once.cache_clear()
    driver = Driver(monkeypatch, {(stream, size): number for size, number in most.items()})
    ops = ops_of(gpu)
    for _ in range(3):
        ops.project(A, WEIGHT, X)
    assert driver.launched == [blocks] * 3
    assert len(driver.asked) == len(set(driver.asked)), "the driver is asked once"
    waves = [size for size in (6, 4) if most[size] < 16 and 16 * size <= gpu.processors]
    assert len(caplog.messages) == len(waves), "each is told once"
    for message, size in zip(caplog.messages, waves, strict=True):
        assert "project/64/1024/4096/float32" in message and f"16 clusters of {size} blocks" in message


def test_a_trial_launches_nothing_and_tells_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, {(0, 4): 30})
    kernel = Kernel("tiles", "product", {}, torch.device("cuda", 0), 288, 200_000)
    launch = partial(kernel.launch, (8, 6, 2), (), False, 4)
    assert clusters_of(launch) == (kernel, 4, 24)
    assert not driver.launched
    launch()
    assert driver.launched == [4]
