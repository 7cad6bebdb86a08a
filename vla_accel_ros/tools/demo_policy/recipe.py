"""What the bundled policy was trained with, and its engine and its episodes must know."""

from __future__ import annotations

CAMERAS = {"base_0_rgb": "front", "left_wrist_0_rgb": "wrist"}
HORIZON = 32
STEP_DT_S = 1 / 30
DENOISE_STEPS = 5
