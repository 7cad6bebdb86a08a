"""Chooses how MuJoCo draws without a display: EGL where it works, else OSMesa.

MuJoCo reads MUJOCO_GL once, while it is imported, and fails with a stack of ctypes errors when the library is
absent. So every module of `sim` takes mujoco from here: the choice is made first, by loading the library
itself, and a machine that has neither gets one sentence that says what to install. A MUJOCO_GL set by the
user is respected.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable

__all__ = ["BACKENDS", "FIX", "NoRenderer", "choose", "mujoco", "open_renderer"]

FIX = (
    "no OpenGL library for headless rendering was found (tried EGL and OSMesa); "
    "run `apt-get install libosmesa6`, or `make demo`, which brings its own."
)


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
    """Whether libEGL is here and has at least one device; a bare libEGL without a driver has none."""
    try:
        library = ctypes.CDLL("libEGL.so.1")
        library.eglGetProcAddress.restype = ctypes.c_void_p
        address = library.eglGetProcAddress(b"eglQueryDevicesEXT")
    except (OSError, AttributeError):
        return False
    if not address:
        return False
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(
        address
    )
    count = ctypes.c_int(0)
    return (
        bool(query(0, None, ctypes.byref(count)))
        and count.value > 0
        and _loads("libOpenGL.so.0", "libGL.so.1")
    )


def _osmesa_works() -> bool:
    return _loads("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")


BACKENDS: dict[str, Callable[[], bool]] = {"egl": _egl_works, "osmesa": _osmesa_works}


def choose(backends: dict[str, Callable[[], bool]] | None = None) -> str:
    """Name of the backend MuJoCo will use: MUJOCO_GL if set, else the first that works, which is then set.

    Raises NoRenderer, with the fix in its one sentence, when none works.
    """
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    known = BACKENDS if backends is None else backends
    if wanted and wanted not in known:
        return wanted  # glfw, or off: the user's own business
    for name in (wanted,) if wanted else tuple(known):
        if known[name]():
            os.environ["MUJOCO_GL"] = name
            return name
    raise NoRenderer(
        FIX if not wanted else f"MUJOCO_GL={wanted} does not work here; unset it to let the simulator choose."
    )


with contextlib.suppress(NoRenderer):  # physics works without OpenGL; open_renderer will say what is missing
    choose()

import mujoco  # noqa: E402


def open_renderer(model: mujoco.MjModel, height: int, width: int) -> mujoco.Renderer:
    """A renderer [height, width] for this model. Raises NoRenderer with the fix when there is no OpenGL to
    draw with."""
    choose()
    renderer = mujoco.Renderer(model, height=height, width=width)
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    atexit.register(_close, weakref.ref(renderer))
    return renderer


def _close(reference: weakref.ref[mujoco.Renderer]) -> None:
    """Free a renderer before the interpreter takes its modules apart, which OSMesa answers with a
    traceback."""
    renderer = reference()
    if renderer is not None:
        renderer.close()
