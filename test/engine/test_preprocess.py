"""Pixels to the policy's device: the same whichever way, and never of a frame that was overwritten."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import make_observation, make_policy

from vla_accel_ros.engine.runner.frames import Preprocess
from vla_accel_ros.engine.stages.memory.host_memory import Registration, has_cuda, mapped_pointer
from vla_accel_ros.types import Torn

LARGE = (60, 90)


def on_cpu(image: np.ndarray) -> torch.Tensor:
    """An upload that goes nowhere."""
    return torch.from_numpy(np.array(image))


def page_aligned(height: int, width: int) -> tuple[np.ndarray, Registration]:
    """Noise in memory that is registered as mapped, on whatever GPU."""
    memory = np.zeros(height * width * 3 + 8192, np.uint8)
    start = -memory.ctypes.data % 4096
    image = memory[start : start + height * width * 3].reshape(height, width, 3)
    image[:] = np.random.default_rng(0).integers(0, 256, image.shape, np.uint8)
    return image, Registration(image.ctypes.data, -(-image.nbytes // 4096) * 4096, mapped=True)


def test_an_upload_gives_the_inputs_that_the_policy_makes_itself():
    policy, observation = make_policy(), make_observation(size=LARGE)
    own, uploaded = policy.inputs(observation), policy.inputs(observation, on_cpu)
    assert uploaded.image_names == own.image_names
    torch.testing.assert_close(uploaded.images, own.images, atol=2 / 255 + 1e-6, rtol=0)
    torch.testing.assert_close(uploaded.tokens, own.tokens)
    fits = make_observation(size=(policy.config.vision.image_size,) * 2)
    assert torch.equal(policy.inputs(fits, on_cpu).images, policy.inputs(fits).images)


def test_on_a_cpu_it_is_the_policys_own_way():
    policy, observation = make_policy(), make_observation(size=LARGE)
    assert torch.equal(Preprocess(policy)(observation).images, policy.inputs(observation).images)


def test_whether_images_are_intact_is_asked_once_their_pixels_were_taken():
    policy, images = make_policy(), make_observation(size=(28, 28)).images
    taken = []

    def intact() -> bool:
        for image in images.values():
            image[:] = 0  # the camera comes round at the last moment
        taken.append(True)
        return len(taken) == 1

    observation = replace(make_observation(size=(28, 28)), images=images, intact=intact)
    inputs = Preprocess(policy)(observation)
    assert (inputs.images > -1.0).any(), "the pixels are the policy's own by then"
    with pytest.raises(Torn, match="overwritten"):
        Preprocess(policy)(observation)


def test_without_a_gpu_memory_stays_as_it_is_and_that_is_said():
    if has_cuda():
        return
    image = np.zeros((4, 4, 3), np.uint8)
    registration = Registration(image.ctypes.data, image.nbytes)
    assert not registration.lock.locked and registration.lock.state == "no CUDA device"
    assert mapped_pointer(image) == 0
    registration.end()
    registration.end()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(28, 28), LARGE])
def test_a_gpu_gets_the_pixels_that_a_cpu_gets(size):
    observation = make_observation(size=size)
    for image in observation.images.values():
        image.setflags(write=False)
    on_gpu = Preprocess(make_policy(device="cuda"))(observation)
    torch.testing.assert_close(
        on_gpu.images.cpu(), make_policy().inputs(observation).images, atol=2 / 255 + 1e-6, rtol=0
    )
    assert on_gpu.images.is_cuda and on_gpu.tokens.is_cuda and on_gpu.state.is_cuda


@pytest.mark.gpu
def test_mapped_memory_is_read_in_place_and_given_back():
    image, registration = page_aligned(*LARGE)
    assert registration.lock.locked and registration.lock.state == "mapped"
    assert mapped_pointer(image[10:]) == mapped_pointer(image) + 10 * image.strides[0]
    pixels = Preprocess(make_policy(device="cuda")).upload(image)
    assert pixels.is_cuda and pixels.data_ptr() == mapped_pointer(image)
    assert torch.equal(pixels.cpu(), torch.from_numpy(image.copy()))
    image[0, 0, 0] ^= 0xFF
    assert int(pixels[0, 0, 0]) == int(image[0, 0, 0]), "a copy would not have seen this"
    torch.cuda.synchronize()
    del pixels
    registration.end()
    assert mapped_pointer(image) == 0
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.gpu
def test_page_locked_memory_is_uploaded_by_the_copy_engine():
    memory = np.zeros(8 << 20, np.uint8)
    start = -memory.ctypes.data % 4096
    registration = Registration(memory[start:].ctypes.data, 4 << 20, mapped=False)
    assert registration.lock.state == "page-locked"
    image = memory[start : start + 60 * 90 * 3].reshape(60, 90, 3)
    assert torch.from_numpy(image).is_pinned() and mapped_pointer(image) == 0
    assert torch.equal(Preprocess(make_policy(device="cuda")).upload(image).cpu(), torch.from_numpy(image))
    registration.end()
    assert not torch.from_numpy(image).is_pinned()
