"""What was recorded is computed again to the bit, and whatever is another is found and named."""

from __future__ import annotations

import json
import shutil
import struct
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from builders import make_checkpoint, make_config
from groot_builders import JOINTS, OTHER, add_embodiment, make_groot_folder
from lerobot_builders import make_lerobot_folder
from recorded_run import AS_RECORDED, PERIOD_NS, START_NS, Run, again

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.rtc import RtcSettings
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.models.config import PI05, VisionConfig
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.bags import picture as picture_of
from vla_accel_ros.tools.replay import moments as reading
from vla_accel_ros.tools.replay.again import Otherwise, company, replay
from vla_accel_ros.tools.replay.moments import Moments
from vla_accel_ros.tools.replay.report import report

FRAMES = 7
# Before it, an engine that is loaded acts twice to warm up.
FIRST = 2


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "pi05"},
        {"kind": "pi0"},
        {"kind": "pi05", "rtc": RtcSettings()},
        {"kind": "pi0", "rtc": RtcSettings(mask="linear", mask_horizon=3), "seed": 5},
        {"kind": "pi05", "solver": "ab2", "steps": 4},
        {"kind": "pi0", "solver": "ab2", "steps": 4, "rtc": RtcSettings()},
        {"kind": "pi05", "jpeg": lambda picture: cv2.imencode(".jpg", picture)[1].tobytes()},
    ],
    ids=[
        "pi05",
        "pi0 with a state token",
        "guided",
        "guided pi0 of another seed",
        "ab2",
        "guided ab2",
        "jpeg",
    ],
)
def test_replay_every_chunk_and_text_is_computed_again_to_the_bit(tmp_path, settings):
    path = Run(tmp_path, **settings).frames(FRAMES).tell().end()
    result, moments = again(path)
    assert result.equal, (result.different_chunks, result.different_texts)
    assert (result.chunks, result.texts, result.frames) == (FRAMES, 3, FRAMES)
    assert not result.notes and not moments.counts["incomplete"]


def test_replay_pictures_are_turned_and_cropped_again_as_the_recorded_contract_says(tmp_path):
    turned = tmp_path / "robot.yaml"
    plain = demo_contract().read_text()
    turned.write_text(plain.replace("image: base_0_rgb,", "image: base_0_rgb, rotation: 180, crop: 0.8,"))
    path = Run(tmp_path, contract=turned).frames(FRAMES).tell().end()
    result, _ = again(path)
    assert result.equal and result.chunks == FRAMES
    forgotten = Run(tmp_path / "other", contract=turned)
    forgotten.contract = Contract.load(demo_contract())  # its engine gets the pictures as they come
    result, _ = again(forgotten.frames(FRAMES).tell().end())
    assert not result.equal


def test_replay_robot_whose_contract_did_not_say_what_its_actions_are_is_replayed(tmp_path):
    """They lie apart from the state, as relative ones do; a contract of today would have to say so."""
    silent = tmp_path / "robot.yaml"
    silent.write_text(demo_contract().read_text().replace("actions: joints\n", ""))
    run = Run(tmp_path, contract=silent)
    (file,) = run.model.rglob("norm_stats.json")
    stats = json.loads(file.read_text())
    stats["norm_stats"]["state"]["mean"][2] = 40.0 * stats["norm_stats"]["state"]["std"][2]
    stats["norm_stats"]["actions"]["mean"][2] = 0.0
    file.write_text(json.dumps(stats))
    with pytest.raises(ValueError, match="velocities"):
        Load(run.model).engine(Contract.load(silent))
    result, _ = again(run.frames(2).tell(checksum=checksum(run.model)).end())
    assert result.equal and result.chunks == 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replay_every_chunk_and_text_is_computed_again_to_the_bit_on_a_gpu(tmp_path, dtype):
    path = Run(tmp_path, device="cuda", dtype=dtype, rtc=RtcSettings()).frames(FRAMES).tell().end()
    result, _ = again(path)
    assert result.equal and result.chunks == FRAMES, (result.different_chunks, result.different_texts)


@pytest.mark.parametrize("staggering", ["stream", "fresh"])
def test_replay_first_chunk_may_have_been_whole_where_the_engine_makes_it_so(
    tmp_path, monkeypatch, staggering
):
    """On a GPU chunks in seats have other bits than whole ones, of which the recorded ones were."""
    settings = {"staggered": 2, "staggering": staggering}
    path = Run(tmp_path, kind="pi0", **settings).frames(2).tell().end()
    act = Engine.act

    def of_a_seat(self: Engine, prefix, *given, steps=None, **more):
        chunk = act(self, prefix, *given, steps=steps, **more)
        return chunk if steps else replace(chunk, actions=chunk.actions + 1e-3)

    monkeypatch.setattr(Engine, "act", of_a_seat)
    result, _ = again(path)
    assert result.chunks == 2 and len(result.different_chunks) == (0 if staggering == "fresh" else 2)


def test_replay_guided_chunks_in_the_bag_agree_with_something(tmp_path):
    path = Run(tmp_path, rtc=RtcSettings()).frames(3).tell().end()
    agreements = [chunk.agreement for moment in Moments(Bag(path)) for chunk in moment.chunks]
    assert agreements[0] is None
    assert agreements[1].previous == FIRST and agreements[1].method == "guidance"


def test_replay_one_pixel_in_one_picture_is_found(tmp_path):
    def spoil(camera, frame, picture):
        if (camera, frame) == ("wrist", 4):
            picture[10, 10, 1] ^= 0x80
        return picture

    run = Run(tmp_path, spoil=spoil).frames(FRAMES).tell()
    result, _ = again(run.end())
    assert len(result.different_chunks) == 1
    (difference,) = result.different_chunks
    assert difference.text.startswith(f"request {FIRST + 4}, observed at 1000.400 s: ")
    assert "first in row 0, " in difference.text and "largest difference" in difference.text
    assert 0.0 < difference.size < 1.0


def test_replay_another_seed_is_another_noise_for_every_chunk(tmp_path):
    result, _ = again(Run(tmp_path).frames(FRAMES).tell(settings={"seed": 1}).end())
    assert len(result.different_chunks) == FRAMES and not result.different_texts
    assert max(difference.size for difference in result.different_chunks) > 0.01


def test_replay_noise_that_went_is_named_as_a_reason(tmp_path):
    result, _ = again(Run(tmp_path).frames(1).tell(settings={"noise": "coherent"}).end())
    assert "noise coherent" in result.notes[0]


def test_replay_another_solver_is_other_chunks_and_named_as_a_reason(tmp_path):
    run = Run(tmp_path, solver="ab2", steps=3).frames(3).tell(settings={"solver": "euler"})
    result, _ = again(run.end())
    assert len(result.different_chunks) == result.chunks > 0


@pytest.mark.parametrize(
    ("recorded", "same_gpu", "taken"),
    [("auto", True, "none"), ("32:100", False, "none"), ("32:100", True, "32:100"), ("none", True, "none")],
)
def test_replay_partition_is_made_again_only_where_its_launches_may_be_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str, same_gpu: bool, taken: str
) -> None:
    run = Run(tmp_path).frames(1).tell(settings={"partition": recorded, "lanes": "two"})
    moments = Moments(Bag(run.end()))
    (session,) = moments.sessions.values()
    monkeypatch.setattr("vla_accel_ros.tools.replay.again._gpu", lambda: session.device if same_gpu else "")
    engine, partitions = Load.engine, []

    def loaded(load: Load, *given: Any) -> Engine:
        partitions.append(load.config.partition)
        return engine(load, *given)

    monkeypatch.setattr(Load, "engine", loaded)
    assert replay(moments, AS_RECORDED).equal
    assert partitions == [taken]


def test_replay_another_number_format_differs_and_is_named_as_a_reason(tmp_path):
    path = Run(tmp_path).frames(3).tell().end()
    result, _ = again(path, Otherwise(dtype="bfloat16"))
    assert not result.equal and result.notes == ["dtype float32, here bfloat16"]


def test_replay_another_model_is_said_before_anything_is_computed(tmp_path):
    run = Run(tmp_path).frames(3).tell()
    other = tmp_path / "other"
    shutil.copytree(run.model, other)
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + " ")
    lines: list[str] = []
    result = replay(Moments(Bag(run.end())), Otherwise(model=other), lines.append)
    assert any("is not the recorded model (SHA-256" in line for line in lines)
    assert result.equal and result.notes[0].startswith("checkpoint ")


def test_replay_observations_whose_pictures_were_dropped_are_counted(tmp_path):
    def spoil(camera, frame, picture):
        return None if frame in (2, 3) and camera == "front" else picture

    result, moments = again(Run(tmp_path, spoil=spoil).frames(FRAMES).tell().end())
    assert result.equal and result.frames == FRAMES - 2
    assert moments.counts["incomplete"] == 2 and moments.counts["observations"] == FRAMES


@pytest.mark.parametrize("lost", ["none", "all of one camera"])
def test_replay_pictures_are_let_go_when_they_were_seen_so_that_a_bag_may_be_larger_than_memory(
    tmp_path, monkeypatch, lost
):
    def spoil(camera, frame, picture):
        return None if lost != "none" and camera == "front" else picture

    read: list[weakref.ref] = []
    original = picture_of

    def picture(entry):
        pixels = original(entry)
        read.append(weakref.ref(pixels))
        return pixels

    monkeypatch.setattr(reading, "picture", picture)
    bag = Moments(Bag(Run(tmp_path, spoil=spoil).frames(FRAMES).tell().end()))
    for moment in bag:
        assert len(moment.images) == 2
        del moment
        assert sum(reference() is not None for reference in read) <= 4
    assert len(read) == (2 * FRAMES if lost == "none" else 0)
    assert bag.counts["incomplete"] == (0 if lost == "none" else FRAMES)


@pytest.mark.parametrize(
    ("topic", "message", "kind", "said"),
    [
        ("/camera/front/image_raw", b"", "sensor_msgs/msg/Image", "image message begins with b''"),
        ("/depth", b"\0\1\0\0\1\0\0\0", "sensor_msgs/msg/Image", "ends in header.stamp.nanosec"),
        ("/action_chunk", ActionChunk(horizon=3, action_dim=2), "", "cannot reshape"),
        ("/observed", b"\0\1\0\0\1", "vla_accel_msgs/msg/Observed", "is not a vla_accel_msgs/msg/Observed"),
    ],
    ids=["empty picture", "short picture", "chunk", "observation"],
)
def test_replay_what_the_nodes_refused_is_named_and_all_else_is_replayed(
    tmp_path, topic, message, kind, said
):
    run = Run(tmp_path).frames(2)
    run.write(topic, message, kind)
    path = run.frames(2).tell().end()
    result, read = again(path)
    assert result.equal and result.chunks == 4 and read.counts["unreadable"] == 1
    (line,) = (line for line in report(Bag(path), read, result) if "cannot be read" in line)
    assert f"1 messages cannot be read; {topic}: " in line and said in line


def test_replay_picture_that_claims_gigabytes_is_refused_before_it_gets_them(tmp_path):
    run = Run(
        tmp_path, spoil=lambda camera, frame, picture: None if (camera, frame) == ("front", 1) else picture
    )
    run.frames(3)
    claims = image_message(START_NS + PERIOD_NS, "front", np.zeros((48, 64, 3), np.uint8))
    size = claims.index(struct.pack("<II", 48, 64))
    claims[size : size + 8] = struct.pack("<II", 1 << 20, 1 << 20)
    run.write("/camera/front/image_raw", claims, "sensor_msgs/msg/Image")
    result, read = again(run.tell().end())
    assert result.equal and result.chunks == 2
    assert read.counts["unreadable"] == 1 and "image step is 192" in read.unreadable


def test_replay_command_ends_with_0_when_equal_and_with_1_when_not(tmp_path, capsys):
    path = Run(tmp_path).frames(3).tell().end()
    assert cli.main(["replay", str(path)]) == 0
    assert "chunks  3 of 3 equal" in capsys.readouterr().out
    assert cli.main(["replay", str(path), "--dtype", "bfloat16"]) == 1
    printed = capsys.readouterr().out
    assert "chunks  0 of 3 equal" in printed
    assert f"the first that differs: request {FIRST}, observed at 1000.000 s: " in printed
    assert "why     it may be dtype float32, here bfloat16" in printed


def test_replay_recording_from_before_settings_of_a_training_were_asked_for_can_be_given_them(
    tmp_path, capsys
):
    vision = VisionConfig(width=72, depth=1, mlp=16, heads=1, image_size=28, patch=14)
    model = make_checkpoint(tmp_path / "model", make_config(vision=vision, image_names=PI05.image_names))
    (model / "config.json").unlink()
    words = "action_horizon=16 discrete_state_input=true use_quantile_norm=true adapt_to_pi=false"
    path = Run(tmp_path, trained_as=words).frames(2).tell(without=("trained_as",)).end()
    assert cli.main(["replay", str(path)]) == 2
    assert "action_horizon" in capsys.readouterr().err
    assert cli.main(["replay", str(path), "--as", words]) == 0
    assert "chunks  2 of 2 equal" in capsys.readouterr().out


def test_replay_answer_of_a_lerobot_folder_replaces_the_recorded_parameter(tmp_path, capsys):
    config = make_config("pi05", horizon=16)
    make_lerobot_folder(tmp_path / "model", config, use_peft=False)
    path = Run(tmp_path, prompt_state="padded").frames(2).tell().end()
    assert cli.main(["replay", str(path), "--as", "prompt_state=padded"]) == 0
    assert cli.main(["replay", str(path), "--as", "prompt_state=own"]) == 1
    assert "chunks  0 of 2 equal" in capsys.readouterr().out


def test_replay_says_how_far_it_is(tmp_path, capsys):
    again(Run(tmp_path).frames(3).tell().end())
    assert "3/3" in capsys.readouterr().err


def test_replay_commands_are_for_publishing_alone(tmp_path, capsys):
    path = Run(tmp_path).frames(1).tell().end()
    assert cli.main(["replay", str(path), "--commands"]) == 2
    assert "--commands changes what --publish plays" in capsys.readouterr().err


def test_replay_what_cannot_be_replayed_is_refused_with_a_sentence(tmp_path, capsys):
    run = Run(tmp_path).frames(1)
    assert cli.main(["replay", str(run.end())]) == 2
    assert "has no message of type vla_accel_msgs/msg/Session" in capsys.readouterr().err
    assert cli.main(["replay", str(tmp_path / "nothing")]) == 2
    assert "does not exist: give a bag's folder" in capsys.readouterr().err
    without_model = Run(tmp_path / "gone").frames(1).tell()
    shutil.rmtree(without_model.model)
    assert cli.main(["replay", str(without_model.end())]) == 2
    assert "does not exist: give --model DIR" in capsys.readouterr().err


def test_replay_urdf_that_the_contract_names_travels_in_the_bag(tmp_path):
    run = Run(tmp_path).frames(2)
    folder = Path(__file__).resolve().parents[2] / "config" / "contracts"
    text = (folder / "sim_arm.yaml").read_text()
    joints = "".join(
        f'<joint name="{j.name}" type="revolute"><limit lower="{j.lower}" upper="{j.upper}" '
        f'velocity="{j.velocity}" effort="1"/></joint>'
        for j in run.contract.joints
    )
    run.tell(contract=f"urdf: /nowhere/arm.urdf\n{text}", urdf=f'<robot name="arm">{joints}</robot>')
    result, _ = again(run.end())
    assert result.equal and np.isfinite(result.seconds)


def test_replay_what_a_chunk_may_have_been_computed_with_is_named_where_its_bits_depend_on_it(
    tmp_path: Path,
) -> None:
    assert company({}) == company({"frames_together": 1, "seats_by_load": False}) == []
    assert company({"frames_together": 4}) == ["frames_together 4: frames were batched with others'"]
    seats = {"fast": True, "staggered": 2, "seats_by_load": True, "slots": 6}
    run = Run(tmp_path).tell(settings={**seats, "seed": 9}).frames(2)
    bag = Bag(run.end())
    moments = Moments(bag)
    result = replay(moments)
    assert not result.equal
    line = report(bag, moments, result)[-1]
    assert line.startswith("why     it may be seats_by_load: the batch of a step had as many seats as were")


@pytest.mark.parametrize("rtc", [None, RtcSettings()], ids=["free", "guided"])
def test_replay_computes_the_chunks_of_an_embodiment_again(tmp_path: Path, rtc: RtcSettings | None) -> None:
    add_embodiment(make_groot_folder(tmp_path / "model"))
    (tmp_path / "robot.yaml").write_text(JOINTS.replace("step_dt_s: 0.05", "step_dt_s: 0.1"))
    run = Run(tmp_path, rtc=rtc, contract=tmp_path / "robot.yaml", statistics=OTHER, steps=4)
    result, moments = again(run.frames(4).tell().end())
    assert result.equal, result.different_chunks
    assert (result.chunks, result.frames) == (4, 4)
    assert not result.notes and not moments.counts["incomplete"]
