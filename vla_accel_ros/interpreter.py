"""How Python runs in a process whose threads wait for a GPU, a sensor or a camera.

Such a thread must have the interpreter soon when that is there. So it is passed on after SWITCH_S; and what a
process has loaded is looked at by the garbage collector no more: a look at all of it stops every thread for
some 0.1 s (bench/interpreter.py).
"""

from __future__ import annotations

import gc

SWITCH_S = 1e-4
"""How long a thread keeps the interpreter while others wait for it, for sys.setswitchinterval; Python's own
is 5 ms."""


def keep_loaded() -> None:
    """Collect the garbage there is, and look at all other objects no more, until gc.unfreeze."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
