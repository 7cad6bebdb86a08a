"""JPEG and PNG become RGB in the slot; what would decode to something else than was sent is refused."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest
from bombs import black_png, jpeg_of_scans, jpeg_that_claims, refused
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.sensing.cameras.compressed import Header, check_decodes, decode, read_header, write_bgr
from vla_accel_ros.sensing.cameras.image import CompressedView

H, W = 30, 42
BGR = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 256, (H, W, 3), np.uint8), (0, 0), 3)


def code(extension: str, picture: np.ndarray = BGR, *settings: int) -> bytes:
    good, coded = cv2.imencode(extension, picture, settings)
    assert good
    return coded.tobytes()


JPEG, PNG = code(".jpg"), code(".png")


def view(data: bytes, format: str = "bgr8; jpeg compressed bgr8") -> CompressedView:
    return CompressedView(0, "front", format, np.frombuffer(data, np.uint8))


def rgb(data: bytes) -> np.ndarray:
    picture = decode(view(data))
    out = np.full(picture.shape, 0xAA, np.uint8)
    write_bgr(picture, out)
    return out


def test_a_png_is_the_pixels_that_were_coded():
    np.testing.assert_array_equal(rgb(PNG), BGR[..., ::-1])


@pytest.mark.parametrize(
    "settings",
    [
        (),
        (cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        (cv2.IMWRITE_JPEG_RST_INTERVAL, 2),
        (cv2.IMWRITE_JPEG_QUALITY, 40),
    ],
    ids=["baseline", "progressive", "restarts", "coarse"],
)
def test_a_jpeg_is_what_opencv_decodes(settings):
    data = code(".jpg", BGR, *settings)
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    expected = decoded[..., ::-1]
    np.testing.assert_array_equal(rgb(data), expected)
    assert np.abs(rgb(data).astype(int) - BGR[..., ::-1]).mean() < 8


@pytest.mark.parametrize("extension", [".jpg", ".png"])
def test_grey_becomes_rgb_and_alpha_is_left_out(extension):
    grey = rgb(code(extension, BGR[..., 0]))
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])
    if extension == ".png":
        np.testing.assert_array_equal(grey[..., 0], BGR[..., 0])
        with_alpha = np.dstack([BGR, np.full((H, W), 7, np.uint8)])
        np.testing.assert_array_equal(rgb(code(extension, with_alpha)), BGR[..., ::-1])


def test_an_exif_rotation_is_not_applied():
    orientation = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    segment = b"\xff\xe1" + (len(orientation) + 2).to_bytes(2, "big") + orientation
    turned = JPEG[:2] + segment + JPEG[2:]
    assert cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR).shape == (W, H, 3)
    np.testing.assert_array_equal(rgb(turned), rgb(JPEG))


def test_what_it_is_stands_in_its_own_bytes_and_not_in_the_format():
    assert read_header(view(JPEG, "png")) == Header("jpeg", H, W, 8)
    assert read_header(view(PNG, "jpeg")) == Header("png", H, W, 8)


@pytest.mark.parametrize("padding", [1, 2, 77, 300_000])
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_zeros_and_fill_bytes_behind_a_jpeg_are_padding(byte, padding):
    np.testing.assert_array_equal(rgb(JPEG + padding * byte), rgb(JPEG))


@pytest.mark.parametrize("fill", [1, 3, 1000, 300_000])
def test_fill_bytes_before_any_marker_of_a_jpeg_change_nothing(fill):
    """ITU-T T.81, B.1.1.2: any marker may be preceded by any number of fill bytes FF."""
    filled, offset = JPEG[:2], 2
    while JPEG[offset + 1] != 0xDA:
        end = offset + 2 + int.from_bytes(JPEG[offset + 2 : offset + 4], "big")
        filled, offset = filled + fill * b"\xff" + JPEG[offset:end], end
    filled += fill * b"\xff" + JPEG[offset:-2] + fill * b"\xff" + JPEG[-2:]
    np.testing.assert_array_equal(rgb(filled), rgb(JPEG))


def test_a_jpeg_of_a_hundred_thousand_markers_is_refused_and_one_with_a_large_profile_is_not():
    segment = b"\xff\xe2" + (2).to_bytes(2, "big")
    with pytest.raises(ValueError, match="without a frame header"):
        rgb(JPEG[:2] + 100_000 * segment + JPEG[2:])
    np.testing.assert_array_equal(rgb(JPEG[:2] + 300 * segment + JPEG[2:]), rgb(JPEG))


def huge(data: bytes) -> bytes:
    """The JPEG with 65500 x 65500 in its frame header."""
    offset = data.index(b"\xff\xc0") + 5
    return data[:offset] + (65500).to_bytes(2, "big") * 2 + data[offset + 4 :]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (code(".png", BGR.astype(np.uint16) * 256), "is a 16-bit png, not 8-bit colour: have the driver"),
        (JPEG[:-2], "is a jpeg without its end: it was cut short"),
        (JPEG[: len(JPEG) // 2], "is a jpeg without its end"),
        (b"\xff\xd8\xff\xd9", "is a jpeg without a frame header: it is damaged"),
        (JPEG[:2] + JPEG[-2:] + bytes(40), "is a jpeg without a frame header"),
        (PNG[: len(PNG) // 2], f"of {H} x {W} is damaged: the png does not decode"),
        (PNG[:40], "is damaged"),
        (PNG[:20], "which is neither jpeg nor png: have the driver publish one of these"),
        (PNG[:500] + bytes([PNG[500] ^ 1]) + PNG[501:], "is damaged: the png does not decode"),
        (huge(JPEG), "declares 65500 x 65500: at most 33177600 pixels are decoded; if the camera sends"),
        (code(".bmp"), "which is neither jpeg nor png"),
        (b"", "which is neither jpeg nor png"),
        (b"\xff\xd8", "without its end"),
        (bytes(12) + PNG, "of format 'bgr8; jpeg compressed bgr8' begins with"),
    ],
)
def test_what_cannot_be_decoded_is_refused_in_one_sentence(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        decode(view(data))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: jpeg_that_claims(4096, 8100), "declares 4096 x 8100, which no jpeg of 6.. bytes can hold"),
        (lambda: black_png(4320, 7680)[:3000] + bytes(20), "4320 x 7680, .* png of 3020 bytes"),
        (lambda: jpeg_of_scans(1080, 1920, 1000), "of 1080 x 1920 has 1010 scans, at most 32 are decoded"),
        (lambda: jpeg_of_scans(480, 640, 23), "has 33 scans"),
    ],
    ids=["pixels", "png", "scans", "a scan too many"],
)
def test_a_few_bytes_that_ask_for_much_are_refused_before_they_get_it(make, sentence):
    data = make()
    refusal = refused(lambda: decode(view(data)))
    assert re.search(sentence, refusal.sentence), refusal
    assert refusal.peak_mb < 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: jpeg_of_scans(480, 640, 22),
        lambda: jpeg_of_scans(2160, 3840, 0),
        lambda: black_png(2160, 3840),
        lambda: code(".jpg", np.zeros((1000, 1040, 3), np.uint8), cv2.IMWRITE_JPEG_OPTIMIZE, 1),
    ],
    ids=["32 scans", "4K progressive", "4K png", "lens cap"],
)
def test_what_a_camera_may_send_with_its_cap_on_is_decoded(make):
    assert not decode(view(make())).any()


def test_a_camera_has_a_bound_of_its_own():
    data = view(code(".png", np.zeros((11, 10, 3), np.uint8)))
    assert decode(data, 110).shape == (11, 10, 3)
    with pytest.raises(ValueError, match=r"11 x 10: .*109 pixels"):
        decode(data, 109)


def test_jpegs_that_no_camera_sends_are_refused():
    start = JPEG.index(b"\xff\xc0")
    for kind, components in ((0xC3, 3), (0xC9, 3), (0xC0, 2), (0xC0, 255)):
        odd = bytearray(JPEG)
        odd[start + 1], odd[start + 9] = kind, components
        with pytest.raises(ValueError, match=f"of kind {kind:02X} with {components} components, which no"):
            decode(view(bytes(odd)))


@given(st.sampled_from([JPEG, PNG]), st.integers(0, 10_000), st.integers(1, 255), st.integers(0, 40))
def test_whatever_the_bytes_are_it_is_a_picture_or_a_value_error(data, place, flip, cut):
    changed = bytearray(data[: len(data) - cut])
    changed[place % len(changed)] ^= flip
    try:
        picture = decode(view(bytes(changed)))
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            check_decodes(view(bytes(changed)))
        return
    check_decodes(view(bytes(changed)))
    assert picture.dtype == np.uint8 and picture.ndim == 3


@given(st.binary(max_size=200), st.sampled_from([b"", JPEG[:2], JPEG[:30], PNG[:8], PNG[:33]]))
def test_noise_behind_any_beginning_is_refused(noise, beginning):
    with pytest.raises(ValueError, match="compressed image"):
        decode(view(beginning + noise))
