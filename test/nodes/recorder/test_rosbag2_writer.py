"""Bags through rosbag2_py: the calls that each of its generations takes. It is not on the package index, so a
stand-in with the signatures of the published interface takes its place."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from vla_accel_ros.nodes.recorder.rosbag2_writer import Rosbag2Bag, open_bag
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic

TOPIC = Topic(
    "/words", "std_msgs/msg/String", "string data\n", reliable=True, latched=True, digest="RIHS01_x"
)


class Writer:
    """Writes down what it is told, and fails as the real one where its plugin is missing."""

    made: ClassVar[list[Writer]] = []
    plugins: tuple[str, ...] = ("mcap",)

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        type(self).made.append(self)

    def open(self, storage: SimpleNamespace, converter: SimpleNamespace) -> None:
        if storage.storage_id not in self.plugins:
            raise RuntimeError("No storage could be initialized from the inputs.")
        self.calls.append(("open", storage.uri, storage.storage_preset_profile))

    def create_topic(self, metadata: SimpleNamespace) -> None:
        self.calls.append(("create_topic", vars(metadata)))

    def write(self, topic: str, message: bytes, stamp: int) -> None:
        assert type(message) is bytes and type(stamp) is int
        self.calls.append(("write", topic, message, stamp))


class ClosingWriter(Writer):
    def close(self) -> None:
        self.calls.append(("close",))


def install(monkeypatch, generation: str, plugins: tuple[str, ...] = ("mcap",)) -> type[Writer]:
    """rosbag2_py as in a distribution."""
    module = ModuleType("rosbag2_py")

    def humble(
        name: str, type: str, serialization_format: str, offered_qos_profiles: str = ""
    ) -> SimpleNamespace:
        assert isinstance(offered_qos_profiles, str)
        return SimpleNamespace(name=name, type=type, qos=offered_qos_profiles)

    def jazzy(
        id: int, name: str, type: str, serialization_format: str, offered_qos_profiles: object = ()
    ) -> SimpleNamespace:
        assert isinstance(offered_qos_profiles, list)
        return SimpleNamespace(name=name, type=type, qos=offered_qos_profiles)

    writer = Writer if generation == "humble" else ClosingWriter
    monkeypatch.setattr(writer, "made", [])
    monkeypatch.setattr(writer, "plugins", plugins)
    names = vars(module)
    names.update(SequentialWriter=writer, StorageOptions=SimpleNamespace, ConverterOptions=lambda *_: None)
    names["TopicMetadata"] = humble if generation == "humble" else jazzy
    if generation == "jazzy":
        names["_storage"] = SimpleNamespace(to_rclcpp_qos_vector=lambda text, version: [(text, version)])
    monkeypatch.setitem(sys.modules, "rosbag2_py", module)
    return writer


@pytest.mark.parametrize("generation", ["humble", "jazzy"])
def test_a_bag_is_opened_filled_and_closed(monkeypatch, tmp_path, generation):
    fresh = install(monkeypatch, generation)
    bag = open_bag(tmp_path / "bags" / "one", "auto", "zstd")
    assert isinstance(bag, Rosbag2Bag) and (tmp_path / "bags").is_dir()
    bag.add(TOPIC)
    bag.write("/words", 17, bytearray(b"abc"))
    bag.flush()
    bag.close()
    opened, created, written, *closed = fresh.made[0].calls
    assert opened == ("open", str(tmp_path / "bags" / "one"), "zstd_fast")
    assert written == ("write", "/words", b"abc", 17)
    if generation == "humble":
        assert "durability: 1" in created[1]["qos"] and not closed
    else:
        ((text, version),) = created[1]["qos"]
        assert "durability: transient_local" in text and version == 9
        assert closed == [("close",)]


def test_without_the_plugin_or_the_package_the_bag_is_written_by_mcap(monkeypatch, tmp_path):
    install(monkeypatch, "jazzy", plugins=("sqlite3",))
    bag = open_bag(tmp_path / "plugin", "auto", "none")
    assert isinstance(bag, McapBag)
    bag.close()
    monkeypatch.setitem(sys.modules, "rosbag2_py", None)
    other = open_bag(tmp_path / "package", "auto", "none")
    assert isinstance(other, McapBag)
    other.close()
    with pytest.raises(ValueError, match=r"'rosbag2'.* MCAP"):
        open_bag(tmp_path / "third", "rosbag2", "none")


def test_who_wants_mcap_gets_it(monkeypatch, tmp_path):
    fresh = install(monkeypatch, "jazzy")
    bag = open_bag(tmp_path / "bag", "mcap", "none")
    bag.close()
    assert isinstance(bag, McapBag) and not fresh.made
