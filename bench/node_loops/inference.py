"""The model's process: what nodes/inference does, with a pipe and slots in place of topics.

One thread takes handles and joints into the Ingest, like the node's executor; vision, actions and text stream
through one engine (engine/streaming/streaming.py), and every chunk is written into the slot as by the node.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from full_size.gpu import alone, gpu_id
from full_size.streamed import ANSWER_TOKENS, DEADLINES_S
from grids.sizes import small
from node_loops.running import Port
from node_loops.setting import JOINTS_HZ, Setting
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.chunk_record import ChunkWriter
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.streaming.ports import Pace, Ports
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.sensing.force_slot import ForceReader
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.sensing.slot import SlotWriter
from vla_accel_ros.tools.bench.policies import random_observation, random_policy
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.types import Chunk, Observation

KINDS = {"pi0": PI0, "pi05": PI05}
IMAGES = ("base", "left", "right")


def config_of(kind: str, tiny: bool) -> PiConfig:
    """Of the published size, or a CPU's."""
    return replace(small().staggered_model, kind=kind, image_names=IMAGES) if tiny else KINDS[kind]


def run(port: Port, setting: Setting, handles: Connection) -> dict[str, Any]:
    """Until the end. Raises whatever the stream reported as an error."""
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    device = torch.device("cpu" if setting.small else "cuda")
    with alone(gpu_id(device)):
        node = _Inference(setting, device)
        keep_loaded()
        port.ready(provenance=provenance(), engine=vars(node.config))
        return node.spin(port, handles)


class _Inference:
    """Its inputs, its stream, and what is logged: times of taken frames, prefixes and chunks."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        self._contract = Contract.load(setting.contract)
        dtype = torch.float32 if setting.small else torch.bfloat16
        policy = random_policy(config_of(setting.kind, setting.small), device, dtype)
        views = len(self._contract.cameras)
        nothing = random_observation(policy, views, setting.prompt, setting.size)
        engine = Engine(policy, **setting.engine, step_dt_s=self._contract.chunk.step_dt_s)
        engine.prepare([views], [setting.prompt])
        for _ in range(2):
            with engine.observe(nothing) as prefix:
                engine.act(prefix)
        self.config = engine.config
        self._motion = setting.motion
        self._ingest = Ingest(self._contract, page_lock=device.type == "cuda")
        self._ingest.instruct(nothing.instruction, "")
        self._joints = ForceReader(setting.joints)
        self._records = ChunkWriter(self._contract.action_names, "/inference")
        self._slot = SlotWriter(setting.chunks, self._records.most_bytes)
        ports = Ports(
            self._observe,
            self._ingest.observed,
            self._ingest.newest_state,
            self._on_chunk,
            lambda text: None,
            self._on_error,
            self._on_prefix,
            self._ingest.sets,
        )
        paces = {
            name: Pace(rate_hz, DEADLINES_S.get(name, 0.0))
            for name, rate_hz in setting.rates.items()
            if rate_hz
        }
        self._stream = Streaming(
            engine, ports, paces["vision"], paces["action"], paces.get("language"), ANSWER_TOKENS
        )
        self._times: dict[str, list[tuple[int, int]]] = {"came": [], "taken": [], "seen": [], "made": []}
        self._page_lock: dict[str, str] = {}
        self._errors: list[Exception] = []

    def spin(self, port: Port, handles: Connection) -> dict[str, Any]:
        """What the node's executor does."""
        names, sets = self._contract.joint_names, 0
        with closing(self._slot), closing(self._ingest):
            self._stream.start()
            try:
                while port.running and not self._errors:
                    if handles.poll(1.0 / JOINTS_HZ):
                        camera, handle = handles.recv()
                        self._ingest.handle(camera, handle, now_ns := time.time_ns())
                        if self._ingest.sets.count != sets:
                            sets = self._ingest.sets.count
                            self._times["came"].append((handle.stamp_ns, now_ns))
                    for stamp_ns, position in self._joints.read():
                        self._ingest.joints(names, position, stamp_ns, time.time_ns())
                        self._stream.joints_came()
            finally:
                self._stream.stop()
            for error in self._errors:
                raise error
            return self._log()

    def _log(self) -> dict[str, Any]:
        given_up, rings = self._stream.degradation, self._ingest.rings
        return {
            **{name: np.array(times, np.int64).reshape(-1, 2) for name, times in self._times.items()},
            "misses": {stats.name: stats.misses for stats in self._stream.stats()},
            "given_up": {
                "level": given_up.level,
                "chunks": sum(given_up.chunks.values()),
                "frames": sum(given_up.frames.values()),
            },
            "page_lock": self._page_lock,
            "lost": {camera: self._ingest.lost(camera) for camera in rings.cameras},
        }

    def _observe(self) -> Observation | None:
        observation = self._ingest.observe(now_ns := time.time_ns())
        if observation is not None:
            self._times["taken"].append((observation.stamp_ns, now_ns))
        return observation

    def _on_prefix(self, prefix: Prefix, observation: Observation) -> None:
        self._times["seen"].append((prefix.stamp_ns, time.time_ns()))
        if not self._page_lock:  # while the cameras are there
            rings = self._ingest.rings
            self._page_lock = {camera: rings.page_lock(camera).state for camera in rings.cameras}

    def _on_chunk(self, chunk: Chunk, inference_s: float) -> None:
        actions = self._contract.to_robot(self._motion * chunk.actions).astype(np.float32)
        self._slot.write(self._records.record(chunk, actions, inference_s), chunk.stamp_ns)
        self._times["made"].append((chunk.stamp_ns, time.time_ns()))

    def _on_error(self, loop: str, error: Exception) -> None:
        self._errors.append(error)
