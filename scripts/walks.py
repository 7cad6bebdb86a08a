"""Through how many files of the package a thing goes: `python scripts/walks.py [--files]`.

Every call is traced while a walk is made on a CPU, by an engine or by both nodes in this process. A file is
on the walk if one of its functions gets the thing or one of its next forms (a message, a picture, a request,
a chunk, a trajectory), and passes it on or returns another form. *In all*: files that a call enters.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import rclpy
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]
# ruff: noqa: E402, E731
from builders import make_checkpoint, make_observation
from openvla_builders import make_openvla_folder, make_openvla_observation

from vla_accel_ros import Contract, Engine, load_policy
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.inference.node import InferenceNode
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.nodes.running.executor import DirectExecutor
from vla_accel_ros.nodes.sim_robot import SimRobotNode
from vla_accel_ros.nodes.trajectory.node import TrajectoryNode

PACKAGE = str(ROOT / "vla_accel_ros") + "/"
ROBOT = (PACKAGE + "sim/", PACKAGE + "nodes/sim", PACKAGE + "nodes/clients/")
FORMS = {
    "Image",
    "Observation",
    "Request",
    "MicroBatch",
    "Prefix",
    "Guidance",
    "Chunk",
    "ActionChunk",
    "String",
}
FORMS |= {"Trajectory", "JointTrajectory", "Answer", "LanguageOutput", "Checkpoint", "Policy"}
WORDED = {"String": "data", "Request": "question", "LanguageOutput": "prompt", "MicroBatch": "requests"}
"""Forms of a question, and where each has its words."""
QUESTION = "what do you see?"


class Walk:
    """words: text that is a form of the thing. asked: they are a question, with forms of its own."""

    def __init__(self, words: str, asked: bool) -> None:
        self._words, self._asked, self._holding = words, asked, set[FrameType]()
        self.through, self.entered = set[str](), set[str]()

    def trace(self, frame: FrameType, event: str, result: object) -> None:
        """A function is called, or returns."""
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE) or path.startswith(ROBOT):
            return
        if event == "return":
            if frame in self._holding and self.carries(result):
                self.through.add(path)
            self._holding.discard(frame)
        elif event == "call":
            self.entered.add(path)
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
            if any(self.carries(frame.f_locals.get(name)) for name in names if name != "self"):
                self._holding.add(frame)
                if (caller := frame.f_back) is not None and caller in self._holding:
                    self.through.add(caller.f_code.co_filename)

    def carries(self, value: Any, depth: int = 2) -> bool:
        """Whether this is a form of the thing, or holds one."""
        if isinstance(value, np.ndarray):
            return value.dtype == np.uint8 and value.ndim > 2 and not self._asked
        if isinstance(value, str | Path):
            return bool(self._words) and self._words in str(value)
        if isinstance(value, tuple | list | dict) and depth:
            items = list(value.values() if isinstance(value, dict) else value)[:8]
            return any(self.carries(item, depth - 1) for item in items)
        kind = type(value).__name__
        if self._asked:
            words = getattr(value, WORDED[kind], None) if kind in WORDED else None
            return kind == "Answer" or (words is not None and self.carries(words, depth))
        return kind in FORMS


walks = list[Walk]()  # that are made now


def profile(frame: FrameType, event: str, result: object) -> None:
    for walk in walks:
        walk.trace(frame, event, result)


def walked(work: Callable[[], object], words: str = "", asked: bool = False) -> Walk:
    walks.append(Walk(words, asked))
    sys.setprofile(profile)
    work()
    sys.setprofile(None)
    return walks.pop()


def engines(folder: Path) -> Iterator[tuple[str, Walk]]:
    openvla = Engine(load_policy(make_openvla_folder(folder / "openvla"), device="cpu"), step_dt_s=0.1)
    frame, checkpoint, guidance = (
        make_openvla_observation(),
        make_checkpoint(folder / "pi05"),
        Guidance(torch.zeros(6, 8), 1, 4),
    )
    yield "OpenVLA: observation -> chunk", walked(lambda: openvla.act(openvla.observe(frame)))
    yield "checkpoint path -> policy, pi0.5", walked(lambda: load_policy(checkpoint, "cpu"), str(checkpoint))
    engine = Engine(load_policy(checkpoint, device="cpu"), step_dt_s=0.1)
    prefix = engine.observe(make_observation())
    yield "guided chunk, plain torch", walked(lambda: engine.act(prefix, guidance=guidance))


def nodes() -> Iterator[tuple[str, Walk]]:
    settings = ("inference:autostart:=true", "trajectory:autostart:=true", f"inference:model:={demo_model()}")
    rclpy.init(args=["--ros-args", *(word for setting in settings for word in ("-p", setting))])
    threading.setprofile(profile)
    executor = DirectExecutor()
    for node in (SimRobotNode(), InferenceNode(), TrajectoryNode()):
        executor.add_node(node)

    def spin(done: Callable[[], object], longest_s: float = 120.0) -> None:
        until_s = time.monotonic() + longest_s
        while not done() and time.monotonic() < until_s:
            executor.spin_once(timeout_sec=0.1)

    with Operator(Contract.load(demo_contract())) as operator:
        spin(lambda: operator.measured)
        operator.instruct("reach the red block")
        spin(lambda: operator.sent)
        yield "image -> `JointTrajectory`", walked(lambda: spin(lambda: False, longest_s=5.0))
        operator.ask(QUESTION)
        answered = lambda: any(QUESTION in str(answer) and answer.text for answer in operator.answers)
        yield "question -> answer", walked(lambda: spin(answered), QUESTION, asked=True)


if __name__ == "__main__":
    print("| walk | through | in all |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, walk in [*engines(Path(folder)), *nodes()]:
            print(f"| {name} | {len(walk.through)} | {len(walk.entered)} |", flush=True)
            for path in sorted(walk.through) if "--files" in sys.argv else ():
                print("   ", path.removeprefix(PACKAGE))
