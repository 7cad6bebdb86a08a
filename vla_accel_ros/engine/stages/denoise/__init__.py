"""Stages from noise to chunks.

denoise: all steps of some chunks. wide: steps of many rows. int8: steps with int8 rows. seats,
captured_seats: chunks at different flow times in one step, in plain torch and captured.
"""
