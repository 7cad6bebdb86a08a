"""What a demo of hours keeps in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sensor_msgs.msg import Image

from vla_accel_ros.sim.tasks import FAMILIES, tasks
from vla_accel_ros.tools.demo import film, measure
from vla_accel_ros.tools.demo.plan import Plan
from vla_accel_ros.tools.demo.play import Board, Played

TRACES = measure.Traces(("a",), np.arange(8), np.zeros((8, 1)), np.zeros((8, 1)), np.arange(1))


def played(index: int, success: bool, time_s: float = 3.0) -> Played:
    plan = Plan(index, index, tasks(FAMILIES[0])[0])
    return Played(plan, 0, 1, (), success, time_s, (), (), 0, [], [], None, {}, TRACES)


def test_board_keeps_the_traces_of_the_drawn_episode_only() -> None:
    board = Board()
    for episode in (played(0, False), played(1, True, 2.0), played(2, True, 5.0), played(3, False, 9.0)):
        board.end(episode)
    assert [episode.traces for episode in board.played] == [None] * 4
    assert board.drawn is not None and board.drawn.plan.index == 2 and board.drawn.traces is TRACES
    board.end(replace(played(4, True, 8.0), traces=None))
    assert board.drawn.plan.index == 2


def test_film_keeps_the_last_minutes() -> None:
    board = Board(plan=Plan(0, 0, tasks(FAMILIES[0])[0]))
    reel = film.Film(["front"], board)
    image = Image(height=2, width=2, step=6, encoding="rgb8", data=bytes(12))
    count = film.FILM_HZ * film.FILM_S + 100
    for k in range(count):
        image.header.stamp.sec, image.header.stamp.nanosec = divmod((k + 1) * 10**9 // film.FILM_HZ, 10**9)
        reel.on_image("front", image)
    assert len(reel.frames) == film.FILM_HZ * film.FILM_S
    assert reel.frames[-1].stamp_ns == count * 10**9 // film.FILM_HZ
