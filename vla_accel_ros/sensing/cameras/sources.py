"""Cameras of several kinds as one source of frames.

One camera may write a shared-memory ring, another come as messages into the pool of this process. Where all
that is asked for lies in one source, that source chooses; across sources the rule is the same, the newest of
each, or else what was taken nearest to the slowest camera's newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vla_accel_ros.sensing.cameras.frames import FrameSource, Lease, NotReady, together


class JoinedLease(Lease):
    """Leases of several cameras as one."""

    def __init__(self, leases: Sequence[Lease]):
        self.frames = {camera: frame for lease in leases for camera, frame in lease.frames.items()}
        self._leases = tuple(leases)

    def intact(self) -> bool:
        """Whether all of them are; each is asked, because each counts its own losses."""
        answers = [lease.intact() for lease in self._leases]
        return all(answers)

    def release(self) -> None:
        """Release all of them."""
        for lease in self._leases:
            lease.release()


class Sources:
    """A FrameSource of others. source_of: camera -> where its frames are."""

    def __init__(self, source_of: Mapping[str, FrameSource]):
        self._of = dict(source_of)

    def newest(self, camera: str) -> Lease | None:
        """The newest frame of one camera, None when there is none."""
        return self._of[camera].newest(camera)

    def nearest(self, camera: str, stamp_ns: int) -> Lease | None:
        """One camera's frame taken nearest to that time, None when there is none."""
        return self._of[camera].nearest(camera, stamp_ns)

    def newest_set(self, cameras: Sequence[str], max_skew_s: float) -> Lease | NotReady:
        """The newest frames of all the cameras whose stamps are at most max_skew_s apart, or why not."""
        first = self._of[cameras[0]]
        if all(self._of[camera] is first for camera in cameras):
            return first.newest_set(cameras, max_skew_s)
        leases: dict[str, Lease] = {}
        for camera in cameras:
            newest = self._of[camera].newest_set((camera,), max_skew_s)
            if isinstance(newest, NotReady):
                JoinedLease(list(leases.values())).release()
                return newest
            leases[camera] = newest
        if isinstance(_together(leases, max_skew_s), NotReady):
            slowest_ns = min(lease.frames[camera].stamp_ns for camera, lease in leases.items())
            for camera, newest in leases.items():
                leases[camera] = self.nearest(camera, slowest_ns) or newest
                if leases[camera] is not newest:
                    newest.release()
        problem = _together(leases, max_skew_s)
        joined = JoinedLease(list(leases.values()))
        if isinstance(problem, NotReady):
            joined.release()
            return problem
        return joined


def _together(leases: Mapping[str, Lease], max_skew_s: float) -> object:
    return together({camera: (lease.frames[camera],) for camera, lease in leases.items()}, max_skew_s)
