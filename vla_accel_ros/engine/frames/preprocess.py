"""An observation on its way to a policy in plain torch, and from when its images may be overwritten.

On a GPU the pixels go up as they lie: by the copy engine from page-locked memory, or not at all where the
GPU reads the host's memory in place; resizing is done there. All of it runs on a stream of its own, beside
the kernels of actions and text, and is over when the call returns: only then is it known whether the images
were still whole. On a CPU it is `policy.inputs`. Captured stages take pixels by engine.stages.memory.upload.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.stages.memory.host_memory import mapped_pointer
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.policy import PolicyInputs
from vla_accel_ros.timeline import TIMELINE, flow
from vla_accel_ros.types import Observation, Torn


class Preprocess:
    """Turns observations into a policy's inputs, in any threads."""

    def __init__(self, policy: AnyPolicy):
        self._policy = policy
        self._stream = torch.cuda.Stream(policy.device) if policy.device.type == "cuda" else None

    def __call__(self, observation: Observation, policy: AnyPolicy | None = None) -> PolicyInputs:
        """The inputs; the observation's images are needed no longer. policy: of a robot, on the same device.

        Raises ValueError for an observation the policy cannot take, Torn if its images were overwritten.
        """
        began_ns = TIMELINE.now_ns()
        inputs = self._inputs(observation, policy or self._policy)
        TIMELINE.span("upload", "inputs", began_ns, flows=(flow(observation.stamp_ns, observation.robot),))
        check_whole(observation)
        return inputs

    def _inputs(self, observation: Observation, policy: AnyPolicy) -> PolicyInputs:
        if self._stream is None:
            return policy.inputs(observation)
        with torch.cuda.stream(self._stream):
            inputs = policy.inputs(observation, self.upload)
            taken = self._stream.record_event()
        taken.synchronize()
        reader = torch.cuda.current_stream(self._policy.device)
        for tensor in (inputs.images, inputs.tokens, inputs.state):
            tensor.record_stream(reader)
        return inputs

    def upload(self, image: np.ndarray) -> Tensor:
        """uint8 [H, W, 3] on the GPU, in the current stream's order: a copy, or the memory itself."""
        return on_host(image, self._policy.device).to(self._policy.device, non_blocking=True)


def check_whole(observation: Observation) -> None:
    """To be called once the pixels were taken. Raises Torn if the images were overwritten until now."""
    if not observation.intact():
        raise Torn(f"the images of {observation.stamp_ns} were overwritten: use the next")


def on_host(image: np.ndarray, device: torch.device) -> Tensor:
    """The image where it lies, uint8 [H, W, 3], contiguous: a tensor of the device that reads it in place, or
    of the host."""
    pointer = mapped_pointer(image) if image.flags.c_contiguous else 0
    if pointer:
        return torch.as_tensor(_Mapped(pointer, image), device=device)
    return torch.from_numpy(_writable(np.ascontiguousarray(image)))


class _Mapped:
    """Host memory by the GPU's address, in the form that torch takes without a copy."""

    def __init__(self, pointer: int, image: np.ndarray):
        self.image = image
        self.__cuda_array_interface__ = {
            "shape": image.shape,
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


class _Alias:
    """A read-only array that claims to be writeable."""

    def __init__(self, array: np.ndarray):
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _writable(array: np.ndarray) -> np.ndarray:
    """The same memory, for torch, which warns of read-only arrays each time though nobody writes here."""
    return array if array.flags.writeable else np.asarray(_Alias(array))
