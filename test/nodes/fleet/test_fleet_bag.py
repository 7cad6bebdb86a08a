"""Robots of a fleet, over real topics: questions are answered, and a bag is replayed to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import CALM, CAMERAS, make_checkpoint, make_config
from calling import change
from lifecycle_msgs.msg import Transition
from rclpy.clock import Clock, ClockType
from running import NodeProcess
from sensor_msgs.msg import Image

from vla_accel_msgs.msg import LanguageOutput
from vla_accel_ros.engine.session import TRAINED
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.clients.viewer import Viewer
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.sensing.trained import TrainedState
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.look.live import Live
from vla_accel_ros.tools.look.server import Look
from vla_accel_ros.tools.replay.again import replay
from vla_accel_ros.tools.replay.moments import Moments

CHUNKS = 8
QUESTION = "put the red block"
SIDE, RATE_HZ, BEFORE = 28, 15, "before"


@pytest.fixture
def pictures(operator: Operator) -> Iterator[None]:
    """Noise of every camera of the operator's contract, another each time."""
    node, rng = operator.node, np.random.default_rng(5)
    publishers = [node.create_publisher(Image, c.topic, qos.SENSOR) for c in operator.contract.cameras]

    def send() -> None:
        for publisher in publishers:
            data = rng.integers(0, 256, 3 * SIDE * SIDE, dtype=np.uint8).tobytes()
            image = Image(height=SIDE, width=SIDE, encoding="rgb8", step=3 * SIDE, data=data)
            convert.set_stamp(image.header.stamp, operator.now_ns())
            publisher.publish(image)

    timer = node.create_timer(1 / RATE_HZ, send, clock=Clock(clock_type=ClockType.STEADY_TIME))
    yield
    timer.cancel()


def finished(operator: Operator) -> dict[str, LanguageOutput]:
    """Whole answers by their question, refusals as well."""
    return {answer.prompt: answer for answer in operator.answers if answer.finished}


def model_of(folder: Path, kind: str = "pi05") -> str:
    config = make_config(kind, horizon=32, image_names=(*CAMERAS, BEFORE))
    return str(make_checkpoint(folder / "model", config, reach=CALM))


def contract_of(folder: Path) -> str:
    """The operator's contract, with a frame of 0.2 s before as a further image; its cameras are uneven."""
    text, camera = demo_contract().read_text(), "image: base_0_rgb, rate_hz: 30,"
    assert camera in text
    earlier = f"image: base_0_rgb, rate_hz: {RATE_HZ}, history: {{{BEFORE}: 0.2}},"
    (folder / "contract.yaml").write_text(text.replace(camera, earlier))
    return str(folder / "contract.yaml")


@pytest.mark.parametrize(("kind", "images", "staggered"), [("pi05", "raw", 0), ("pi0", "jpeg", 3)])
def test_a_bag_of_a_fleets_robot_is_replayed_to_the_bit_with_its_answers(
    start: Callable[..., NodeProcess],
    operator: Operator,
    arm,
    pictures,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    images: str,
    staggered: int,
) -> None:
    folder, engine = tmp_path / "bags", {"steps": 2, "seed": 3, "staggered": staggered}
    start("fleet", autostart=True, model=model_of(tmp_path, kind), answer_tokens=8, **engine)
    start("recorder", autostart=True, record_dir=str(folder))
    robot = start(
        "fleet_inference", autostart=True, engine="fleet", fleet_images=images, contract=contract_of(tmp_path)
    )
    operator.instruct("reach the red block")
    operator.wait(lambda: len(operator.chunks) >= CHUNKS // 2, 120.0, "chunks")
    operator.ask(QUESTION)
    operator.wait(lambda: QUESTION in finished(operator), 60.0, "an answer")
    said = finished(operator)[QUESTION]
    assert not said.refused, said.text
    count = len(operator.chunks)
    operator.wait(lambda: len(operator.chunks) >= count + CHUNKS, 60.0, "chunks after it")
    with Viewer() as viewer:
        look = Look(Live(viewer, 60.0))
        operator.wait(
            lambda: all(camera.get("exact") for camera in look.moment()["cameras"]),
            60.0,
            "network's pictures",
        )
    assert main(["look", "--png", str(tmp_path / "look.png"), "--timeout", "60"]) == 0
    assert "no inference/policy_images" in capsys.readouterr().err
    assert change(operator, "recorder", Transition.TRANSITION_DEACTIVATE)
    numbers = [received.chunk.request_id for received in operator.chunks]
    assert numbers == sorted(set(numbers))
    assert "elbow_flex is at" not in robot.log
    arm.place(["elbow_flex"], 2.0)
    robot.wait_for_log("not as in training: joint elbow_flex is at 2.8")

    (path,) = folder.iterdir()
    bag = Bag(path)
    moments = Moments(bag)
    assert all(len(session.checksum) == 64 for session in moments.sessions.values())
    trained = [session.by_name()[TRAINED] for session in moments.sessions.values()]
    assert all(len(TrainedState.of_lists(lists).low) == len(arm.position) for lists in trained)
    result = replay(moments)
    assert result.equal, (result.different_chunks, result.different_texts, result.notes)
    assert any(BEFORE in moment.images for moment in moments)
    assert result.chunks >= CHUNKS and result.texts == 1 and bag.finished
    assert moments.counts["chunks of no observation"] == 0


def test_no_question_waits_in_silence_when_the_scheduler_is_missing_or_is_killed(
    start: Callable[..., NodeProcess], operator: Operator, arm, pictures, tmp_path: Path
) -> None:
    robot = start("fleet_inference", autostart=True, engine="fleet", fleet_answer_s=1.0)
    operator.wait(lambda: operator.node.count_subscribers("/question"), 60.0, "a listener")
    operator.ask("is there nobody?")
    operator.wait(lambda: "is there nobody?" in finished(operator), 30.0, "a refusal")
    said = finished(operator)["is there nobody?"]
    assert said.refused and said.text.startswith("no fleet's scheduler has admitted this robot")

    model = model_of(tmp_path)
    scheduler = start("fleet", autostart=True, model=model, steps=2, answer_tokens=8)
    robot.wait_for_log("the fleet's scheduler serves this robot")
    operator.ask(QUESTION)  # without an instruction, too
    operator.wait(lambda: QUESTION in finished(operator), 60.0, "an answer")
    assert not finished(operator)[QUESTION].refused
    scheduler.kill()
    operator.ask("are you there?")
    operator.wait(lambda: "are you there?" in finished(operator), 60.0, "a refusal")
    said = finished(operator)["are you there?"]
    assert said.refused and said.text == "no answer from the fleet's scheduler within 1.5 s"
