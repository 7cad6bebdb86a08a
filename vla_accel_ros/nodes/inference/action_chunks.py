"""The service get_action_chunk, with MoveIt Pro's definition: one chunk for who executes it by other means.

A request has images, joints and words, or leaves the images out: then the newest of the robot's topics count.
Its frame has a robot name of its own in the engine, so that the stream of chunks never acts on it, and gives
its memory back at once. One request is computed at a time, in a thread, beside the stream; others wait, and
the node goes on receiving. previous_action_chunk is continued as in real-time chunking. The chunk is within
the joints' ranges; whoever executes it answers for speed and acceleration. The speeds of a base [m/s, rad/s]
are beside the joints' positions by the contract's names (base.linear.x), each within its range.

MoveIt Pro calls it by its own type, which is served where that package (moveit_pro_ml_msgs) is installed, and
ours, which has the same fields, elsewhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from rclpy.serialization import serialize_message
from rclpy.task import Future
from std_msgs.msg import Float64MultiArray, MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_accel_msgs.srv import GetActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.plausibility import MOST_ACTIONS
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.micro_requests import DENOISE
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.sensing.cameras.image import check, image_view, write_rgb
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.types import Chunk, Observation

SERVICE = "get_action_chunk"
_MOST_IMAGES = 16


def service_kind() -> Any:
    """MoveIt Pro's type of the service; ours where that is not installed."""
    try:
        return importlib.import_module("moveit_pro_ml_msgs.srv").GetActionChunk
    except ImportError:
        return GetActionChunk


OTHERS = ("chunk", "teleop", "deadman")
"""Streams of a robot that a policy does not see."""


class ActionChunks:
    """The service of a node, from its configuration to its release."""

    def __init__(self, node: ManagedNode, engine: Engine, contract: Contract, ingest: Ingest) -> None:
        self._node, self._engine, self._contract, self._ingest = node, engine, contract, ingest
        self._worker = ThreadPoolExecutor(1, SERVICE)
        self._cameras = {picture.image: picture for picture in contract.pictures}
        self._images = {camera.name: camera.image for camera in contract.cameras}
        self._images |= {image: image for image in self._cameras}
        self._kind = service_kind()
        node.serve(self._kind, SERVICE, self._on_request)
        node.on_release(lambda: self._worker.shutdown(cancel_futures=True))

    async def _on_request(self, request: Any, response: Any) -> Any:
        response.status = self._kind.Response.ERROR
        done: Future = Future()
        try:
            if not self._node.active:
                raise ValueError("the inference node is not active: activate it")
            observation = self._observation(request)
            wishes = self._continued(request, observation.state)
            work = self._worker.submit(self._compute, observation, wishes)
        except (ValueError, RuntimeError) as refusal:  # the worker is closed
            response.message = brief(str(refusal))
            return response

        def computed(_: object) -> None:
            done.set_result(None)
            if self._node.executor is not None:
                self._node.executor.wake()

        work.add_done_callback(computed)
        await done
        if work.cancelled() or (error := work.exception()) is not None:
            response.message = "the node was cleaned up" if work.cancelled() else brief(str(error))
            return response
        response.status = self._kind.Response.CHUNK_PRODUCED
        self._fill(response, work.result(), list(request.robot_state.name))
        return response

    def _compute(self, observation: Observation, wishes: Mapping[str, Any]) -> Chunk:
        """In the worker's thread."""
        try:
            with self._engine.observe(observation) as prefix:
                return self._engine.act(prefix, **wishes)
        finally:
            self._engine.runner.remove(SERVICE)

    def _observation(self, request: Any) -> Observation:
        """What is asked about. Raises ValueError, one sentence, if the request is wrong."""
        if self._contract.actions != "joints":
            raise ValueError(
                f"actions of this contract are {self._contract.actions}: {SERVICE} is for joints"
            )
        words = request.prompt if request.prompt.strip() else self._ingest.instruction
        if not words.strip():
            raise ValueError("prompt is empty and there is no instruction: say what to do")
        if len(request.images) != len(request.image_names) or len(request.images) > _MOST_IMAGES:
            count = len(request.image_names)
            raise ValueError(
                f"{len(request.images)} images have {count} names: name each, {_MOST_IMAGES} at most"
            )
        if not request.images:
            return self._newest(words)
        images = dict[str, np.ndarray]()
        for name, message in zip(request.image_names, request.images):
            image = self._images.get(name)
            if image is None or image in images:
                raise ValueError(f"image {name!r} is twice or none of {', '.join(self._images)}")
            images[image] = self._cameras[image].view(_pixels(name, message))
        state = self._state(request.robot_state)
        return Observation(images, state, words, self._node.now_ns(), robot=SERVICE)

    def _newest(self, words: str) -> Observation:
        """The newest of the robot's topics."""
        now_ns, limits_s = self._node.now_ns(), self._contract.max_ages_s
        stamps_ns = self._ingest.stamps_ns()
        for stream, limit_s in limits_s.items():
            age_s = (now_ns - stamps_ns[stream]) * 1e-9 if stream in stamps_ns else None
            if stream not in OTHERS and (age_s is None or age_s > limit_s):
                age = (
                    "has not come yet"
                    if age_s is None
                    else f"is {age_s:.2f} s old, the limit is {limit_s:g} s"
                )
                raise ValueError(f"{stream} {age}: send images and robot_state, or look with `vla doctor`")
        images = dict[str, np.ndarray]()
        for camera in self._contract.cameras:
            picture = self._ingest.picture(camera.name, least=1 << 30)
            if picture is None:
                raise ValueError(f"the newest image of camera {camera.name} was overwritten: ask again")
            images[camera.image] = camera.view(picture)
        newest = self._ingest.newest_state()
        assert newest is not None  # it has a stamp
        return Observation(images, newest[0], words, now_ns, robot=SERVICE)

    def _state(self, message: Any) -> np.ndarray:
        """float32 [S] in the policy's units. Raises ValueError if a joint, or a base's speed by odometry, is
        missing, twice or not finite."""
        names, joints = list(message.name), [joint.name for joint in self._contract.observed]
        absent = [joint for joint in joints if names.count(joint) != 1]
        if absent or len(message.position) != len(names):
            raise ValueError(
                f"robot_state names {names} with {len(message.position)} positions: give each of "
                f"{joints} once"
            )
        positions = np.array([message.position[names.index(joint)] for joint in joints])
        if not np.isfinite(positions).all():
            raise ValueError(f"robot_state has {positions.tolist()}: give finite positions, in rad or m (/s)")
        return self._contract.to_policy(positions).astype(np.float32)

    def _continued(self, request: Any, state: np.ndarray) -> dict[str, Any]:
        """Arguments of `act` that continue the chunk before. Raises ValueError if it cannot be continued."""
        previous, policy = request.previous_action_chunk, self._engine.policy
        if request.new_episode or not len(previous.data):
            return {}
        shape = [dimension.size for dimension in previous.layout.dim]
        width = len(self._contract.action_names)
        if len(shape) != 2 or shape[0] * shape[1] != len(previous.data) or shape[1] != width:
            raise ValueError(
                f"previous_action_chunk has {len(previous.data)} values and dimensions {shape}: give "
                f"[steps, {width}]"
            )
        rows = np.array(previous.data, np.float32).reshape(shape)
        delay = request.frozen_prefix_steps
        end = agreement(delay, request.guidance_horizon, len(rows))
        if not np.isfinite(rows).all() or len(rows) > MOST_ACTIONS or delay > len(rows):
            raise ValueError(
                f"previous_action_chunk has {len(rows)} rows and frozen_prefix_steps is {delay}: give finite "
                f"values, at most {MOST_ACTIONS} rows, and no more frozen ones"
            )
        if policy.chain.acts != DENOISE:
            raise ValueError(f"{policy.config.kind} denoises nothing and continues no chunk: set new_episode")
        return Guidance.continuing(policy, rows, delay, end, state, self._engine.config.steps)

    def _fill(self, response: Any, chunk: Chunk, order: list[str]) -> None:
        """The chunk, with joints in the order of the request if it named exactly these."""
        names = list(self._contract.action_names)
        base = self._contract.base
        joints = self._contract.action_joints + (() if base is None else base.axes)
        lower, upper = (np.array([getattr(joint, side) for joint in joints]) for side in ("lower", "upper"))
        positions = np.clip(self._contract.to_robot(chunk.actions), lower, upper)
        wanted = order if sorted(order) == sorted(names) else names
        columns = [names.index(name) for name in wanted]
        response.chunk = JointTrajectory(joint_names=wanted)
        response.chunk.points = [JointTrajectoryPoint(positions=row[columns].tolist()) for row in positions]
        response.native_control_period = self._contract.chunk.step_dt_s
        rows, width = chunk.actions.shape
        response.policy_action_chunk = Float64MultiArray(
            data=chunk.actions.astype(np.float64).ravel().tolist()
        )
        response.policy_action_chunk.layout.dim = [
            MultiArrayDimension(label="steps", size=rows, stride=rows * width),
            MultiArrayDimension(label="width", size=width, stride=width),
        ]


def agreement(frozen: int, horizon: int, rows: int) -> int:
    """How many rows a new chunk agrees with. horizon: of those after the frozen ones; 0: all."""
    return min(frozen + (horizon or rows), rows)


def _pixels(name: str, message: Any) -> np.ndarray:
    """uint8 [H, W, 3], RGB, of a sensor_msgs/Image. Raises ValueError, one sentence, if it is unusable."""
    try:
        view = image_view(serialize_message(message))
        check(view)
    except ValueError as refusal:
        raise ValueError(f"image {name!r}: {refusal}") from refusal
    picture = np.empty((view.height, view.width, 3), np.uint8)
    write_rgb(view, picture)
    return picture
