from __future__ import annotations

import time

import pytest

from ringfence import clock

pytestmark = pytest.mark.skipif(not clock.RAW, reason="this system has no CLOCK_MONOTONIC_RAW and CLOCK_BOOTTIME")

MS = 1_000_000
SECOND = 1000 * MS


class Machine:
    """The clocks of a machine, set by a test."""

    def __init__(self) -> None:
        self.raw = self.monotonic = 1000 * SECOND
        self.boot = 5000 * SECOND  # it has slept before
        self.readings = 0

    def read(self, number: int) -> int:
        self.readings += 1
        return {time.CLOCK_MONOTONIC_RAW: self.raw, time.CLOCK_MONOTONIC: self.monotonic, time.CLOCK_BOOTTIME: self.boot}[number]

    def awake(self, ns: int) -> None:
        self.raw, self.monotonic, self.boot = self.raw + ns, self.monotonic + ns, self.boot + ns

    def sleep(self, ns: int) -> None:
        self.boot += ns


def raw_clock(machine: Machine) -> clock.LeaseClock:
    return clock._RawClock(machine.read)


def test_it_goes_on_in_a_suspend() -> None:
    machine = Machine()
    under_test = raw_clock(machine)
    begin = under_test.now()
    machine.awake(SECOND)
    assert under_test.now() - begin == SECOND
    machine.sleep(3600 * SECOND)
    assert under_test.now() - begin == 3601 * SECOND
    machine.awake(SECOND)
    assert under_test.now() - begin == 3602 * SECOND


def test_it_never_goes_back() -> None:
    machine = Machine()
    under_test = raw_clock(machine)
    before = under_test.now()
    machine.boot -= 10 * MS  # an interruption between two readings makes the difference look smaller
    assert under_test.now() == before


def test_ntp_does_not_slew_it() -> None:
    machine = Machine()
    under_test = raw_clock(machine)
    begin = under_test.now()
    machine.raw += SECOND
    machine.monotonic += SECOND * 89 // 100  # slewed by 11 %
    machine.boot += SECOND * 89 // 100
    assert under_test.now() - begin == SECOND


def test_fast_reads_the_clock_again_after_a_suspend_and_in_time() -> None:
    machine = Machine()
    under_test = raw_clock(machine)
    begin = under_test.fast()
    readings = machine.readings
    machine.awake(MS // 2)
    assert under_test.fast() - begin == MS // 2
    assert machine.readings == readings + 1, "it was not extrapolated"
    for asleep in (2 * MS, 2 * SECOND, 86_400 * SECOND):
        before = under_test.fast()
        machine.sleep(asleep)
        assert under_test.fast() - before == asleep
    before = under_test.fast()
    machine.raw += MS
    machine.monotonic += MS * 89 // 100
    machine.boot += MS * 89 // 100
    assert under_test.fast() - before >= MS * 89 // 100
    machine.awake(MS)
    assert under_test.fast() == under_test.now()


def test_ticks_go_on_in_a_suspend() -> None:
    machine = Machine()
    under_test = raw_clock(machine)
    begin = under_test.ticks()
    machine.awake(MS)
    machine.sleep(SECOND)
    assert under_test.ticks() - begin == SECOND + MS


def test_fast_is_not_behind_the_clock() -> None:
    under_test = clock.system_clock()
    end = under_test.now() + 50 * MS
    while (before := under_test.now()) < end:
        assert under_test.fast() + MS // 8 >= before
