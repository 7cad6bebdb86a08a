"""Chooses how MuJoCo draws without a display: EGL if it works, else OSMesa.

MuJoCo reads MUJOCO_GL once, when it is imported, and fails with a stack of ctypes errors if the library is
absent. So every module of `sim` imports mujoco from here. The choice is made first, by loading the library
itself, and a machine with neither gets one sentence that says what to install. A MUJOCO_GL set by the user is
respected. Mesa and Triton (which comes with torch for CUDA) each bring their own LLVM. A process that loads
Mesa's first crashes when torch looks for Triton, so Triton is loaded before.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import sys
import weakref
from collections.abc import Callable

__all__ = ["BACKENDS", "FIX", "NoRenderer", "choose", "mujoco", "open_renderer"]

FIX = (
    "no OpenGL library for headless rendering was found (tried EGL and OSMesa); "
    "run `apt-get install libosmesa6`, or `make demo`, which brings its own."
)
_EGL_PLATFORM_DEVICE = 0x313F


class NoRenderer(RuntimeError):
    """No OpenGL library for headless rendering is installed."""


def _loads(*names: str) -> bool:
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def _egl_works() -> bool:
    """Whether some EGL device can be initialised; a libEGL without a driver has none."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
        find = egl.eglGetProcAddress
    except (OSError, AttributeError):
        return False
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    query_at, display_at = find(b"eglQueryDevicesEXT"), find(b"eglGetPlatformDisplayEXT")
    if not (query_at and display_at and _loads("libOpenGL.so.0", "libGL.so.1")):
        return False
    integers, pointer = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.POINTER(pointer), integers)(query_at)
    display_of = ctypes.CFUNCTYPE(pointer, ctypes.c_uint, pointer, integers)(display_at)
    egl.eglInitialize.argtypes = [pointer, integers, integers]
    devices, count = (pointer * 16)(), ctypes.c_int(0)
    if not query(16, devices, ctypes.byref(count)):
        return False
    displays = (display_of(_EGL_PLATFORM_DEVICE, devices[i], None) for i in range(count.value))
    return any(display and egl.eglInitialize(display, None, None) for display in displays)


def _osmesa_works() -> bool:
    return _loads("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")


BACKENDS: dict[str, Callable[[], bool]] = {"egl": _egl_works, "osmesa": _osmesa_works}


def choose(backends: dict[str, Callable[[], bool]] | None = None) -> str:
    """Name of the backend that MuJoCo will use: MUJOCO_GL if set, else the first that works, which is then
    set.

    Raises NoRenderer, with the fix in its one sentence, if none works.
    """
    requested = os.environ.get("MUJOCO_GL", "").lower()
    if sys.platform != "linux":
        return requested  # the system's own window library also draws off screen
    available = BACKENDS if backends is None else backends
    if requested and requested not in available:
        return requested  # glfw, or off: the user's own choice
    for name in (requested,) if requested else tuple(available):
        if available[name]():
            os.environ["MUJOCO_GL"] = name
            return name
    raise NoRenderer(
        FIX
        if not requested
        else f"MUJOCO_GL={requested} does not work here; unset it and let the simulator choose."
    )


with contextlib.suppress(ImportError):
    importlib.import_module("triton")

with contextlib.suppress(NoRenderer):  # physics works without OpenGL; open_renderer says what is missing
    choose()

import mujoco  # noqa: E402


def open_renderer(model: mujoco.MjModel, height: int, width: int) -> mujoco.Renderer:
    """A renderer [height, width] for this model. Raises NoRenderer, with the fix, if there is no OpenGL."""
    choose()
    renderer = mujoco.Renderer(model, height=height, width=width)
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    atexit.register(_close, weakref.ref(renderer))
    return renderer


def _close(reference: weakref.ref[mujoco.Renderer]) -> None:
    """Free a renderer before the interpreter unloads its modules; OSMesa would otherwise print a
    traceback."""
    renderer = reference()
    if renderer is not None:
        renderer.close()
