"""The clock that deadlines run on. It must go on while the machine sleeps, and nobody may set it."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable

_CLOCK_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_CLOCK_MONOTONIC_RAW: int | None = getattr(time, "CLOCK_MONOTONIC_RAW", None)

RAW = sys.platform == "linux" and _CLOCK_BOOTTIME is not None and _CLOCK_MONOTONIC_RAW is not None
"""Whether the clock is one that NTP cannot slew: then Hello declares ``raw_clock``, and deadlines are 11 % longer."""

_ASLEEP_STEP = 1_000_000  # nanoseconds; less is the time between two readings
_FAST_FOR = 1_000_000  # nanoseconds for which a fast reading is extrapolated


class LeaseClock:
    """A clock that leases run on. Its methods are called from many threads, and must not block."""

    def now(self) -> int:
        """Returns the present instant in nanoseconds, from an arbitrary start."""
        raise NotImplementedError

    def fast(self) -> int:
        """Returns the present instant, to the next 0.11 ms: read before each start, never counted from."""
        return self.now()

    def ticks(self) -> int:
        """Returns :func:`boot_ns`, which is cheaper still: less than a millisecond of it is off by 0.11 ms at most."""
        return boot_ns()

    def renewed(self, until: int) -> None:
        """Learns of the newest deadline, after each Pong."""

    def ended(self) -> None:
        """Learns that there will be no more Pongs."""


class _RawClock(LeaseClock):
    """CLOCK_MONOTONIC_RAW, the hardware counter that NTP cannot slew, plus the time that the machine slept.

    The latter is CLOCK_BOOTTIME less CLOCK_MONOTONIC, and only grows.
    """

    def __init__(self, read: Callable[[int], int] = time.clock_gettime_ns) -> None:
        assert _CLOCK_BOOTTIME is not None and _CLOCK_MONOTONIC_RAW is not None
        self._read = read
        self._raw, self._boot, self._monotonic = _CLOCK_MONOTONIC_RAW, _CLOCK_BOOTTIME, time.CLOCK_MONOTONIC
        self._asleep = 0
        self._lock = threading.Lock()
        self.fast = self._fast()  # type: ignore[method-assign]
        self.ticks = functools.partial(read, self._boot)  # type: ignore[method-assign]

    def now(self) -> int:
        raw = self._read(self._raw)
        # CLOCK_MONOTONIC is read last: an interruption makes the difference too small, never too great.
        asleep = self._read(self._boot) - self._read(self._monotonic)
        if asleep - self._asleep > _ASLEEP_STEP:
            with self._lock:
                self._asleep = max(self._asleep, asleep)
        return raw + self._asleep

    def _fast(self) -> Callable[[], int]:
        """Returns the method fast, which is a closure since each event calls it."""
        read, number, now = self._read, self._boot, self.now
        reading = (0, 0)  # CLOCK_BOOTTIME and the instant at the newest full reading

        def fast() -> int:
            # NTP slews CLOCK_BOOTTIME by 11 % at most, so within a millisecond it is off by 0.11 ms; it goes on in a suspend, so a
            # reading of before a suspend is not used after it.
            nonlocal reading
            boot = read(number)
            at, instant = reading
            if 0 <= boot - at < _FAST_FOR:
                return instant + boot - at
            # CLOCK_BOOTTIME was read first, so an interruption here makes extrapolated instants too great, never too small.
            instant = now()
            reading = (boot, instant)
            return instant

        return fast


class _SlewedClock(LeaseClock):
    """The best clock of other systems: it goes on in a suspend, but NTP may slew it."""

    def now(self) -> int:
        return boot_ns()


def boot_ns() -> int:
    """Returns nanoseconds of CLOCK_BOOTTIME, by which the router asks when handlers ran; elsewhere of the monotonic clock."""
    return time.monotonic_ns() if _CLOCK_BOOTTIME is None else time.clock_gettime_ns(_CLOCK_BOOTTIME)


def system_clock() -> LeaseClock:
    """Returns the clock for production."""
    return _RawClock() if RAW else _SlewedClock()
