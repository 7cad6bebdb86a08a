"""What is asked for of replicas, as words: read, or refused in a sentence."""

from __future__ import annotations

import argparse

import pytest

from vla_accel_ros.fleet.replicas.ray_options import Where
from vla_accel_ros.nodes.fleet.engines import where
from vla_accel_ros.tools.fleet.up import node_arguments, register


def test_ray_replicas_are_read_nearest_first() -> None:
    assert where("edge") == [(Where("edge"), False)]
    assert where("edge:1 cloud:2:0.5") == [(Where("edge"), False), *[(Where("cloud", 0.5), True)] * 2]
    assert where("cloud:1::0.04") == [(Where("cloud", network_s=0.04), False)]


@pytest.mark.parametrize(
    "word",
    [
        "",
        "edge:0",
        "edge:x",
        "edge:1:-1",
        "edge:1:nan",
        ":2",
        "a b:c",
        "edge:999",
        "edge:1:1:-1",
        "edge:1::x",
    ],
)
def test_ray_replicas_are_refused_when_malformed(word: str) -> None:
    with pytest.raises(ValueError, match="ray_replicas"):
        where(word)


def test_fleet_up_passes_its_options_to_node() -> None:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    command = [
        "up",
        "--replicas",
        "edge:1",
        "cloud:2",
        "--address",
        "auto",
        "--goal",
        "many_robots",
        "--param",
        "hedge:=true",
    ]
    words = node_arguments(parser.parse_args(command))
    for word in (
        "replicas:='ray'",
        "goal:='many_robots'",
        "ray_replicas:='edge:1 cloud:2'",
        "ray_address:='auto'",
        "hedge:=true",
    ):
        assert word in words
    with pytest.raises(ValueError, match="NAME:=VALUE"):
        node_arguments(parser.parse_args([*command, "--param", "hedge"]))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        node_arguments(parser.parse_args([*command, "--model", "/nowhere"]))
