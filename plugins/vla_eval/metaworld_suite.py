"""Meta-World for vla-eval, which has no suite that installs from the package index without assets.

benchmarks:
  - benchmark: "metaworld_suite:MetaWorld"      # with plugins/vla_eval on PYTHONPATH
    episodes_per_task: 10
    params: {tasks: [reach-v3, push-v3]}
"""

from __future__ import annotations

from typing import Any, ClassVar

import metaworld
import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.render import configure_mujoco_render
from vla_eval.specs import IMAGE_RGB, LANGUAGE, RAW, DimSpec

CAMERA, UPSIDE_DOWN = "corner2", True
"""The camera that others train with; Meta-World draws it upside down."""


class MetaWorld(StepBenchmark):
    """tasks: of Meta-World's v3. An action is the hand's displacement (3) and the gripper, in -1 to 1.

    size: of the picture's sides. max_steps: of an episode. full_state: the simulator's 39 numbers as state,
    instead of the hand's position and the gripper.
    """

    render_backends: ClassVar[frozenset[str]] = frozenset({"gpu", "cpu"})

    @classmethod
    def configure_render(cls, mode: str) -> dict[str, str]:
        return configure_mujoco_render(mode)

    def __init__(
        self,
        tasks: list[str],
        seed: int = 0,
        size: int = 224,
        max_steps: int = 200,
        full_state: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        self._names, self._seed, self._size = tasks, seed, size
        self._steps, self._full_state = max_steps, full_state
        self._scenes: dict[str, Any] = {}

    def get_tasks(self) -> list[dict[str, Any]]:
        return [{"name": name, "suite": "metaworld"} for name in self._names]

    def get_metadata(self) -> dict[str, Any]:
        return {"max_steps": self._steps}

    def get_action_spec(self) -> dict[str, DimSpec]:
        return {"action": RAW}

    def get_observation_spec(self) -> dict[str, DimSpec]:
        return {"image": IMAGE_RGB, "language": LANGUAGE}

    def reset(self, task: dict[str, Any]) -> np.ndarray:
        """Meta-World's own 50 scenes of a task, one after another by the number of the episode."""
        name = task["name"]
        if name not in self._scenes:
            suite = metaworld.MT1(name, seed=self._seed)
            size = {"width": self._size, "height": self._size}
            env = suite.train_classes[name](render_mode="rgb_array", camera_name=CAMERA, **size)
            self._scenes[name] = env, suite.train_tasks
        self._env, scenes = self._scenes[name]
        self._env.set_task(scenes[task.get("episode_idx", 0) % len(scenes)])
        observed, _ = self._env.reset()
        return observed

    def step(self, action: dict[str, Any]) -> StepResult:
        row = np.asarray(action["actions"], np.float64).ravel()
        if row.shape != self._env.action_space.shape:
            raise ValueError(
                f"an action has {row.size} numbers: Meta-World takes {self._env.action_space.shape[0]}"
            )
        observed, reward, ended, cut, info = self._env.step(np.clip(row, -1.0, 1.0))
        success = info["success"] > 0
        return StepResult(observed, float(reward), bool(success or ended or cut), {"success": success})

    def make_obs(self, raw_obs: np.ndarray, task: dict[str, Any]) -> dict[str, Any]:
        picture = self._env.render()
        return {
            "images": {CAMERA: np.ascontiguousarray(picture[::-1] if UPSIDE_DOWN else picture)},
            "state": np.asarray(raw_obs if self._full_state else raw_obs[:4], np.float32),
            "task_description": task["name"].rpartition("-")[0].replace("-", " "),
        }

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        return {"success": bool(step_result.info.get("success", False))}

    def cleanup(self) -> None:
        for env, _ in self._scenes.values():
            env.close()
        self._scenes.clear()
