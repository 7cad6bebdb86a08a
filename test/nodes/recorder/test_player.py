"""A bag is played to its topics in its order and its own time, and /clock says that time.

Only what a policy sees and is told is played unless commands are asked for, and nothing where somebody else
is alive: publishers and subscriptions here are real ones, in a graph of their own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import rclpy
from geometry_msgs.msg import WrenchStamped
from rclpy.executors import SingleThreadedExecutor
from rclpy.publisher import Publisher
from recorded_run import PERIOD_NS, START_NS, Run
from rosgraph_msgs.msg import Clock
from running import until
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.recorder import player
from vla_accel_ros.nodes.recorder.player import CLOCK_NS, Player
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.recording.roles import Role, role

FRAMES = 4


class Time:
    """Seconds that pass when they are waited for; `ready` is waited for in earnest, once."""

    def __init__(self, ready) -> None:
        self.now_s, self._ready = 100.0, ready

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        if self._ready is not None:
            until(self._ready, 90.0, "subscribers")
            self._ready = None
        self.now_s += seconds


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_messages_come_in_their_order_with_the_clock_of_their_time(tmp_path, operator, rate):
    bag = Bag(Run(tmp_path).frames(FRAMES).tell().end())
    bag.survey()
    ticks: list[int] = []
    operator.node.create_subscription(
        Clock, "/clock", lambda m: ticks.append(convert.stamp_ns(m.clock)), 1000
    )
    node = rclpy.create_node("player", context=operator.node.context)
    heard: list[Publisher] = []
    time = Time(lambda: all(publisher.get_subscription_count() for publisher in heard))
    playing = Player(node, bag, rate, bag.topics, time, time.wait)
    heard += [playing.clock, playing.publishers["/action_chunk"]]
    for entry in bag.entries():
        playing.play(entry)
    operator.wait(lambda: len(operator.chunks) == FRAMES, 90.0, "chunks")
    chunks = [bag.decode(entry) for entry in bag.entries(("vla_accel_msgs/msg/ActionChunk",))]
    ids = [received.chunk.request_id for received in operator.chunks]
    assert ids == [chunk.request_id for chunk in chunks] and len(ids) == FRAMES
    assert playing.played["/camera/front/image_raw"] == FRAMES and playing.played["/session"] == 1
    first, last = START_NS + PERIOD_NS // 2, START_NS + (FRAMES - 1) * PERIOD_NS + PERIOD_NS // 2
    operator.wait(lambda: ticks and ticks[-1] == last, 90.0, "last tick")
    assert ticks[0] == first and all(0 < b - a <= CLOCK_NS for a, b in pairwise(ticks))
    took_s = time.now_s - 100.0 - player.SETTLE_S
    assert took_s == pytest.approx((last - first) * 1e-9 / rate, abs=0.02)
    node.destroy_node()


@pytest.mark.parametrize("by_s", [-900.0, -5.0, 1e9], ids=["a reset", "a bit", "an epoch"])
def test_where_the_clock_was_set_it_is_set_again_and_the_rest_is_played_in_its_own_time(
    tmp_path, operator, by_s
):
    run = Run(tmp_path)
    for k in range(20):
        run._now_ns = START_NS + k * PERIOD_NS + (round(by_s * 1e9) if k >= 10 else 0)
        run.write("/instruction", String(data=f"{k}"))
    bag = Bag(run.end())
    bag.survey()
    node = rclpy.create_node("player", context=operator.node.context)
    time = Time(None)
    lines: list[str] = []
    playing = Player(node, bag, 1.0, bag.topics, time, time.wait, say=lines.append)
    ticks: list[int] = []
    playing.clock = SimpleNamespace(publish=lambda m: ticks.append(convert.stamp_ns(m.clock)))
    played: list[float] = []
    for entry in bag.entries():
        playing.play(entry)
        played.append(time.now_s)
        assert ticks[-1] == entry.log_ns
    assert [later - sooner for sooner, later in pairwise(played[:10])] == pytest.approx([0.1] * 9)
    assert [later - sooner for sooner, later in pairwise(played[10:])] == pytest.approx([0.1] * 9)
    assert played[10] - played[9] < 0.1
    assert lines == [f"the clock of the recording was set by {by_s + 0.1:.3f} s"]
    node.destroy_node()


def driven(folder) -> Bag:
    """A bag of a robot that was driven: inputs, reports and commands."""
    run = Run(folder).frames(1).tell()
    run.write("/joint_states", JointState(name=["elbow"], position=[0.1]))
    run.write("/joint_commands", JointState(name=["elbow"], position=[0.1]))
    run.write("/instruction", String(data="reach the red block"))
    run.write("/question", String(data="which block is red?"))
    run.write("/parameters", String(data="{}"))
    run.write("/arm/joint_trajectory", JointTrajectory(joint_names=["elbow"]))
    return Bag(run.end())


INPUTS = {"/camera/front/image_raw", "/camera/wrist/image_raw", "/joint_states", "/instruction", "/question"}


@pytest.fixture
def others(ros_domain):
    """other(name): a node of somebody else's in this graph."""
    context = rclpy.Context()
    rclpy.init(context=context)
    nodes = []

    def other(name: str):
        nodes.append(rclpy.create_node(name, context=context))
        return nodes[-1]

    yield other
    for node in nodes:
        node.destroy_node()
    context.try_shutdown()


@pytest.mark.parametrize(
    ("topic", "kind", "expected"),
    [
        ("/camera/front/image_raw", "sensor_msgs/msg/Image", Role.INPUT),
        ("/tf_static", "tf2_msgs/msg/TFMessage", Role.INPUT),
        ("/left/joint_states", "sensor_msgs/msg/JointState", Role.INPUT),
        ("/left/joint_commands", "sensor_msgs/msg/JointState", Role.COMMAND),
        ("/instruction", "std_msgs/msg/String", Role.INPUT),
        ("/urscript_interface/script_command", "std_msgs/msg/String", Role.COMMAND),
        ("/joy", "sensor_msgs/msg/Joy", Role.COMMAND),
        ("/action_chunk", "vla_accel_msgs/msg/ActionChunk", Role.COMMAND),
        ("/motion", "vla_accel_msgs/msg/Motion", Role.REPORT),
        ("/arm/commands", "std_msgs/msg/Float64MultiArray", Role.COMMAND),
        ("/twist", "geometry_msgs/msg/TwistStamped", Role.COMMAND),
        ("/anything", "strange_msgs/msg/Thing", Role.COMMAND),
    ],
)
def test_what_is_not_known_to_move_nothing_is_a_command(topic, kind, expected):
    assert role(topic, kind) is expected


def test_inputs_alone_are_played_and_the_rest_is_named(tmp_path, others):
    listener = others("trajectory")
    heard: list[object] = []
    listener.create_subscription(ActionChunk, "/action_chunk", heard.append, 10)
    listener.create_subscription(JointTrajectory, "/arm/joint_trajectory", heard.append, 10)
    lines: list[str] = []
    bag = driven(tmp_path)
    assert player.play(bag, 100.0, False, lines.append) == 0
    assert player.inputs(bag) == INPUTS
    assert lines == [
        "not played without --commands: /action_chunk, /arm/joint_trajectory, /joint_commands, "
        "/language_output, /observed, /parameters, /session",
        "played 5 messages on 5 topics",
    ]
    executor = SingleThreadedExecutor(context=listener.context)
    executor.add_node(listener)
    executor.spin_once(timeout_sec=0.2)
    assert not heard


def test_force_sensors_of_the_contract_are_inputs_and_the_same_types_elsewhere_are_not(tmp_path, others):
    limits = {"yields": 4.0, "stops": 8.0}
    slow = {"rate_hz": 100, "max_age_s": 0.1}
    wrench = {"topic": "wrist/wrench", "force_n": limits, "torque_nm": limits, **slow}
    effort = {"topic": "efforts", "type": "Float64MultiArray", "joints": {"elbow_flex": limits}, **slow}
    force = tmp_path / "force.yaml"
    force.write_text(
        f"{demo_contract().read_text()}\nforce: {json.dumps({'wrench': wrench, 'effort': effort})}\n"
    )
    run = Run(tmp_path, contract=force, apart="left").frames(1).tell()
    for topic in ("wrist/wrench", "target_wrench"):
        run.write(f"/left/{topic}", WrenchStamped())
    for topic in ("efforts", "commands"):
        run.write(f"/left/{topic}", Float64MultiArray(data=[0.0]))
    bag = Bag(run.end())
    listener = others("trajectory")  # which would refuse commands
    listener.create_subscription(WrenchStamped, "/left/wrist/wrench", print, 10)
    lines: list[str] = []
    assert player.play(bag, 100.0, False, lines.append) == 0
    assert "/left/wrist/wrench" not in lines[0] and "/left/efforts" not in lines[0]
    assert "/left/commands" in lines[0] and "/left/target_wrench" in lines[0]
    assert lines[-1] == "played 4 messages on 4 topics"


def test_a_topic_that_is_published_is_refused_by_its_name_and_its_nodes(tmp_path, others):
    driver = others("front_driver")
    driver.create_publisher(Image, "/camera/front/image_raw", 10)
    refusal = (
        r"^/camera/front/image_raw is published by /front_driver already, and the messages would mix: stop "
        r"that node, or play in another ROS_DOMAIN_ID$"
    )
    with pytest.raises(ValueError, match=refusal):
        player.play(driven(tmp_path), 100.0, False, lambda _: None)


def test_a_clock_that_somebody_tells_is_refused(tmp_path, others):
    others("sim_robot").create_publisher(Clock, "/clock", 10)
    with pytest.raises(ValueError, match=r"^/clock .*/sim_robot"):
        player.play(driven(tmp_path), 100.0, False, lambda _: None)


@pytest.mark.parametrize(
    ("kind", "topic"), [(ActionChunk, "/action_chunk"), (JointTrajectory, "/arm/joint_trajectory")]
)
def test_commands_are_refused_where_somebody_listens(tmp_path, others, kind, topic):
    others("arm_controller").create_subscription(kind, topic, lambda _: None, 10)
    with pytest.raises(ValueError, match=rf"^{topic} is a command and /arm_controller subscribes to it"):
        player.play(driven(tmp_path), 100.0, True, lambda _: None)


def test_commands_are_played_when_asked_for_and_nobody_listens(tmp_path, others):
    others("viewer").create_subscription(String, "/instruction", lambda _: None, 10)
    lines: list[str] = []
    bag = driven(tmp_path)
    assert player.play(bag, 100.0, True, lines.append) == 0
    assert len(lines) == 1 and lines[0].endswith(f"on {len(bag.topics)} topics")


def test_a_recorded_clock_is_not_played_beside_the_players_own(tmp_path, ros_domain):
    run = Run(tmp_path).frames(1).tell()
    run.write("/clock", Clock())
    lines: list[str] = []
    assert player.play(Bag(run.end()), 100.0, True, lines.append) == 0
    assert lines == ["played 7 messages on 6 topics"]


def test_playing_ends_when_somebody_comes_alive(tmp_path, others):
    bag = driven(tmp_path)
    bag.survey()
    node, driver = others("player"), others("front_driver")
    time = Time(None)
    look = partial(player.refuse_alive, node, INPUTS, ())
    playing = Player(node, bag, 1.0, INPUTS, time, time.wait, look)
    entries = [entry for entry in bag.entries() if entry.topic in INPUTS]
    playing.play(entries[0])
    driver.create_publisher(Image, "/camera/front/image_raw", 10)
    until(lambda: len(node.get_publishers_info_by_topic("/camera/front/image_raw")) == 2, 90.0, "driver")
    with pytest.raises(ValueError, match="/front_driver"):
        playing.play(replace(entries[0], log_ns=entries[0].log_ns + 10**9))


def test_a_long_bag_says_how_far_it_is(tmp_path, others):
    bag = Bag(Run(tmp_path).frames(2).tell().end())
    bag.survey()
    lines: list[str] = []
    time = Time(None)
    playing = Player(others("player"), bag, 1.0, bag.topics, time, time.wait, say=lines.append)
    for number, entry in enumerate(bag.entries()):
        playing.play(replace(entry, log_ns=START_NS + number * 2 * 10**9))
    assert lines[0] == "at 5 s of 0 s, 3 messages played" and len(lines) == len(range(5, 2 * number + 1, 5))


def test_a_bag_without_inputs_needs_commands(tmp_path, ros_domain):
    run = Run(tmp_path)
    run.write("/arm/joint_trajectory", JointTrajectory(joint_names=["elbow"]))
    with pytest.raises(ValueError, match="--commands"):
        player.play(Bag(run.end()), 100.0, False, lambda _: None)


def test_a_type_that_is_not_installed_is_named(tmp_path, operator):
    run = Run(tmp_path).frames(1)
    bag = Bag(run.end())
    bag.survey()
    bag.topics["/strange"] = "strange_msgs/msg/Thing"
    with pytest.raises(ValueError, match=r"/strange needs strange_msgs/msg/Thing, .*ros-.*strange-msgs"):
        Player(operator.node, bag, 1.0, bag.topics)


@pytest.mark.parametrize(
    ("offered", "reliable", "latched"),
    [
        ("- {reliability: best_effort, durability: volatile, depth: 3}", False, False),
        ("- {reliability: 1, durability: 1, depth: 300}", True, True),
        ("- {reliability: 2, durability: 2}", False, False),
        ("", True, False),
        ("no list", True, False),
    ],
)
def test_quality_of_service_is_read_in_words_and_numbers(offered, reliable, latched):
    profile = player.profile(offered)
    assert (profile.reliability.name == "RELIABLE") is reliable
    assert (profile.durability.name == "TRANSIENT_LOCAL") is latched
    assert profile.depth >= 10
