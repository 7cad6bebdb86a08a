"""The topic `~/policy_images`: what the network sees, for people, while somebody subscribes.

Swapped cameras, BGR declared as RGB, a turned wrist camera or a wrong crop are seen at one look and found by
no check. The vision loop only copies the camera images of a frame; a thread of its own resizes the copies, by
what the engine's stages compute, and drops frames while it is busy.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from queue import Full, Queue
from typing import cast

import numpy as np
import torch
from sensor_msgs.msg import Image

from vla_accel_ros.kernels.reference.image import Views, patches
from vla_accel_ros.models.policies import AnyPolicy, CapturablePolicy
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.types import Observation

TOPIC = "~/policy_images"


def pictures(policy: AnyPolicy, observation: Observation) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the network's images in its order, and its pixels as uint8 [H, V * W, 3], side by side.

    The stages of a GPU compute exactly these pixels; the plain network on a CPU may differ by a level. Raises
    ValueError if the policy cannot take the observation.
    """
    host, rule, size = policy.host_inputs(observation), policy.pixel_rule, policy.image_size
    images = [torch.from_numpy(image.copy()) for image in host.images]
    if policy.chain.capturable:
        pixels = cast(CapturablePolicy, policy).resized(images)
    else:
        views = Views(rule, size, len(images), torch.device("cpu"))
        views.point([views.view(image) for image in images])
        pixels = torch.zeros(len(images), rule.channels, size, size)
        patches(views, size, pixels.view(len(images), 1, -1))
    colours = pixels[:, :3]
    black, white = (rule.levels[:3, end].view(3, 1, 1) for end in (0, 255))
    if not rule.rounds:
        black, white = 2.0 * black - 1.0, 2.0 * white - 1.0
    levels = ((colours - black) / (white - black) * 255.0).round().clamp(0.0, 255.0).byte()
    return host.image_names, levels.permute(2, 0, 3, 1).flatten(1, 2).numpy()


class PolicyImages:
    """Publishes the pictures of a node's policy, until the node's release."""

    def __init__(self, node: ManagedNode, policy: AnyPolicy, failed: Callable[[Exception], object]) -> None:
        self._policy, self._failed = policy, failed
        self._publisher = node.output(Image, TOPIC, qos.SENSOR)
        self._frames: Queue[Observation | None] = Queue(1)
        self._thread = threading.Thread(target=self._publish, name="policy_images", daemon=True)
        self._thread.start()
        node.on_release(self._close)

    def take(self, observation: Observation) -> None:
        """Take a frame, if somebody looks and the one before is done. Called by the vision loop."""
        if self._frames.full() or not self._publisher.get_subscription_count():
            return
        images = {name: np.array(image) for name, image in observation.images.items()}
        if observation.intact():
            try:
                self._frames.put_nowait(replace(observation, images=images))
            except Full:
                return

    def _publish(self) -> None:
        while (frame := self._frames.get()) is not None:
            try:
                names, picture = pictures(self._policy, frame)
                height, width, _ = picture.shape
                message = convert.stamped(Image, frame.stamp_ns, height=height, width=width, step=3 * width)
                message.header.frame_id, message.encoding = " ".join(names), "rgb8"
                message.data = array("B", picture.tobytes())
                self._publisher.publish(message)
            except Exception as error:
                self._failed(error)

    def _close(self) -> None:
        self._frames.put(None)
        self._thread.join()
