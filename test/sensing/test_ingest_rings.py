"""Handles in, observations out: used where the camera wrote them, verified, and never acted on when torn."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from builders import make_policy
from rings import is_whole, known_image, left_over, unique
from streams import S, make_contract

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Act, Pace, Request, Waits
from vla_accel_ros.engine.streaming.ports import Ports
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.sensing.cameras.frames import Frame
from vla_accel_ros.sensing.cameras.ring import Handle, RingWriter, ring_name
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.types import Torn

H, W, SLOTS = 20, 30, 3
NOW = 50 * S


class Robot:
    """Two cameras that write rings, and the ingest that hears of it. copy: see RingReader; in place it is as
    with a GPU that holds their pages."""

    def __init__(self, name: str, copy: bool | None = False) -> None:
        contract = make_contract()
        cameras = tuple(replace(camera, transport="ring") for camera in contract.cameras)
        self.contract = replace(contract, cameras=cameras)
        self.names = {camera.name: f"{name}.{camera.name}" for camera in cameras}
        self.writers = {camera: RingWriter(ring, H, W, SLOTS) for camera, ring in self.names.items()}
        self.ingest = Ingest(self.contract, copy=copy)
        self.ingest.instruction = "reach the red block"

    def film(self, stamp_ns: int) -> dict[str, Handle]:
        """Write a frame of each camera."""
        return {
            camera: writer.write(known_image(stamp_ns, H, W), stamp_ns)
            for camera, writer in self.writers.items()
        }

    def send(self, handles: dict[str, Handle], now_ns: int) -> None:
        """Hand the frames over, and the joints of that time."""
        self.ingest.joints(self.contract.joint_names, [0.0] * 6, now_ns, now_ns)
        for camera, handle in handles.items():
            self.ingest.handle(camera, handle, now_ns)

    def close(self) -> None:
        self.ingest.close()
        for writer in self.writers.values():
            writer.close()


@pytest.fixture
def robot():
    name = unique("ingest")
    robot = Robot(name)
    yield robot
    robot.close()
    assert left_over(name) == []


def test_an_observation_is_the_slots_themselves_and_intact_until_the_camera_comes_round(robot):
    robot.send(robot.film(NOW), NOW)
    observation = robot.ingest.observe(NOW)
    assert observation.stamp_ns == NOW and set(observation.images) == {"base_0_rgb", "left_wrist_0_rgb"}
    assert observation.intact()
    pixels = observation.images["base_0_rgb"].copy()
    assert is_whole(Frame("front", NOW, pixels))
    for step in range(1, SLOTS + 1):
        robot.film(NOW + step)
    assert not observation.intact()
    assert (observation.images["base_0_rgb"] != pixels).any(), "it was a copy"
    assert {camera: robot.ingest.lost(camera) for camera in robot.names} == {"front": 1, "wrist": 1}


def test_without_a_gpu_an_observation_is_a_copy_that_a_cut_ring_does_not_end():
    name = unique("copied")
    robot = Robot(name, copy=None)
    robot.send(robot.film(NOW), NOW)
    observation = robot.ingest.observe(NOW)
    for ring in robot.names.values():
        os.truncate(segment_path(ring), 0)
    assert observation.intact() and is_whole(Frame("front", NOW, observation.images["base_0_rgb"]))
    with pytest.raises(ValueError, match="restart its camera"):
        handle = robot.writers["front"].handle
        assert handle is not None
        robot.ingest.handle("front", handle, NOW + S)
    assert robot.ingest.observe(NOW + S) is None
    robot.close()
    assert left_over(name) == []


def test_the_engine_discards_what_was_overwritten_before_it_had_the_pixels(robot):
    engine = Engine(make_policy(), slots=4, steps=1)
    robot.send(robot.film(NOW), NOW)
    observation = robot.ingest.observe(NOW)
    for step in range(1, SLOTS + 1):
        robot.film(NOW + step)
    with pytest.raises(Torn, match=f"the images of {NOW} were overwritten"):
        engine.observe(observation)
    assert engine.runner.prefixes.newest() is None
    for _ in range(10):  # the slot of the cache was given back
        with pytest.raises(Torn):
            engine.observe(observation)


def test_vision_goes_on_with_the_next_frame_and_nothing_is_acted_on(robot):
    errors = []
    overtake = [True]

    def observe():
        observation = robot.ingest.observe(NOW)
        if observation is not None and overtake.pop():
            robot.send([robot.film(NOW + step) for step in range(1, SLOTS + 1)][-1], NOW)
            overtake.append(False)
        return observation

    ports = Ports(
        observe,
        robot.ingest.observed,
        lambda: None,
        lambda chunk, _: None,
        lambda _: None,
        lambda *error: errors.append(error),
    )
    engine = Engine(make_policy(), slots=4, steps=1)
    stream = Streaming(engine, ports, Pace(10.0), Pace(10.0), None)
    act = engine.scheduler.submit(Request(Act(), waits=Waits.NEWS))
    robot.send(robot.film(NOW), NOW)
    assert not stream.run_vision() and not engine.scheduler.step()
    overtake[:] = [False]
    assert stream.run_vision() and engine.scheduler.step() == (act,)
    assert act.result.stamp_ns == NOW + SLOTS and not errors


def test_a_ring_of_another_size_or_name_is_followed(robot):
    robot.send(robot.film(NOW), NOW)
    robot.writers["front"].close()
    with RingWriter(robot.names["front"] + ".new", 2 * H, W) as writer:
        wrist = robot.writers["wrist"].write(known_image(1, H, W), NOW + 2)
        robot.send({"wrist": wrist, "front": writer.write(known_image(1, 2 * H, W), NOW + 2)}, NOW + 2)
        observation = robot.ingest.observe(NOW + 2)
        assert observation.images["base_0_rgb"].shape == (2 * H, W, 3)
        assert observation.images["left_wrist_0_rgb"].shape == (H, W, 3)


def test_a_handle_that_leads_nowhere_is_refused_in_a_sentence_and_counted(robot):
    handle = robot.film(NOW)["front"]
    for bad_handle, words in [
        (replace(handle, ring="../etc"), "camera front: ring name '../etc' is invalid"),
        (replace(handle, ring="nobody.has.this"), "ring 'nobody.has.this' does not exist: start its camera"),
        (
            replace(handle, height=H + 1),
            f"a handle describes a {H + 1} x {W} rgb8 frame, ring .* holds {H} x {W} rgb8",
        ),
        (replace(handle, encoding="bgr8"), "bgr8 frame"),
        (replace(handle, ring=robot.names["wrist"]), "is camera wrist's already"),
    ]:
        robot.ingest.handle("wrist", robot.film(NOW)["wrist"], NOW)
        with pytest.raises(ValueError, match=words):
            robot.ingest.handle("front", bad_handle, NOW)
    assert robot.ingest.refused["front"] == 5 and robot.ingest.refused["wrist"] == 0
    robot.ingest.handle("front", robot.film(NOW)["front"], NOW)


def test_a_frame_that_is_gone_when_its_handle_comes_is_lost_and_not_refused(robot):
    handle = robot.film(NOW)["front"]
    for step in range(SLOTS):
        robot.film(NOW + step)
    robot.ingest.handle("front", handle, NOW)
    for slot in (SLOTS, 2**32 - 1):
        robot.ingest.handle("front", replace(handle, slot=slot), NOW)
    assert robot.ingest.lost("front") == 3 and robot.ingest.refused["front"] == 0


def test_a_ring_and_messages_are_mixed_as_the_contract_says(robot):
    from test_ingest import image

    front, wrist = robot.contract.cameras
    ingest = Ingest(replace(robot.contract, cameras=(front, replace(wrist, transport="raw"))))
    ingest.instruction = "reach the red block"
    ingest.joints(robot.contract.joint_names, [0.0] * 6, NOW, NOW)
    ingest.handle("front", robot.film(NOW)["front"], NOW)
    ingest.observe(NOW)
    assert ingest.waiting_for == "no frame of camera wrist yet"
    ingest.image("wrist", image(NOW + S // 100), NOW)
    observation = ingest.observe(NOW)
    assert {name: image.shape[:2] for name, image in observation.images.items()} == {
        "base_0_rgb": (H, W),
        "left_wrist_0_rgb": (4, 6),
    }
    ingest.observed()
    ingest.close()


def test_clear_forgets_the_frames_in_the_rings(robot):
    robot.send(robot.film(NOW), NOW)
    robot.ingest.clear()
    assert robot.ingest.observe(NOW) is None
    robot.send(robot.film(NOW - 20 * S), NOW - 20 * S)  # the clock was set back
    assert robot.ingest.observe(NOW - 20 * S).stamp_ns == NOW - 20 * S


def test_where_memory_lies_is_said_for_diagnostics(robot):
    assert robot.ingest.rings.page_lock("front").state == "no ring yet"
    robot.send(robot.film(NOW), NOW)
    lock = robot.ingest.rings.page_lock("front")
    assert lock.locked or lock.state == "no CUDA device"


def test_rings_are_named_after_domain_robot_and_camera():
    assert ring_name(42, "/robot1", "front") == "d42.robot1.front"
    assert ring_name(0, "/left/arm/", "wrist") == "d0.left.arm.wrist"
    assert ring_name(0, "/", "wrist") == "d0.wrist"


def test_handles_of_all_rings_make_a_set_that_the_vision_loop_awaits(robot):
    for k in range(3):
        robot.send(robot.film(NOW + k * S // 30), NOW + k * S // 30)
        assert robot.ingest.sets.count == k + 1
