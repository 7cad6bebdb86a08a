"""The node inference, which says before it is configured how many models of before are still there."""

from __future__ import annotations

import weakref

from vla_accel_ros.nodes.inference.node import InferenceNode
from vla_accel_ros.nodes.running.process import run

MODELS = list[weakref.ref]()


class Counting(InferenceNode):
    """See the module docstring."""

    def configure(self) -> None:
        """As the node does."""
        living = sum(model() is not None for model in MODELS)
        self.get_logger().info(f"{living} of {len(MODELS)} models are still there")
        super().configure()
        MODELS.append(weakref.ref(self._policy.model))


if __name__ == "__main__":
    raise SystemExit(run(Counting))
