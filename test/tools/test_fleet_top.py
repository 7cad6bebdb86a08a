"""The table of a fleet: its rows from what nodes say in /diagnostics, and its pictures."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
from rich.console import Console

from vla_accel_ros.tools.fleet import table
from vla_accel_ros.tools.fleet.board import SILENT_S, Board, Line, Row


@dataclass
class Pair:
    key: str
    value: str


@dataclass
class Said:
    name: str
    message: str
    values: list[Pair]


def say(name: str, message: str = "", **values: object) -> Line:
    return Said(name, message, [Pair(key, str(value)) for key, value in values.items()])


def queue(namespace: str = "") -> Line:
    values = {"rule": "kairos", "chunks promised [1/s]": 2.86, "chunks possible [1/s]": 9.5}
    return say(f"{namespace}fleet_scheduler: queue", "2 robots are served, 0 refused", **values)


def known(robot: str, message: str = "idle", **values: object) -> Line:
    told: dict[str, object] = {
        "buffer [s]": 0.7,
        "queue wait [s]": 0.012,
        "observation age [s]": 0.09,
        "stalled [s]": 5,
    }
    told |= {"wait ratio": 0.125, "chunks promised [1/s]": 1.43, "answered": 7, **values}
    return say(f"fleet_scheduler: robot {robot}", message, **told)


def asks(robot: str, stalled_s: float) -> Line:
    return say(f"{robot}/inference: fleet", "chunks come from the fleet", **{"stalled [s]": stalled_s})


def moves(robot: str, message: str = "running") -> Line:
    return say(f"{robot}/trajectory: motion", message)


def row(board: Board, robot: str, now_s: float) -> Row:
    return next(row for row in board.rows(now_s) if row.robot == robot)


@pytest.fixture
def board() -> Board:
    """Two robots that are served and move, at 10 s."""
    board = Board()
    board.hear([queue(), say("fleet_scheduler: replica local"), known("/left"), known("/right")], 10.0)
    board.hear([asks("left", 0.0), moves("left"), asks("right", 0.0), moves("right")], 10.0)
    return board


def test_a_row_has_what_scheduler_and_robot_say(board):
    assert board.robots() == ["/left", "/right"]
    assert row(board, "/left", 10.5) == Row(
        "/left", "idle", "running", 0.7, 0.012, 0.09, 0.125, 0.0, 1.43, answered=7, missed=0, well=True
    )
    scheduler = board.scheduler(10.5)
    assert (scheduler.well, scheduler.rule, scheduler.replicas) == (True, "kairos", ("local",))
    assert (scheduler.promised_hz, scheduler.possible_hz) == (2.86, 9.5)


def test_a_robot_that_falls_silent_is_not_shown_as_it_was(board):
    now_s = 10.0 + SILENT_S + 2.0
    board.hear([queue(), known("/left"), known("/right"), asks("left", 0.0), moves("left")], now_s)
    assert row(board, "/left", now_s).well
    dead = row(board, "/right", now_s)
    assert (dead.state, dead.motion) == ("robot silent for 5 s", "silent for 5 s")
    assert not dead.well
    gone = now_s + SILENT_S + 1.0
    board.hear([queue(), known("/left"), asks("left", 0.0), moves("left")], gone)
    assert row(board, "/right", gone).buffer_s is None  # the scheduler has forgotten it, too


def test_a_scheduler_that_falls_silent_knows_nothing(board):
    now_s = 10.0 + SILENT_S + 1.0
    stands = moves("left", "holding: chunk is 4.00 s old")
    board.hear([asks("left", 1.5), stands, asks("right", 0.0), moves("right")], now_s)
    assert board.scheduler(now_s).said == "silent for 4 s"
    left = row(board, "/left", now_s)
    assert (left.state, left.motion) == ("no scheduler", "holding: chunk is 4.00 s old")
    assert (left.buffer_s, left.rate_hz, left.stalled_s, left.well) == (None, None, 1.5, False)
    board.hear([queue(), known("/left"), asks("left", 1.5), moves("left")], now_s + 1.0)
    assert row(board, "/left", now_s + 1.0).well


def test_stall_adds_up_over_tasks_and_restarts(board):
    for at, stalled_s in enumerate((0.5, 0.5, 2.0, 0.25, 1.0, 0.0)):
        board.hear([asks("left", stalled_s)], 11.0 + at)
    assert row(board, "/left", 16.0).stalled_s == pytest.approx(2.0 + 1.0)


def test_a_refused_robot_says_why_and_is_not_well(board):
    board.hear([known("/left", "refused: 0 of the 2.86 chunks are left")], 11.0)
    assert row(board, "/left", 11.0).state == "refused: 0 of the 2.86 chunks are left"
    assert not row(board, "/left", 11.0).well


def test_robots_without_namespace_schedulers_with_one_and_strangers():
    board = Board()
    board.hear([queue("cell/"), known("/"), asks("", 0.0), say("inference: graph"), say("camera: x")], 1.0)
    board.hear([say("inference: fleet"), say("no name of ours"), moves("alone")], 1.0)
    assert board.robots() == ["/"]  # one that has its own engine is none of the fleet
    assert board.scheduler(1.0).well


def test_a_scheduler_that_cannot_configure_says_so():
    board = Board()
    assert board.scheduler(0.0).said == "not heard yet"
    board.hear([say("fleet_scheduler: fleet", "no model.safetensors in /x")], 1.0)
    assert board.scheduler(1.0).said == "no model.safetensors in /x"
    assert not board.scheduler(1.0).well


def test_terminal_lines_and_picture_have_the_same_rows(board, tmp_path):
    console = Console(width=table.WIDTH, record=True, force_terminal=True, file=(tmp_path / "seen").open("w"))
    console.print(table.drawn(board, 10.5))
    seen = console.export_text()
    first, *rows = table.lines(board, 10.5)
    assert "kairos: 2 robots are served" in first
    assert rows[0].startswith("/left: idle | running | buffer 0.70 s, queue 12 ms, age 90 ms")
    for text in ("/left", "/right", "running", "0.70", "12", "1.43"):
        assert text in seen
    table.write_svg(board, 10.5, tmp_path / "deep" / "table.svg")
    picture = (tmp_path / "deep" / "table.svg").read_text()
    words = "".join(ElementTree.fromstring(picture).itertext()).replace("\u00a0", " ")
    assert "/left" in words
    assert "running" in words
    assert "https://" not in picture
    page = table.page(board, 10.5)
    assert picture.strip() in page and 'http-equiv="refresh"' in page
