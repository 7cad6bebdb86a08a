"""Pictures: reading, decoding, sharing between processes, and keeping them until the engine takes them.

capture: anything that OpenCV opens; calibration: a camera_info file; image: image messages, read in place, as
RGB; compressed: JPEG and PNG messages. ring, ring_view, ring_reader: frames in shared memory (writer, one
open ring, all rings of a reader). frames: the frame pool, and several sources as one; frame_sets: when the
newest frames of all cameras belong together; history: which earlier frames belong to them.
"""
