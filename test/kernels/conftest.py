"""The kernels' tests run where there is no GPU, too."""

from __future__ import annotations

import interpreted  # noqa: F401
