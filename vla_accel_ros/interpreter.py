"""Settings of the Python interpreter for threads that wait for a GPU, a sensor or a camera.

Such a thread must get the interpreter lock soon after its event, so the lock switches after SWITCH_S. The
garbage collector no longer scans the objects that were loaded at startup: a full scan stops every thread for
some 0.1 s (bench/results/interpreter.json).
"""

from __future__ import annotations

import gc
import sys

SWITCH_S = 1e-4
"""How long a thread keeps the interpreter lock while others wait, for sys.setswitchinterval; Python's default
is 5 ms."""


def keep_loaded() -> None:
    """Collect garbage, then exempt all present objects from collection until gc.unfreeze."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def free_unloaded() -> None:
    """Undo keep_loaded, and collect what is not used any longer: a model is in reference cycles. Its memory
    on a GPU is given back to the device, for other processes."""
    gc.unfreeze()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
