"""Makes the objects of the inference node from its parameters when it is configured.

These are the engine, the rates of its loops, the agreement of chunks, and the session, which says what chunks
are computed with.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Guiding
from vla_accel_ros.control.chunking.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.engine.config import AUTO, EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Pace
from vla_accel_ros.engine.session import Session, session_of
from vla_accel_ros.models.checkpoints.progress import Meter
from vla_accel_ros.models.processing.lerobot_processors import read_image_statistics
from vla_accel_ros.nodes.declare import given, record, value
from vla_accel_ros.nodes.inference.loading import Load, choices
from vla_accel_ros.nodes.params.engine import OPTIONS
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.sensing.trained import TrainedImage


def chosen(node: ManagedNode, *, plans_with_rates: bool = False) -> Load:
    """What to load and how, from the node's parameters. plans_with_rates: whether the engine plans with the
    rates of the node's loops. Raises ValueError without a model."""
    if not (model := value(node, "model")):
        raise ValueError("model is empty: name a checkpoint's folder with -p model:=/path/to/checkpoint")
    names = [field.name for field in fields(Load) if field.name not in ("model", "config")]
    options = {name: value(node, name) for name in OPTIONS if node.has_parameter(name) and given(node, name)}
    if (fast := options.pop("fast", AUTO)) != AUTO:
        options["fast"] = str(fast).lower() == "true"
    if plans_with_rates:
        options |= {"camera_hz": value(node, "vision_hz"), "action_hz": value(node, "action_hz")}
    settings = {name: value(node, name) for name in names}
    return Load(Path(model), EngineConfig(**options), **settings)


def load_engine(node: ManagedNode, load: Load, contract: Contract) -> tuple[Engine, float]:
    """The warm engine, and its time from images to a chunk, in seconds. Raises ValueError, in one sentence,
    if something does not fit."""
    log, warm_s = node.get_logger(), list[float]()

    def preparing(name: str, done: int, total: int) -> None:
        log.info(f"preparing fast stages, {done + 1} of {total}: {name}")

    with Meter(f"loading {load.model.name}") as meter:
        engine = load.engine(contract, log.warning, meter, preparing, warm_s.append)
    kind, device = engine.policy.config.kind, engine.policy.device
    log.info(f"loaded {load.model} on {device}: {kind}, {meter}; {choices(engine, load)}")
    offload = engine.runner.offload
    if offload is not None and offload.hidden:
        log.info(str(offload))
    elif offload is not None:
        log.warning(str(offload))
    return engine, warm_s[-1]


def paces(node: ManagedNode) -> dict[str, Pace]:
    """The paces of vision, action and, if its rate is not 0, language."""
    return {
        name: Pace(value(node, f"{name}_hz"), value(node, f"{name}_deadline_s"))
        for name in ("vision", "action", "language")
        if value(node, f"{name}_hz")
    }


def trained_images(model: Path) -> dict[str, TrainedImage]:
    """The pixels of each camera in training, as far as the checkpoint says."""
    statistics = read_image_statistics(model)
    return {name: TrainedImage(255.0 * mean, 255.0 * std) for name, (mean, std) in statistics.items()}


def guiding(node: ManagedNode, engine: Engine, contract: Contract) -> Guiding:
    """How chunks agree with the previous ones."""
    settings = record(node, RtcSettings, prefix="rtc_")
    chunking = RealTimeChunking(engine, node.now_ns, settings, contract.turns)
    relative = [
        hand.name for hand, _ in contract.hands if not hand.beside and hand.relative_to == "observation"
    ]
    if relative and value(node, "rtc") != "never":
        reason = f"poses of {', '.join(relative)} are relative to their own chunk's observation"
        node.get_logger().info(f"chunks are not guided by those before: {reason}")
    return Guiding(
        chunking, "never" if relative else value(node, "rtc"), "staggered" if engine.config.staggered else ""
    )


def session(node: ManagedNode, engine: Engine, load: Load, contract: Contract) -> Session:
    """The session: what chunks are computed with."""
    return session_of(
        engine,
        load.settings,
        model=load.model,
        contract=Path(value(node, "contract") or demo_contract()).read_text(),
        urdf="" if contract.urdf is None else Path(contract.urdf).read_text(),
        topics={picture.name: node.resolve_topic_name(picture.topic) for picture in contract.pictures},
    )
