"""From noise to chunks.

denoise: all steps of some chunks; wide: steps of many rows; int8: steps of int8 rows; seats, captured_seats:
chunks at their own flow times in one step, in plain torch and captured.
"""
