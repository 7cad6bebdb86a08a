"""A bag is what others read as a rosbag2, and what is whole of it can always be read."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest
import yaml
from bags import TEXT, numbered, numbers, text
from bombs import bag_of_a_type, bag_of_topics, bag_of_zeros, refused
from mcap.reader import make_reader
from mcap.records import Schema
from mcap.writer import MCAP0_MAGIC, CompressionType

from vla_accel_ros.nodes.interfaces import definition
from vla_accel_ros.recording.bounds import check_definition
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.recording.topic import Topic

COUNT = 40


def make_bag(path: Path, count: int = COUNT, every: int = 10, compression: str = "none") -> McapBag:
    """Flushed after every so many messages, not ended."""
    bag = McapBag(path, compression)
    bag.add(TEXT)
    for number in range(count):
        bag.write(TEXT.name, 1000 + number, numbered(number, 50))
        if number % every == every - 1:
            bag.flush()
    return bag


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_was_written_is_read(tmp_path, compression):
    bag = make_bag(tmp_path / "bag", compression=compression)
    other = Topic("/other", TEXT.type, TEXT.definition, reliable=False)
    bag.add(other)
    bag.write("/other", 2000, text("häring"))
    bag.close()
    read = Bag(tmp_path / "bag")
    entries = list(read.entries())
    assert [entry.log_ns for entry in entries] == [*range(1000, 1000 + COUNT), 2000]
    assert read.decode(entries[-1]).data == "häring"
    assert read.finished and read.topics == {"/words": TEXT.type, "/other": TEXT.type}
    assert list(read.entries({"std_msgs/msg/Bool"})) == []


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_message_is_read_again_from_its_place(tmp_path, compression):
    make_bag(tmp_path / "bag", compression=compression).close()
    bag = Bag(tmp_path / "bag")
    entries = list(bag.entries())
    for entry in (entries[37], entries[3], entries[0]):
        assert bag.again(entry.place) == entry
    with pytest.raises(ValueError, match="changed"):
        bag.again(entries[3].place._replace(log_ns=7))


def test_others_find_index_metadata_and_quality_of_service(tmp_path):
    make_bag(tmp_path / "bag").close()
    with (tmp_path / "bag" / "bag_0.mcap").open("rb") as file:
        summary = make_reader(file).get_summary()
        messages = list(make_reader(file).iter_messages(topics=["/words"], starting_at=1035))
    assert summary.statistics.message_count == COUNT and len(summary.chunk_indexes) == 4
    assert [message.log_time for _, _, message in messages] == [*range(1035, 1040)]
    (channel,) = summary.channels.values()
    (offered,) = yaml.safe_load(channel.metadata["offered_qos_profiles"])
    assert (offered["durability"], offered["reliability"], offered["depth"]) == (
        "transient_local",
        "reliable",
        3,
    )
    metadata = yaml.safe_load((tmp_path / "bag" / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    assert metadata["message_count"] == COUNT and metadata["duration"]["nanoseconds"] == COUNT - 1
    assert metadata["topics_with_message_count"][0]["topic_metadata"]["offered_qos_profiles"] == [offered]
    assert metadata["relative_file_paths"] == ["bag_0.mcap"]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_cut_anywhere_the_whole_chunks_before_are_read_and_nothing_else(tmp_path, compression):
    make_bag(tmp_path / "bag", compression=compression).close()
    whole = (tmp_path / "bag" / "bag_0.mcap").read_bytes()
    cut = tmp_path / "cut.mcap"
    lengths = set()
    for length in range(60, len(whole) - len(MCAP0_MAGIC), 7):
        cut.write_bytes(whole[:length])
        bag = Bag(cut)
        recorded = [int(bag.decode(entry).data.split()[0]) for entry in bag.entries()]
        assert recorded == [*range(len(recorded))] and len(recorded) % 10 == 0
        assert not bag.finished
        lengths.add(len(recorded))
    assert lengths == {0, 10, 20, 30, 40}


def test_a_bag_that_was_never_ended_is_read_to_its_last_flush(tmp_path):
    bag = make_bag(tmp_path / "bag", count=25)
    read = Bag(tmp_path / "bag")
    assert len(list(read.entries())) == 20 and not read.finished
    bag.abandon()


def test_after_an_error_the_file_is_cut_to_its_whole_chunks_and_ended_without_an_index(tmp_path):
    bag = make_bag(tmp_path / "bag", count=25)
    bag._out.write(b"half of something")
    bag.abandon()
    read = Bag(tmp_path / "bag")
    assert len(list(read.entries())) == 20 and read.finished
    with (tmp_path / "bag" / "bag_0.mcap").open("rb") as file:
        assert len(list(make_reader(file).iter_messages())) == 20


def test_damage_is_an_error_and_no_other_message(tmp_path):
    make_bag(tmp_path / "bag").close()
    file = tmp_path / "bag" / "bag_0.mcap"
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"12 ....")] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ValueError, match=r"0\.mcap .*crc"):
        numbers(file)


def test_split_bags_are_read_in_their_order(tmp_path):
    folder = tmp_path / "split"
    folder.mkdir()
    for part, name in enumerate(("2", "10", "11")):
        bag = McapBag(tmp_path / name)
        bag.add(TEXT)
        bag.write(TEXT.name, part, numbered(part))
        bag.close()
        shutil.copy(tmp_path / name / f"{name}_0.mcap", folder / f"split_{name}.mcap")
    assert numbers(folder) == [0, 1, 2]
    files = [f"split_{name}.mcap" for name in ("11", "2", "10")]
    (folder / "metadata.yaml").write_text(
        yaml.safe_dump({"rosbag2_bagfile_information": {"relative_file_paths": files}})
    )
    assert numbers(folder) == [2, 0, 1]


def test_the_files_of_a_split_bag_may_number_their_types_differently(tmp_path):
    """rosbag2 adds the topics to each file in another order than they were found in."""
    numbers_too = Topic("/numbers", "std_msgs/msg/Int64", "int64 data\n", reliable=True)
    (tmp_path / "split").mkdir()
    for part, topics in enumerate(((TEXT, numbers_too), (numbers_too, TEXT))):
        bag = McapBag(tmp_path / f"split_{part}")
        for topic in topics:
            bag.add(topic)
        bag.write("/words", part, text(f"of file {part}"))
        bag.write("/numbers", part, b"\x00\x01\x00\x00" + struct.pack("<q", part))
        bag.close()
        shutil.copy(tmp_path / f"split_{part}" / f"split_{part}_0.mcap", tmp_path / "split" / f"{part}.mcap")
    read = Bag(tmp_path / "split")
    assert [read.decode(entry).data for entry in read.entries()] == ["of file 0", 0, "of file 1", 1]


@pytest.mark.parametrize("definition", ["string", "int64 data\nint64 1a\n", "int32 X=abc\n", "foo bar"])
def test_a_type_whose_definition_cannot_be_read_is_named_with_its_topic(tmp_path, definition):
    bag = McapBag(tmp_path / "bag")
    bag.add(Topic("/odd", "odd_msgs/msg/Odd", definition, reliable=True))
    bag.write("/odd", 0, text("odd"))
    bag.close()
    read = Bag(tmp_path / "bag")
    with pytest.raises(ValueError, match="/odd cannot be read: "):
        read.decode(next(read.entries()))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("bag_0.db3", b"SQLite", "ros2 bag convert it to mcap"),
        ("notes.txt", b"", "give a bag's folder"),
        ("bag_0.mcap", b"no such thing, but long enough", "is damaged, or not an MCAP file"),
        ("bag_0.mcap", b"", "is empty, not even the beginning of a bag: record or copy it again"),
    ],
)
def test_what_is_no_bag_is_refused_with_its_mend(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        list(Bag(tmp_path).entries())


@pytest.mark.parametrize(("mode", "name"), [("FILE", "bag_0.mcap.zstd"), ("MESSAGE", "bag_0.mcap")])
def test_a_bag_that_rosbag2_compressed_is_refused_with_its_mend(tmp_path, mode, name):
    listing = {"relative_file_paths": [name], "compression_format": "zstd", "compression_mode": mode}
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump({"rosbag2_bagfile_information": listing}))
    (tmp_path / name).write_bytes(b"")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(
            ValueError, match=f"with --compression-mode {mode.lower()}, which is not read: ros2"
        ):
            Bag(path)
    McapBag(tmp_path / "other").close()
    (tmp_path / "other" / "other_0.mcap").rename(tmp_path / "another.mcap")
    assert Bag(tmp_path / "another.mcap").files


def test_an_existing_folder_is_left_alone(tmp_path):
    with pytest.raises(FileExistsError):
        McapBag(tmp_path)


def test_a_survey_knows_all_topics_with_an_index_and_without(tmp_path):
    make_bag(tmp_path / "ended").close()
    bag = make_bag(tmp_path / "going_on")
    for path in (tmp_path / "ended", tmp_path / "going_on"):
        read = Bag(path)
        read.survey()
        assert read.topics == {"/words": TEXT.type} and "transient_local" in read.offered["/words"]
    bag.abandon()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_flipped_bit_anywhere_is_an_error_or_costs_messages_but_makes_no_other(tmp_path, compression):
    make_bag(tmp_path / "bag", compression=compression).close()
    whole = (tmp_path / "bag" / "bag_0.mcap").read_bytes()
    originals = {numbered(number, 50) for number in range(COUNT)}
    rng, spoilt, refused = random.Random(0), tmp_path / "spoilt.mcap", 0
    for _ in range(500):
        raw = bytearray(whole)
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        spoilt.write_bytes(raw)
        try:
            recorded = [entry.data for entry in Bag(spoilt).entries()]
        except (ValueError, FileNotFoundError):
            refused += 1
        else:
            assert originals.issuperset(recorded)
    assert refused > 100


def read_all(path: Path) -> None:
    bag = Bag(path)
    for entry in bag.entries():
        bag.decode(entry)


@pytest.mark.parametrize("compression", [CompressionType.ZSTD, CompressionType.LZ4], ids=["zstd", "lz4"])
@pytest.mark.parametrize(
    ("megabytes", "sentence"),
    [(256, "a chunk declares 268 MB, at most 134 MB are read at once"), (100, "an invalid record")],
)
def test_a_chunk_of_zeros_is_refused(tmp_path, compression, megabytes, sentence):
    path = bag_of_zeros(tmp_path / "bomb.mcap", megabytes, compression)
    assert path.stat().st_size < megabytes << 13
    assert sentence in refused(lambda: read_all(path)).sentence


def test_a_chunk_that_holds_more_than_it_says_is_refused(tmp_path):
    path = bag_of_zeros(tmp_path / "bomb.mcap", 256, CompressionType.ZSTD)
    header = struct.pack("<QI", 256 << 20, zlib.crc32(bytes(256 << 20)))
    raw = path.read_bytes()
    assert header in raw
    path.write_bytes(raw.replace(header, struct.pack("<QI", 1000, 0)))
    refusal = refused(lambda: read_all(path))
    assert "a chunk does not have the size that it declares" in refusal.sentence and refusal.peak_mb < 20


def test_a_bag_of_very_many_topics_is_refused(tmp_path):
    path = bag_of_topics(tmp_path / "bomb.mcap", 20_000)
    refusal = f"{path} has more than 4096 topics: no robot's bag has so many"
    assert refused(Bag(path).survey).sentence == refusal
    assert refused(lambda: read_all(path)).sentence == refusal


SECTION = "\n" + "=" * 80 + "\nMSG: bomb_msgs/"
BILLION = struct.pack("<I", 2_000_000_000)


@pytest.mark.parametrize(
    ("definition", "data", "sentence"),
    [
        ("Bomb bomb", b"", "its definition contains itself: bomb_msgs/Bomb"),
        ("Other a" + SECTION + "Other\nBomb b", b"", "its definition contains itself: bomb_msgs/Bomb"),
        ("Bomb[] bombs", b"\1\0\0\0" * 50_000, "its definition contains itself"),
        ("Empty[2000000000] a" + SECTION + "Empty\n", b"", "has more than 100000 nested messages"),
        ("Id[] a" + SECTION + "Id\nuint8[16] id", BILLION, "a list of bomb_msgs/Id, which may have no bytes"),
        ("Id[<=9999999999] a" + SECTION + "Id\nuint8[1] id", BILLION, "which may have no bytes"),
        (
            "T1 a\nT1 b"
            + "".join(f"{SECTION}T{n}\nT{n + 1} a\nT{n + 1} b" for n in range(1, 40))
            + SECTION
            + "T40\nuint8[1] x",
            b"",
            "has more than 100000 nested messages",
        ),
        (
            "T1 a"
            + "".join(f"{SECTION}T{n}\nT{n + 1} a" for n in range(1, 1500))
            + SECTION
            + "T1500\nint8 x",
            b"",
            "its definition is nested too deeply",
        ),
        ("string data\n" + "# long\n" * 100_000, b"", "its definition has 700012 bytes, at most 262144"),
        ("Some[] a" + SECTION + "Some\nint32 x", BILLION, "a message on /bomb is not a bomb_msgs/msg/Bomb"),
        ("float64[] a", BILLION, "a message on /bomb is not a bomb_msgs/msg/Bomb"),
        ("wstring data", b"", "a message on /bomb is not a bomb_msgs/msg/Bomb: wstring parsing is not"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_definition_that_asks_for_much_is_refused(tmp_path, definition, data, sentence):
    path = bag_of_a_type(tmp_path / "bomb.mcap", definition, data)
    assert sentence in refused(lambda: read_all(path)).sentence


def test_definitions_of_ros_are_within_the_bounds():
    kinds = [
        *("nav_msgs/msg/OccupancyGrid", "sensor_msgs/msg/PointCloud2", "tf2_msgs/msg/TFMessage"),
        *("diagnostic_msgs/msg/DiagnosticArray", "trajectory_msgs/msg/JointTrajectory"),
        *("vla_accel_msgs/msg/Motion", "vla_accel_msgs/msg/Observed", "std_msgs/msg/Float64MultiArray"),
    ]
    for kind in kinds:
        try:
            text = definition(kind)
        except (ValueError, FileNotFoundError):
            continue  # not installed here
        check_definition(Schema(1, text.encode(), "ros2msg", kind))


def test_a_bag_of_ros_1_is_converted(tmp_path):
    file = tmp_path / "drive.bag"
    file.write_bytes(b"#ROSBAG V2.0\nE\x00\x00\x00")
    for path in (file, tmp_path):
        with pytest.raises(
            ValueError, match=f"rosbags-convert --src {file} --dst {tmp_path / 'drive'} .*mcap"
        ):
            Bag(path)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_bag_whose_part_is_missing_is_refused_and_names_it(tmp_path, lost):
    """Read on, the robot's time would leap from the part before to the one after."""
    folder = tmp_path / "split"
    folder.mkdir()
    files = [f"split_{part}.mcap" for part in range(3)]
    for part, name in enumerate(files):
        bag = McapBag(tmp_path / str(part))
        bag.add(TEXT)
        bag.write(TEXT.name, part, numbered(part))
        bag.close()
        shutil.copy(tmp_path / str(part) / f"{part}_0.mcap", folder / name)
    listing = {"rosbag2_bagfile_information": {"relative_file_paths": files}}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(listing))
    (folder / files[lost]).unlink()
    with pytest.raises(
        ValueError, match=f"metadata.yaml lists split_{lost}.mcap, .*ros2 bag reindex {folder}"
    ):
        Bag(folder)


def test_a_pointer_of_git_lfs_is_no_bag(tmp_path):
    file = tmp_path / "bag_0.mcap"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 6940000000\n")
    with pytest.raises(ValueError, match=r"bag_0\.mcap .*Git LFS"):
        Bag(tmp_path)
