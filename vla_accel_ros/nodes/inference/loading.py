"""Makes a warm engine from a checkpoint and a contract, or raises one sentence that says why they do not fit.

A model that does not know this camera, or moves another number of joints, would fail at the first frame, on a
robot that is ready to move. So everything is compared here. The fast stages, if wanted, are then made and
captured for the contract's cameras and prompts of any length. Finally a black frame is observed, acted on and
asked about: that finds what the comparison did not, and makes first-use allocations before the robot depends
on time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import torch

from vla_accel_ros.contract.checks.findings import WARNING, refuse
from vla_accel_ros.contract.checks.model_check import judge, read_model
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.config import EXACT, RESIDENT, TEXT, EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.goals import before_loading, described, toward_goal, with_slots
from vla_accel_ros.engine.options import has_stages
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.stages.dropping import dropping
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.precision import ROWS
from vla_accel_ros.engine.stages.stages import Progress as Preparing
from vla_accel_ros.models.calibration import of_a_network_to_come
from vla_accel_ros.models.checkpoints.checkpoint import load_policy, with_statistics
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.checkpoints.streaming import LayerLoaded, Progress
from vla_accel_ros.models.device import find_device
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.processing.ranges import trained_range
from vla_accel_ros.sensing.trained import TrainedState
from vla_accel_ros.types import Observation

AUTO = "auto"


@dataclass(frozen=True)
class Load:
    """What to load, and with which options of an engine; see the parameters of the same names. "auto" suits
    machine and model: on CUDA bfloat16, elsewhere float32. If `fast` is not given to the config, captured
    stages are used where the family has them on this device. Raises ValueError for a value of another type,
    and for a dtype that is none."""

    model: Path
    config: EngineConfig = field(default_factory=EngineConfig)
    device: str = AUTO
    dtype: str = AUTO
    torch_threads: int = 1
    statistics: str = ""
    trained_as: str = ""
    prompt_state: str = AUTO

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, default = getattr(self, entry.name), entry.default
            if isinstance(default, str | int) and not isinstance(value, type(default)):
                raise ValueError(f"{entry.name} is {value!r:.100}; give a value such as {default!r}.")
        if self.dtype != AUTO and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"dtype is {self.dtype!r:.100}; give float32, bfloat16 or {AUTO}.")

    @property
    def settings(self) -> dict[str, object]:
        """What a session records of this besides the model and the engine's own config. slots: as asked for;
        an engine adds those that its options need."""
        settings = {name: value for name, value in vars(self).items() if name not in ("model", "config")}
        return {**settings, "slots": self.config.slots}

    def engine(
        self,
        contract: Contract,
        warn: Callable[[str], object] = lambda _: None,
        progress: Progress | None = None,
        preparing: Preparing = lambda name, done, total: None,
        warm: Callable[[float], object] = lambda _: None,
    ) -> Engine:
        """Compare, load, prepare and warm up. Raises ValueError, in one sentence, if something does not fit.

        warn: called with a sentence for each thing that fits but looks wrong, such as degrees mistaken for
        radians. progress: reports every weight that is loaded. preparing: called for every fast stage that is
        made. warm: called with the warm engine's time from images to a chunk, in seconds.
        """
        if self.torch_threads:
            torch.set_num_threads(self.torch_threads)
        policy, config = self._policy(contract, warn, progress)
        if (
            "fast" not in config.given
        ):  # only fast stages have fewer bits and offload: the engine refuses if none
            fast = has_stages(policy) or config.precision != EXACT or config.offload not in (RESIDENT, TEXT)
            config = config.but(fast=fast)
        config = toward_goal(policy, config.but(step_dt_s=contract.chunk.step_dt_s))
        engine = Engine(policy, with_slots(policy, config))
        if config.fast and policy.device.type != "cuda":
            warn(
                f"fast is true, but the model runs on {policy.device}: captured stages need a GPU; "
                "without one their reference in plain torch runs, which is not faster"
            )
        if config.precision != EXACT:
            warn(
                f"precision is {config.precision}: actions differ slightly from those of the exact network; "
                "bench/precision.py of the repository measures by how much"
            )
        if engine.runner.int8 is not None:
            warn(f"precision is {config.precision}: {engine.runner.int8.said}")
        counts = len(contract.cameras), len(contract.pictures)
        engine.prepare(counts, range(1, policy.config.max_prompt + 1), preparing)
        warm(warm_up(engine, contract))
        return engine

    def embodiment(
        self, policy: AnyPolicy, contract: Contract, warn: Callable[[str], object] = lambda _: None
    ) -> Embodiment:
        """A further robot, with this contract and these statistics, for the engine of a loaded policy; no
        weight is read. Raises ValueError, in one sentence, if something does not fit. warn: as in
        `engine`."""
        self._compare(contract, warn)
        robot_policy = with_statistics(
            policy,
            self.model,
            contract.delta_mask,
            statistics=self.statistics,
            prompt_state=self.prompt_state,
            trained_as=self.trained_as,
        )
        return Embodiment(robot_policy, contract.chunk.step_dt_s)

    def _compare(self, contract: Contract, warn: Callable[[str], object]) -> Description:
        model = read_model(self.model, self.statistics or None, self.trained_as, self.prompt_state)
        findings = judge(model, contract)
        refuse(findings)
        for finding in findings:
            if finding.level == WARNING:
                warn(str(finding))
        return model

    def _policy(
        self, contract: Contract, warn: Callable[[str], object], progress: Progress | None
    ) -> tuple[AnyPolicy, EngineConfig]:
        """The loaded policy, and the config with what a goal sets while weights are loaded."""
        device = self.device
        if device == AUTO:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        target, dtype = find_device(device), self.dtype
        if dtype == AUTO:
            dtype = "bfloat16" if target.type == "cuda" else "float32"
        model = self._compare(contract, warn)
        config = before_loading(self.config, model.config.kind, target.type)
        policy = load_policy(
            self.model,
            target,
            getattr(torch, dtype),
            contract.delta_mask,
            statistics=self.statistics,
            prompt_state=self.prompt_state,
            trained_as=self.trained_as,
            progress=progress,
            layer_loaded=None if config.keep_exact else _dropping(config, target),
        )
        return policy, config


def _dropping(config: EngineConfig, device: torch.device) -> LayerLoaded:
    """The function that drops a layer's exact weights once it is loaded. Raises ValueError for a damaged
    calibration; whether that belongs to this network is checked when the engine is made."""
    precision, path = config.precision, config.calibration
    if precision not in ROWS:
        return dropping(precision, device)
    calibration = of_a_network_to_come(Path(path)) if path else None
    int8 = Int8.of(precision, calibration)
    return dropping(precision, device, int8=int8, calibration=path)


def choices(engine: Engine, load: Load) -> str:
    """The choices made for "auto" and by a goal, for the log: "cuda, bfloat16, captured stages; no goal"."""
    dtype = str(engine.policy.kv_dtype).removeprefix("torch.")
    how = "captured stages" if engine.config.fast else "plain torch"
    reason = engine.runner.partitioned.reason
    options = described(load.config, engine.config)
    return f"{engine.policy.device.type}, {dtype}, {how}{reason and '; '}{reason}; {options}"


def warm_up(engine: Engine, contract: Contract) -> float:
    """Observe, act on and, with a language head, ask about a black frame of a robot in the middle of its
    range.

    Returns the time from images to a chunk after that, in seconds.
    """
    nothing = black_frame(engine, contract)
    with engine.observe(nothing) as prefix:
        engine.act(prefix)
        if engine.policy.chain.answers and (engine.config.keep_exact or engine.runner.text is not None):
            with engine.ask(prefix, max_tokens=min(2, engine.config.answer_tokens)) as answer:
                for _ in answer:
                    pass
    started = time.perf_counter()
    with engine.observe(nothing) as prefix:
        engine.act(prefix)
    return time.perf_counter() - started


def black_frame(engine: Engine, contract: Contract) -> Observation:
    """Black images, and joints in the middle of their ranges."""
    side = engine.policy.image_size
    middle = np.array([(joint.lower + joint.upper) / 2 for joint in contract.observed])
    black = np.zeros((side, side, 3), np.uint8)
    return Observation(
        images={picture.image: black for picture in contract.pictures},
        state=contract.to_policy(middle).astype(np.float32),
        instruction="warm up",
        stamp_ns=0,
    )


def trained_state(policy: AnyPolicy) -> TrainedState | None:
    """The joints in training, by the statistics that normalise them; None without."""
    normalizer = getattr(policy, "state_normalizer", None)
    if not isinstance(normalizer, Normalizer) or not normalizer.size:
        return None
    low, high = trained_range(normalizer)
    # a tenth beyond quantiles and extremes; beyond mean -+ 2 deviations another 2
    room = (0.1 if normalizer.offset else 0.5) * (high - low)
    return TrainedState(low, high, room, normalizer.still)
