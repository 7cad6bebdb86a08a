"""Judges a force sensor: how large a contact is, and whether the sensor can be believed.

A sample passes a median of three, so one wrong sample has no effect. It is compared with two limits: `stops`
at once, `yields` behind a low-pass filter, whose delay is 1 / (2 pi lowpass_hz). A contact is over when the
filtered value has stayed below the release level for RELEASE_S, so that noise at a limit is one contact.
Lateness (silence, old stamps, repeated stamps, not a number) passes by itself when samples are fresh again. A
fault (saturation, the same numbers again and again, spikes) needs a person.

Sensors drift. The mean reading over TARE_S while the arm stands still is the bias, and is subtracted
(`tare`), if it is small and steady. A reading larger than the sensor's `bias` is a contact or a load, and the
tare is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

TARE_S = 0.2
RELEASE_S = 0.02
_LEAST_TARED = 10
_SATURATED = 2
_SPIKES, _SPIKES_S = 5, 1.0
_LARGEST = 1e9
"""Larger numbers are no measurements, and would overflow in the filter, which never forgets that."""
_STILL = 0.5
"""Share of `bias` by which a sample may differ from the mean while taring."""


class Level(IntEnum):
    """How large a contact is."""

    FREE = 0
    YIELD = 1
    STOP = 2


@dataclass(frozen=True)
class Quantity:
    """What is compared with a limit: the length of the vector over some axes, or one joint's effort.

    name, unit: as sentences say them. axes: names, one for each number. yields, stops: limits. most: value of
    one axis at which the sensor is saturated, inf if unknown. bias: longest vector that may be tared; 0.0 for
    an absolute sensor, which is never tared.
    """

    name: str
    unit: str
    axes: tuple[str, ...]
    yields: float
    stops: float
    most: float = math.inf
    bias: float = 0.0


@dataclass(frozen=True)
class ForceSensor:
    """The source of samples, and their limits. A sample holds the numbers of all axes, one after another.

    slot: name of the shared-memory slot (sensing/force_slot.py); otherwise topic and its type. rate_hz:
    expected. max_age_s: an older sample is late. release: share of `yields` below which a contact is over.
    frozen_s: how long the sensor may repeat the same numbers, inf for ever.
    """

    name: str
    quantities: tuple[Quantity, ...]
    rate_hz: float
    max_age_s: float
    slot: str = ""
    topic: str = ""
    type: str = ""
    lowpass_hz: float = 100.0
    release: float = 0.5
    frozen_s: float = math.inf

    @property
    def source(self) -> str:
        """The source, as sentences say it."""
        return f"slot {self.slot}" if self.slot else f"topic {self.topic}"

    @property
    def width(self) -> int:
        """Number of values in a sample."""
        return sum(len(quantity.axes) for quantity in self.quantities)

    @property
    def tared(self) -> bool:
        """Whether it has a bias to subtract."""
        return any(quantity.bias > 0.0 for quantity in self.quantities)


class SensorWatch:
    """Judges one sensor's samples. Use it from one thread at a time.

    Attributes: `level`, by the newest samples, and `sentence`, its reason (kept when the level falls);
    `wrong`, why the sensor is not believed until `forgive`, empty if it is; `values`, the newest, filtered
    and without bias, one for each axis; `bias`, which is subtracted; `is_tared`; `stamp_ns` of the newest
    sample; `count` of samples; `note`, why the last sample was refused; `tare_problem`, why the last tare
    failed.
    """

    def __init__(self, sensor: ForceSensor) -> None:
        self.sensor = sensor
        self._columns: list[tuple[Quantity, int, int]] = []
        first = 0
        for quantity in sensor.quantities:
            self._columns.append((quantity, first, first + len(quantity.axes)))
            first += len(quantity.axes)
        self.bias = [0.0] * sensor.width
        self.is_tared = not sensor.tared
        self.count = 0
        self.forget()

    def forget(self) -> None:
        """Forget all samples; the bias stays."""
        self.level, self.sentence, self.wrong, self.note = Level.FREE, "", "", ""
        self.values = [0.0] * self.sensor.width
        self.stamp_ns: int | None = None
        self._came_ns = 0
        self._last: deque[list[float]] = deque(maxlen=3)
        self._below_since_ns: int | None = None
        self._same_since_ns = 0
        self._saturated = 0
        self._spikes: deque[int] = deque(maxlen=_SPIKES)
        self._tare: list[tuple[float, ...]] = []
        self._tare_ns: int | None = None
        self.tare_problem = ""

    def forgive(self) -> None:
        """A person has looked at the sensor: clear its fault."""
        self.wrong = ""
        self._spikes.clear()
        self._saturated = 0
        if self.stamp_ns is not None:
            self._same_since_ns = self.stamp_ns

    def take(self, sample: Sequence[float], stamp_ns: int, now_ns: int) -> bool:
        """Take a sample as measured. Returns False if it is refused; `note` then says why."""
        self.note = self._refusal(sample, stamp_ns, now_ns)
        if self.note:
            return False
        before_ns, self.stamp_ns, self._came_ns = self.stamp_ns, stamp_ns, now_ns
        pause_s = min(self.sensor.max_age_s, self.sensor.frozen_s)
        if before_ns is None or stamp_ns - before_ns > pause_s * 1e9:
            # A driver that goes on or starts again after a pause with the same numbers is not frozen; one
            # that is frozen repeats them without a pause.
            self._same_since_ns = stamp_ns
        self.count += 1
        raw = [value - bias for value, bias in zip(sample, self.bias)]
        self._look_for_faults(raw, sample, stamp_ns)
        self._last.append(raw)
        median = [sorted(axis)[len(axis) // 2] for axis in zip(*self._last)]
        if before_ns is None or not 0 < stamp_ns - before_ns < 1e9:
            self.values = median
        else:
            share = -math.expm1(-(stamp_ns - before_ns) * 1e-9 * 2.0 * math.pi * self.sensor.lowpass_hz)
            self.values = [old + share * (new - old) for old, new in zip(self.values, median)]
        self._judge(median, stamp_ns)
        return True

    def late(self, now_ns: int) -> str:
        """One sentence that says why the sensor is not fresh, without figures that change; empty if it is."""
        sensor = self.sensor
        if self.stamp_ns is None:
            cause = self.note or "start its driver"
            return f"force sensor {sensor.name} ({sensor.source}) has sent nothing yet: {cause}"
        if abs(now_ns - self.stamp_ns) <= sensor.max_age_s * 1e9:
            return ""
        older = "its samples are older: check its clock, and the load"
        comes = now_ns - self._came_ns < sensor.max_age_s * 0.5e9
        cause = self.note or (older if comes else "is its driver running?")
        who = f"force sensor {sensor.name} ({sensor.source})"
        return f"{who} has sent nothing from the last {sensor.max_age_s:g} s: {cause}"

    def begin_tare(self) -> None:
        """Measure a new bias from the samples that come from now on, while the arm stands still."""
        self._tare, self._tare_ns, self.is_tared, self.tare_problem = [], None, False, ""

    def tare(self, sample: Sequence[float], stamp_ns: int) -> None:
        """Take a sample while the arm stands still and there is no bias yet."""
        if self._tare_ns is None or stamp_ns < self._tare_ns:
            self._tare, self._tare_ns = [], stamp_ns
        self._tare.append(tuple(sample))
        if stamp_ns - self._tare_ns < TARE_S * 1e9 or len(self._tare) < _LEAST_TARED:
            return
        samples, self._tare, self._tare_ns = self._tare, [], None
        mean = [sum(axis) / len(samples) for axis in zip(*samples)]
        for quantity, begin, end in self._columns:
            if quantity.bias <= 0.0:
                mean[begin:end] = [0.0] * (end - begin)
                continue
            size = math.hypot(*mean[begin:end])
            spread = max(math.dist(one[begin:end], mean[begin:end]) for one in samples)
            if size > quantity.bias:
                self.tare_problem = (
                    f"{quantity.name} is {size:.3g} {quantity.unit} while the arm stands, at most "
                    f"{quantity.bias:g} is taken for bias: free the arm, or raise bias"
                )
                return
            if spread > _STILL * quantity.bias:
                self.tare_problem = f"{quantity.name} is not still while the arm stands: free the arm"
                return
        self.bias, self.is_tared, self.tare_problem = mean, True, ""
        self._last.clear()
        self.values = [0.0] * len(mean)

    @property
    def untared(self) -> str:
        """One sentence that says why the sensor cannot be used before a tare; empty if it can."""
        if self.is_tared:
            return ""
        cause = self.tare_problem or f"the arm has to stand for {TARE_S:g} s"
        return f"force sensor {self.sensor.name} is not tared: {cause}"

    def _refusal(self, sample: Sequence[float], stamp_ns: int, now_ns: int) -> str:
        if len(sample) != self.sensor.width:
            return f"its sample has {len(sample)} numbers, not {self.sensor.width}"
        if not all(abs(value) <= _LARGEST for value in sample):
            return "its sample has a number that is not finite, or that no sensor measures"
        if self.stamp_ns is not None and stamp_ns == self.stamp_ns:
            return "its stamp does not change"
        if stamp_ns - now_ns > self.sensor.max_age_s * 1e9:
            return "its stamp is in the future: synchronise the clocks"
        if self.stamp_ns is not None and stamp_ns < self.stamp_ns <= now_ns:
            return "its stamps go back"
        return ""

    def _look_for_faults(self, raw: list[float], sample: Sequence[float], stamp_ns: int) -> None:
        sensor = self.sensor
        previous = self._last[-1] if self._last else None
        if raw != previous:
            self._same_since_ns = stamp_ns
        elif stamp_ns - self._same_since_ns > sensor.frozen_s * 1e9:
            self._fault(f"has repeated the same numbers for {sensor.frozen_s:g} s: is it frozen?")
        beyond = ""
        for quantity, begin, end in self._columns:
            for axis, value in zip(quantity.axes, sample[begin:end]):
                if abs(value) >= quantity.most:
                    beyond = f"{_named(quantity, axis)} is {value:.4g} {quantity.unit}, its range ends at "
                    beyond += f"{quantity.most:g}"
        self._saturated = self._saturated + 1 if beyond else 0
        if self._saturated >= _SATURATED:
            self._fault(f"is saturated: {beyond}")
        if len(self._last) == 3 and self._is_spike(self._last[0], self._last[1], self._last[2]):
            self._spikes.append(stamp_ns)
            if len(self._spikes) == _SPIKES and stamp_ns - self._spikes[0] < _SPIKES_S * 1e9:
                self._fault(f"jumps, {_SPIKES} times within {_SPIKES_S:g} s: look at its cable and driver")

    def _is_spike(self, before: list[float], middle: list[float], after: list[float]) -> bool:
        """Whether the middle sample is far from both of its neighbours while they agree."""
        for quantity, begin, end in self._columns:
            first, two = before[begin:end], after[begin:end]
            distance = min(math.dist(middle[begin:end], first), math.dist(middle[begin:end], two))
            if distance > quantity.yields and math.dist(first, two) < distance / 2:
                return True
        return False

    def _fault(self, what: str) -> None:
        if not self.wrong:
            self.wrong = f"force sensor {self.sensor.name} ({self.sensor.source}) {what}; ~/resume goes on"

    def _judge(self, now: list[float], stamp_ns: int) -> None:
        level, contact, below = Level.FREE, "", True
        for quantity, begin, end in self._columns:
            if math.hypot(*now[begin:end]) > quantity.stops:
                level, contact = Level.STOP, _exceeds(quantity, now[begin:end], quantity.stops)
                below = False
                break
            size = math.hypot(*self.values[begin:end])
            if size > quantity.yields and level is Level.FREE:
                level, contact = (
                    Level.YIELD,
                    _exceeds(quantity, self.values[begin:end], quantity.yields),
                )
            below &= size < self.sensor.release * quantity.yields
        if level is not Level.FREE:
            if level > self.level or not self.sentence:
                self.sentence = contact
            self.level, self._below_since_ns = level, None
            return
        if not below:
            self._below_since_ns = None
            self.level = min(self.level, Level.YIELD)
            return
        if self._below_since_ns is None or self._below_since_ns > stamp_ns:
            self._below_since_ns = stamp_ns
        if stamp_ns - self._below_since_ns >= RELEASE_S * 1e9:
            self.level, self.sentence = Level.FREE, ""


def _named(quantity: Quantity, axis: str) -> str:
    return f"{quantity.name} {axis}".strip()


def _exceeds(quantity: Quantity, values: list[float], limit: float) -> str:
    """The sentence of a limit that is exceeded."""
    size = math.hypot(*values)
    axis = max(range(len(values)), key=lambda i: abs(values[i]))
    axis_share = f", most of it {values[axis]:+.1f} on {quantity.axes[axis]}" if len(values) > 1 else ""
    return (
        f"{quantity.name} is {size:.1f} {quantity.unit}{axis_share}; the limit is {limit:g} {quantity.unit}"
    )
