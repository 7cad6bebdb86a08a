"""`vla look` and `vla plot` of bags: what is shown is what was in the bag, and pictures are the network's."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest
import torch
from driven_bag import START_NS, Drive, level, measured, sent
from PIL import Image
from recorded_run import Run

from vla_accel_msgs.msg import ActionChunk, Motion
from vla_accel_ros.engine.session import PIXELS
from vla_accel_ros.models.openvla.policy import PixelNorm
from vla_accel_ros.models.processing.conventions import LEROBOT, OPENPI, lerobot_resize
from vla_accel_ros.models.smolvla.policy import PIXELS as SMOLVLA
from vla_accel_ros.models.smolvla.policy import resize_to_corner
from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.look import drawing, plotted
from vla_accel_ros.tools.look.pictures import NetworkPictures
from vla_accel_ros.tools.look.recorded import Recorded
from vla_accel_ros.tools.look.scene import Scene
from vla_accel_ros.tools.look.server import Look, serve

S = 1_000_000_000
SIDE = 28


def floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


def pixels(url: str) -> np.ndarray:
    """RGB of a data: URL."""
    data = np.frombuffer(base64.b64decode(url.partition(",")[2]), np.uint8)
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))[..., ::-1]


@contextmanager
def page_of(look: Look) -> Iterator[str]:
    """The address of a page that is served meanwhile."""
    server = serve(look, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(address: str, **headers: str) -> tuple[int, bytes]:
    """Status and body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def resized_by_pillow(picture: np.ndarray, size: tuple[int, int], kernel: Image.Resampling) -> Image.Image:
    """In two calls, because from Pillow 13 on one call takes the columns of a tall image first."""
    wide = Image.fromarray(picture).resize((size[0], picture.shape[0]), kernel)
    return wide.resize(size, kernel)


def pillow(picture: np.ndarray) -> np.ndarray:
    """openpi's own: fitted into the square by Pillow's bilinear filter, centred on black."""
    height, width = picture.shape[:2]
    ratio = max(height, width) / SIDE
    inner = int(width / ratio), int(height / ratio)
    square = Image.new("RGB", (SIDE, SIDE))
    resized = resized_by_pillow(picture, inner, Image.Resampling.BILINEAR)
    square.paste(resized, ((SIDE - inner[0]) // 2, (SIDE - inner[1]) // 2))
    return np.asarray(square)


def shown(unit: torch.Tensor) -> np.ndarray:
    """A network's picture of [-1, 1], channels first, as bytes."""
    return ((unit + 1.0) * 127.5).round().clamp(0, 255).permute(1, 2, 0).numpy().astype(np.uint8)


REFERENCES = {
    "openpi": (OPENPI.pixels, pillow),
    "lerobot": (LEROBOT.pixels, lambda p: shown(lerobot_resize(torch.from_numpy(p.copy())[None], SIDE)[0])),
    "smolvla": (SMOLVLA, lambda p: shown(resize_to_corner(torch.from_numpy(p.copy()), SIDE))),
    "openvla": (
        PixelNorm().rule,
        lambda p: np.asarray(resized_by_pillow(p, (SIDE, SIDE), Image.Resampling.BICUBIC)),
    ),
}


@pytest.mark.parametrize("family", REFERENCES)
def test_look_picture_is_turned_cropped_and_resized_as_the_family_does(tmp_path: Path, family: str) -> None:
    rule, reference = REFERENCES[family]
    camera = {"topic": "front", "image": "base_0_rgb", "rate_hz": 30, "max_age_s": 0.5}
    drive = Drive(tmp_path / "bag", 0.1, cameras={"front": {**camera, "rotation": 90, "crop": 0.8}})
    session = drive._session("arm")
    settings = json.dumps({PIXELS: rule.described(SIDE)})
    network = NetworkPictures(type(session)(**{**vars(session), "settings": settings}))
    picture = np.random.default_rng(3).integers(0, 256, (50, 80, 3), np.uint8)
    view = np.ascontiguousarray(np.rot90(picture, -1)[8:72, 5:45])  # 0.8 of 80 x 50
    np.testing.assert_array_equal(network.of(drive.contract.cameras[0], picture), reference(view))


def test_look_at_a_time_shows_what_the_bag_had_then(tmp_path: Path) -> None:
    told = ((0.0, "reach the red block"), (1.0, "follow it"))
    motion = ((0.0, Motion.RUNNING), (1.2, Motion.HOLDING))
    drive = Drive(tmp_path / "bag", told=told, motion=motion, observed=((0.5, "an old one"),))
    look = Look(Recorded(tmp_path / "bag"))
    early, late = look.moment(0.9), look.moment(1.5)
    assert (early["instruction"], late["instruction"]) == ("reach the red block", "follow it")
    assert (early["state"], late["state"]) == ("running", "holding")
    assert [state for _, state, _ in late["events"]] == ["running", "holding"]
    names = [joint.name for joint in drive.contract.joints]
    assert [name for name, _, _ in late["robot"]["joints"]] == names
    for key, formula in (("measured", measured), ("commanded", sent)):
        times = floats(late[key]["times"])
        positions = floats(late[key]["positions"]).reshape(len(names), -1)
        # Of two controllers one is heard first; the last sample has both.
        at_s = 1.5 + float(times[-1])
        np.testing.assert_allclose(positions[:, -1], [formula(at_s, j) for j in range(len(names))], atol=1e-5)
    front = late["cameras"][0]
    # Of the newest observation, whose pictures were 0.1 s old.
    assert pixels(front["camera"]).mean() == pytest.approx(level(0.4), abs=1.0)
    assert front["age_s"] == pytest.approx(1.1, abs=0.001) and not front["exact"]
    unobserved = look.moment(0.3)["cameras"][0]
    assert pixels(unobserved["camera"]).mean() == pytest.approx(level(0.3), abs=1.0)
    assert look.moment(99.0)["at_s"] == look.moment()["at_s"] == pytest.approx(2.0)
    for part in late["sent"]:
        due_s, values = (
            1.5 + floats(part["times"]),
            floats(part["positions"]).reshape(len(part["joints"]), -1),
        )
        np.testing.assert_allclose(values[0], [sent(float(s), part["joints"][0]) for s in due_s], atol=1e-4)


def test_look_bag_of_an_engine_shows_the_pictures_and_chunks_of_its_frames(tmp_path: Path) -> None:
    run = Run(tmp_path)
    path = run.tell().frames(3).end()
    recorded = Recorded(path)
    moment = Look(recorded).moment()
    policy: Any = run.engine.policy
    for camera in run.contract.cameras:
        _, picture = recorded.image(camera.name, recorded.last_ns) or pytest.fail("no picture")
        expected = policy.resized([torch.from_numpy(camera.view(picture).copy())])[0]
        (shown_camera,) = (c for c in moment["cameras"] if c["name"] == camera.name)
        assert shown_camera["exact"]
        network = pixels(shown_camera["network"]).astype(int)
        # On a CPU openpi's resize is torch's, within a level of the captured stages'.
        assert np.abs(network - shown(expected).astype(int)).max() <= 1
    (*_, chunk) = moment["chunks"]
    actions = floats(chunk["actions"]).reshape(len(run.contract.joints), -1)
    assert actions.shape[1] == 16 and np.isfinite(actions).all()
    assert chunk["number"] == recorded.scene.chunks.values[-1].number


def test_look_committed_actions_are_those_due_and_those_past_on_arrival(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "bag", 0.1)
    scene = Scene(drive._session("arm"))
    names = drive.contract.joint_names
    chunk = ActionChunk(horizon=10, action_dim=2, execution_horizon=8, agreed_delay=3, step_dt_s=0.1)
    chunk.joint_names = [names[2], names[0]]
    chunk.actions = [float(i) for i in range(20)]
    set_stamp(chunk.header.stamp, START_NS)
    scene.take("action_chunk", chunk, START_NS + S // 10)
    (early,), (late,) = (scene.moment(START_NS + t)["chunks"] for t in (S // 10, S // 2))
    assert (early["committed"], late["committed"], late["executed"]) == (3, 5, 8)
    actions = floats(late["actions"]).reshape(len(names), 10)
    assert list(actions[2, :2]) == [0.0, 2.0] and list(actions[0, :2]) == [1.0, 3.0]
    assert np.isnan(actions[1]).all()
    np.testing.assert_allclose(floats(late["times"])[:2], [-0.4, -0.3], atol=1e-6)


def test_look_message_that_cannot_be_read_is_named_and_hides_nothing_else(tmp_path: Path) -> None:
    spoilt = {
        "camera/front/image_raw": (b"\0\1\0\0short", "sensor_msgs/msg/Image"),
        "action_chunk": (b"\0\1\0\0short", "vla_accel_msgs/msg/ActionChunk"),
    }
    Drive(tmp_path / "bag", spoilt=spoilt)
    moment = Look(Recorded(tmp_path / "bag")).moment()
    assert "action_chunk" in moment["unreadable"] or "camera/front" in moment["unreadable"]
    assert moment["cameras"][0]["camera"] and floats(moment["measured"]["times"]).size


def test_look_page_is_served_to_this_machine_alone(tmp_path: Path) -> None:
    Drive(tmp_path / "bag", 1.0)
    with page_of(Look(Recorded(tmp_path / "bag"))) as address:
        status, page = asked(address)
        assert status == 200 and b"/moment" in page and b"http" not in page.replace(b"http://...", b"")
        status, body = asked(f"{address}moment?at=0.5&exact=1")
        moment: dict[str, Any] = json.loads(body)
        assert status == 200 and moment["at_s"] == pytest.approx(0.5) and not moment["live"]
        assert moment["cameras"][0]["network"].startswith("data:image/png;")
        assert asked(f"{address}moment?at=soon")[0] == asked(f"{address}moment?at=inf")[0] == 400
        assert asked(f"{address}etc/passwd")[0] == 404
        assert asked(address, Host="robots.example:80")[0] == 403


def test_look_answers_a_browser_that_keeps_its_connection_without_waiting(tmp_path: Path) -> None:
    """For an acknowledgement of the headers, which would take 40 ms."""
    Drive(tmp_path / "bag", 1.0)
    with page_of(Look(Recorded(tmp_path / "bag"))) as address:
        connection, took_s = HTTPConnection(urlsplit(address).netloc), []
        for _ in range(30):
            began_s = time.monotonic()
            connection.request("GET", "/")
            connection.getresponse().read()
            took_s.append(time.monotonic() - began_s)
        connection.close()
    assert sorted(took_s)[5] < 0.03


def test_look_page_shows_a_bag_in_a_browser(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    Drive(tmp_path / "bag", motion=((0.0, Motion.RUNNING),))
    with page_of(Look(Recorded(tmp_path / "bag"))) as address:
        offline = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--host-resolver-rules={offline}"]
        options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom"]
        done = subprocess.run(
            [chromium, *options, f"{address}#1.5"], capture_output=True, text=True, timeout=300
        )
    text = done.stdout.rpartition("<script>")[0]
    assert '<span id="state" class="running">running</span>' in text
    assert '<b id="instruction" class="">reach the red block</b>' in text
    assert '<div id="trouble" class=""></div>' in text  # an error of the page would be there
    assert text.count('src="data:image/') == 4 and text.count("<canvas") == 6
    assert "1.50 of 2.0 s" in text


def test_look_png_and_plot_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Drive(tmp_path / "bag", motion=((0.0, Motion.RUNNING), (1.0, Motion.HOLDING)))
    for command, name in ((["look", "--png"], "look.png"), (["plot", "-o"], "plot.png")):
        file = tmp_path / name
        assert main([command[0], str(tmp_path / "bag"), command[1], str(file)]) == 0
        assert file.name in capsys.readouterr().err
        picture = cv2.imread(str(file))
        assert picture is not None and picture.shape[1] > 1000 and len(np.unique(picture)) > 50


def test_look_png_keeps_its_pictures_when_much_is_wrong(tmp_path: Path) -> None:
    Drive(tmp_path / "bag", motion=((0.0, Motion.RUNNING),))
    moment = Look(Recorded(tmp_path / "bag")).moment()
    moment["lines"] = [(f"stream {i}", 1, "arrives late " * 12, {}) for i in range(40)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a layout that leaves no room to an axis
        drawing.write(tmp_path / "look.png", moment)


def test_plot_has_the_joints_hand_overs_and_stops_of_the_bag(tmp_path: Path) -> None:
    states = ((0.2, Motion.RUNNING), (1.0, Motion.STOPPING), (1.1, Motion.HOLDING), (1.6, Motion.RUNNING))
    drive = Drive(tmp_path / "bag", motion=states)
    recorded = Recorded(tmp_path / "bag")
    traces = plotted.traces_of(recorded.scene, recorded.last_ns)
    seconds = (traces.times_ns - START_NS) * 1e-9
    for column, name in enumerate(traces.joints):
        joint = drive.contract.joint_names.index(name)
        wanted = [[formula(s, joint) for s in seconds] for formula in (measured, sent)]
        np.testing.assert_allclose(traces.measured[:, column], wanted[0], atol=2e-4)
        np.testing.assert_allclose(traces.commanded[:, column], wanted[1], atol=2e-4)
    np.testing.assert_allclose((traces.handovers_ns - START_NS) * 1e-9, np.arange(0.0, 2.05, 0.1), atol=1e-6)
    (stop,) = plotted.stops_of(recorded.scene, traces, recorded.last_ns)
    assert (stop.from_s, stop.to_s) == (pytest.approx(1.0, abs=0.01), pytest.approx(1.6, abs=0.01))
    assert [words.partition(":")[0] for words in stop.words] == ["stopping", "holding"]


def test_plot_of_a_bag_without_commands_draws_the_joints(tmp_path: Path) -> None:
    Drive(tmp_path / "bag", commands=False)
    recorded = Recorded(tmp_path / "bag")
    traces = plotted.traces_of(recorded.scene, recorded.last_ns)
    assert np.isnan(traces.commanded).all() and np.isfinite(traces.measured).all()
    plotted.write(tmp_path / "plot.png", recorded)
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_look_after_the_clock_was_set_shows_the_last_part(tmp_path: Path) -> None:
    Drive(tmp_path / "bag", set_by=(1.0, -100.0))
    recorded = Recorded(tmp_path / "bag")
    assert (recorded.last_ns - recorded.first_ns) * 1e-9 == pytest.approx(1.0, abs=0.02)
    assert Look(recorded).moment(0.5)["cameras"][0]["age_s"] < 0.1


def test_look_refuses_what_is_no_robot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", str(tmp_path / "absent")]) == 2 and "absent" in capsys.readouterr().err
    Drive(tmp_path / "bag", 0.1, robots=("left", "right"))
    assert main(["plot", str(tmp_path / "bag")]) == 2
    assert "left" in (err := capsys.readouterr().err) and "--namespace" in err
    assert main(["look", str(tmp_path / "bag"), "--port", "70000"]) == 2
    assert "70000" in capsys.readouterr().err
