"""What inference makes of its parameters when it is configured.

The engine, how often what is done, how chunks agree, and the session that tells what they are computed with.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.guidance import Guiding
from vla_accel_ros.control.chunking.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.ports import Pace
from vla_accel_ros.engine.session import Session, session_of
from vla_accel_ros.models.checkpoints.progress import Meter
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.environment import demo_contract, demo_model
from vla_accel_ros.nodes.inference.loading import Load, choices
from vla_accel_ros.nodes.lifecycle import ManagedNode

_RENAMED = {"answers": "language_answers", "answer_tokens": "language_max_tokens", "camera_hz": "vision_hz"}
"""Fields of Load whose parameters have other names."""


def chosen(node: ManagedNode) -> Load:
    """What to load and how."""
    names = [field.name for field in fields(Load) if field.name != "model"]
    options = {name: value(node, _RENAMED.get(name, name)) for name in names}
    return Load(Path(value(node, "model") or demo_model()), **options)


def load_engine(node: ManagedNode, load: Load, contract: Contract) -> tuple[Engine, float]:
    """The warm engine, and how long it takes from images to a chunk, in seconds. Raises ValueError, in one
    sentence, for what does not fit."""
    log, warm_s = node.get_logger(), list[float]()

    def preparing(name: str, done: int, total: int) -> None:
        log.info(f"preparing fast stages, {done + 1} of {total}: {name}")

    with Meter(f"loading {load.model.name}") as meter:
        engine = load.engine(contract, log.warning, meter, preparing, warm_s.append)
    kind, device = engine.policy.config.kind, engine.policy.device
    log.info(f"loaded {load.model} on {device}: {kind}, {meter}; {choices(engine)}")
    offload = engine.runner.offload
    if offload is not None and offload.hidden:
        log.info(str(offload))
    elif offload is not None:
        log.warning(str(offload))
    return engine, warm_s[-1]


def paces(node: ManagedNode) -> dict[str, Pace]:
    """Of vision, action and, where its rate is not 0, language."""
    return {
        name: Pace(value(node, f"{name}_hz"), value(node, f"{name}_deadline_s"))
        for name in ("vision", "action", "language")
        if value(node, f"{name}_hz")
    }


def guiding(node: ManagedNode, engine: Engine) -> Guiding:
    """How chunks agree with the ones before."""
    settings = RtcSettings(
        value(node, "rtc_mask"),
        value(node, "rtc_mask_horizon"),
        value(node, "rtc_delivery_s"),
        value(node, "rtc_window"),
        value(node, "rtc_method"),
    )
    chunking = RealTimeChunking(engine, node.now_ns, settings, value(node, "rtc_jacobian"))
    return Guiding(chunking, value(node, "rtc"), "staggered" if engine.config.staggered else "")


def session(node: ManagedNode, engine: Engine, load: Load, contract: Contract) -> Session:
    """What chunks are computed with."""
    return session_of(
        engine,
        {name: choice for name, choice in vars(load).items() if name != "model"},
        model=load.model,
        contract=Path(value(node, "contract") or demo_contract()).read_text(),
        urdf="" if contract.urdf is None else Path(contract.urdf).read_text(),
        topics={camera.name: node.resolve_topic_name(camera.topic) for camera in contract.cameras},
    )
