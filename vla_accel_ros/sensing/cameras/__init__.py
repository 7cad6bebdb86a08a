"""Pictures: how they are read, decoded, shared between processes and kept until the engine takes them.

capture: from whatever OpenCV opens; calibration: a camera_info file; cdr: an image message, read in place;
image and compressed: its pixels as RGB. segment, ring, ring_view, ring_reader: frames in shared memory, from
the writer's side to the reader's. frames: the pool of frames; sources: several kinds of cameras as one
source; frame_sets: when the newest frames of all cameras belong together.
"""
