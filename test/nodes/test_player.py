"""A bag is played to its topics in its order and its own time, and /clock says that time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import rclpy
from recorded_run import PERIOD_NS, START_NS, Run
from rosgraph_msgs.msg import Clock
from running import until

from vla_accel_ros.nodes import convert, player
from vla_accel_ros.nodes.player import CLOCK_NS, Player
from vla_accel_ros.sensing.bag import Bag

FRAMES = 4


class Time:
    """Seconds that pass when they are waited for; `ready` is waited for in earnest, once."""

    def __init__(self, ready) -> None:
        self.now_s, self._ready = 100.0, ready

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        if self._ready is not None:
            until(self._ready, 30.0, "subscribers")
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
    time = Time(lambda: all(publisher.get_subscription_count() for publisher in heard))
    playing = Player(node, bag, rate, time, time.wait)
    heard = [playing.clock, playing.publishers["/action_chunk"]]
    for entry in bag.entries():
        playing.play(entry)
    operator.wait(lambda: len(operator.chunks) == FRAMES, 30.0, "chunks")
    assert [received.chunk.request_id for received in operator.chunks] == [1, 2, 3, 4]
    assert playing.played["/camera/front/image_raw"] == FRAMES and playing.played["/session"] == 1
    first, last = START_NS + PERIOD_NS // 2, START_NS + (FRAMES - 1) * PERIOD_NS + PERIOD_NS // 2
    operator.wait(lambda: ticks and ticks[-1] == last, 30.0, "last tick")
    assert ticks[0] == first and all(0 < b - a <= CLOCK_NS for a, b in pairwise(ticks))
    took_s = time.now_s - 100.0 - player.SETTLE_S
    assert took_s == pytest.approx((last - first) * 1e-9 / rate, abs=0.02)
    node.destroy_node()


def test_inputs_alone_are_what_a_policy_sees_and_is_told(tmp_path, ros_domain):
    said: list[str] = []
    assert player.play(Bag(Run(tmp_path).frames(1).tell().end()), 100.0, True, said.append) == 0
    assert said == ["played 2 messages on 2 topics"]


def test_a_type_that_is_not_installed_is_named(tmp_path, operator):
    run = Run(tmp_path).frames(1)
    bag = Bag(run.end())
    bag.survey()
    bag.topics["/strange"] = "strange_msgs/msg/Thing"
    with pytest.raises(
        ValueError, match=r"strange_msgs/msg/Thing cannot be imported .*: install strange_msgs"
    ):
        Player(operator.node, bag, 1.0)


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
