"""Pictures: how they are read, decoded, shared between processes and kept until the engine takes them.

capture: from whatever OpenCV opens; calibration: a camera_info file; image: an image message, read in place,
as RGB; compressed: a compressed one. ring, ring_view, ring_reader: frames in shared memory, from the writer's
side to the reader's. frames: the pool of frames, and several sources as one; frame_sets: when the
newest frames of all cameras belong together.
"""
