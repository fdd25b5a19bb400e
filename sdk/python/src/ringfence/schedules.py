"""Schedules: handlers that run at set times, once in the whole group."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast, get_args

from ringfence.app.v1 import app_pb2 as pb
from ringfence.errors import ArgumentError, Cancelled
from ringfence.event import _EPOCH, Event, Fence, Occurrence, Timer

if TYPE_CHECKING:
    from ringfence.handlers import Handler

V = TypeVar("V")

SCHEDULES_MAX = 256
"""Schedules of one worker."""
NAME_MAX, CRON_MAX, ZONE_MAX = 128, 256, 64
"""Bytes of a name, an expression and a zone. A router closes the connection of a Hello with far longer ones, without a reason."""
SECONDS_MAX = 366 * 24 * 3600
"""Of a period, a grace or a jitter. Routers have lower bounds for some of them."""

MissedPolicy = Literal["latest", "all", "skip"]
"""What becomes of the times that did not run: see :attr:`Schedule.missed`."""
_POLICIES = {
    "latest": pb.MISSED_POLICY_LATEST,
    "all": pb.MISSED_POLICY_ALL,
    "skip": pb.MISSED_POLICY_SKIP,
}


@dataclasses.dataclass(frozen=True)
class Times:
    """The times of a schedule: see :func:`cron`, :func:`every` and :func:`at`."""

    cron: str = ""
    zone: str = ""
    every_ms: int = 0
    at_ms: int = 0


def cron(expression: str, zone: str = "") -> Times:
    """Returns the times of a cron expression in a time zone.

    The expression has five fields (minute, hour, day of the month, month, day of the week), or is one of @hourly, @daily, @weekly, @monthly and
    @yearly. ``zone`` is a name of the IANA database, such as Europe/Berlin; empty: UTC. A fixed hour follows the clock on the wall: a time that
    is skipped when the clock goes forward fires when the gap ends, and one that comes twice when the clock goes back fires the first time. An
    hour of ``*`` fires by elapsed time.

    Raises ArgumentError if an argument is no text, or longer than routers take. The router checks the rest.
    """
    if not _is_text(expression, CRON_MAX) or not expression:
        raise ArgumentError(f"expression = {expression!r:.80}, want a cron expression of 1 to {CRON_MAX} bytes")
    if not _is_text(zone, ZONE_MAX):
        raise ArgumentError(f"zone = {zone!r:.80}, want a time zone of at most {ZONE_MAX} bytes, such as 'Europe/Berlin', or '' for UTC")
    return Times(cron=expression, zone=zone)


def every(period: float | datetime.timedelta) -> Times:
    """Returns the multiples of a period, in seconds, since 1970 in UTC, whenever a process started. The period is at least 10 seconds.

    Raises ArgumentError if it is no period. The router checks its bounds.
    """
    milliseconds = _milliseconds("period", period)
    if not milliseconds:
        raise ArgumentError(f"period = {period!r}, want at least 10 seconds")
    return Times(every_ms=milliseconds)


def at(time: datetime.datetime) -> Times:
    """Returns a single time. A schedule that is declared after its time does not run.

    Raises ArgumentError if it is no datetime with a time zone.
    """
    if not isinstance(time, datetime.datetime) or time.tzinfo is None:
        raise ArgumentError(f"time = {time!r}, want a datetime with a time zone")
    return Times(at_ms=(time - _EPOCH) // datetime.timedelta(milliseconds=1) or 1)  # 0 would be no time


class Firing:
    """One run of a schedule.

    It belongs to its handler until the handler returns. Its methods may be called from any thread. Make one yourself to call a handler in a
    test; :meth:`ringfence.testing.Router.fire` tests more.
    """

    __slots__ = ("_event",)

    def __init__(self, schedule: str, time: datetime.datetime, *, missed: int = 0, attempt: int = 1, fence: Fence = Fence(0, 0)) -> None:
        event = Event(key_of(schedule), attempt=attempt, fence=fence, timer=Timer(schedule, time))
        event._firing = Occurrence(time, missed)
        self._event = event

    @classmethod
    def _of(cls, event: Event) -> Firing:
        firing = cls.__new__(cls)
        firing._event = event
        return firing

    def __repr__(self) -> str:
        return f"<Firing {self.schedule!r} of {self.time} attempt {self.attempt}>"

    @property
    def schedule(self) -> str:
        """The name of the schedule."""
        return cast(Timer, self._event.timer).name

    @property
    def time(self) -> datetime.datetime:
        """The time of the schedule that this run is for, before jitter, in UTC."""
        return cast(Occurrence, self._event._firing).time

    @property
    def missed(self) -> int:
        """How many earlier times did not run. This run is for them, too."""
        return cast(Occurrence, self._event._firing).missed

    @property
    def attempt(self) -> int:
        """1 for the first run; grows with each run that fails."""
        return self._event.attempt

    @property
    def fence(self) -> Fence:
        """Greater than that of any earlier run of the schedule. Pass its text to your database with every write."""
        return self._event.fence

    @property
    def cause(self) -> Cancelled | None:
        """Why the handler was cancelled, None if it was not. It does not read the clock."""
        return self._event.cause

    @property
    def cancelled(self) -> bool:
        """Whether the handler must stop and write nothing, as :attr:`Event.cancelled` has it."""
        return self._event.cancelled

    def check(self) -> None:
        """Raises :class:`KeyLost`, :class:`HandlerTimeout` or :class:`DrainTimeout` if the handler must stop, as :meth:`Event.check` does."""
        self._event.check()

    def progress(self) -> None:
        """Restarts the router's ``handler.timeout``, as :meth:`Event.progress` does."""
        self._event.progress()

    def after(self, delay: float | datetime.timedelta, name: str = "", payload: bytes | str = b"") -> None:
        """Sets a timer of the key schedule/NAME, as :meth:`Event.after` does. The handler of events gets it."""
        self._event.after(delay, name, payload)

    def state(self, load: Callable[[], V], name: str = "") -> V:
        """Returns the state of the key schedule/NAME, as :meth:`Event.state` does."""
        return self._event.state(load, name)

    async def state_async(self, load: Callable[[], Awaitable[V]], name: str = "") -> V:
        """Is :meth:`state` for a coroutine, as :meth:`Event.state_async`."""
        return await self._event.state_async(load, name)

    @property
    def lease_until(self) -> datetime.datetime | None:
        """The current end of the handler's lease, as :attr:`Event.lease_until` has it."""
        return self._event.lease_until


PlainFiringHandler = Callable[[Firing], None]
AsyncFiringHandler = Callable[[Firing], Awaitable[None]]
FiringHandler = Union[PlainFiringHandler, AsyncFiringHandler]
"""A function that handles one firing. Returning means done; what it raises means the same as for an event."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A handler that runs at set times, once in the whole group, on the machine that owns the key schedule/NAME, and never beside itself.

    It is stored nowhere: a schedule that no application of the group declares any more does not run. All workers of a group should declare the
    same ones. A firing runs at least once. It runs twice if the owner dies between the end of the handler and the ack, so pass the fence, and
    compare the time, in your writes.

    Raises ArgumentError if an argument is out of range. The router checks the times, and a worker with wrong ones ends with :class:`Refused`.
    """

    name: str
    """1 to 128 bytes of printable text."""
    times: Times
    """By :func:`cron`, :func:`every` or :func:`at`."""
    handler: FiringHandler
    """Plain or a coroutine function, as the handler of events is one."""
    _: dataclasses.KW_ONLY
    missed: MissedPolicy = "latest"
    """What becomes of the times that did not run, because no member was running or an earlier firing took too long. latest: the newest one
    runs for all of them. all: each runs, one after the other, at most the newest 100. skip: none runs that is more than a minute late."""
    grace: float | datetime.timedelta | None = None
    """The greatest delay with which a firing still runs, in seconds: an hour by default, at most a day."""
    jitter: float | datetime.timedelta = 0
    """Spreads schedules of the same time: this one fires later by a time less than this, in seconds, that follows from its name. At most an hour."""

    def __post_init__(self) -> None:
        if not _is_text(self.name, NAME_MAX) or not self.name or not self.name.isprintable():
            raise ArgumentError(f"schedule: name = {self.name!r:.80}, want 1 to {NAME_MAX} bytes of printable text")
        what = f"schedule {self.name!r}: "
        if not isinstance(self.times, Times):
            raise ArgumentError(f"{what}times = {self.times!r:.80}, want ringfence.cron(…), ringfence.every(…) or ringfence.at(…)")
        if not callable(self.handler):
            raise ArgumentError(f"{what}handler = {self.handler!r}, want a function")
        if self.missed not in get_args(MissedPolicy):
            raise ArgumentError(f"{what}missed = {self.missed!r:.80}, want 'latest', 'all' or 'skip'")
        if self.grace is not None:
            _milliseconds(f"{what}grace", self.grace)
        _milliseconds(f"{what}jitter", self.jitter)

    def _wire(self) -> pb.Schedule:
        """Returns the wire's form. Its default of a grace is 0, so none at all is a millisecond."""
        grace = 0 if self.grace is None else max(1, _milliseconds("grace", self.grace))
        times = self.times
        return pb.Schedule(
            name=self.name,
            cron=times.cron,
            zone=times.zone,
            every_ms=times.every_ms,
            at_ms=times.at_ms,
            missed=_POLICIES[self.missed],
            grace_ms=grace,
            jitter_ms=_milliseconds("jitter", self.jitter),
        )


class NoSchedule(Exception):
    """A firing has come whose schedule the worker does not declare."""


def key_of(schedule: str) -> str:
    """Returns the key of the firings of a schedule."""
    return f"schedule/{schedule}"


def by_name(schedules: Iterable[Schedule] | None) -> Mapping[str, Schedule]:
    """Returns the schedules by name. Raises ArgumentError if there are too many, one is none, or two have one name."""
    found: dict[str, Schedule] = {}
    try:
        declared = list(schedules or ())
    except TypeError:
        raise ArgumentError(f"schedules = {schedules!r:.80}, want a list of ringfence.Schedule") from None
    for one in declared:
        if not isinstance(one, Schedule):
            raise ArgumentError(f"schedules: {one!r:.80}, want a ringfence.Schedule")
        if one.name in found:
            raise ArgumentError(f"schedules: {one.name!r} is declared twice, want a name of its own for each")
        found[one.name] = one
    if len(found) > SCHEDULES_MAX:
        raise ArgumentError(f"schedules: {len(found)} of them, want at most {SCHEDULES_MAX}")
    return found


def check_schedules(schedules: Mapping[str, Schedule], handler: Handler) -> None:
    """Raises ArgumentError if a handler is not of the style of the handler of events, and TypeError if it is a generator function."""
    from ringfence.handlers import is_async, refuse_generator

    style = is_async(handler)
    for name, of in schedules.items():
        refuse_generator(f"the handler of the schedule {name!r}", of.handler)
        if is_async(cast(Any, of.handler)) != style:
            raise ArgumentError(f"schedules: {name!r}: want a {'coroutine' if style else 'plain'} function, as the handler of events is one")


def fire(schedules: Mapping[str, Schedule], event: Event) -> Any:
    """Calls the handler of a firing. Returns what that returns, which is awaitable if it is a coroutine function."""
    firing = Firing._of(event)
    found = schedules.get(firing.schedule)
    if found is None:  # a router sends a worker only firings of the schedules that it has declared
        raise NoSchedule(f"this worker does not declare the schedule {firing.schedule!r}")
    return found.handler(firing)


def is_named(schedules: Iterable[str], text: str) -> bool:
    """Reports whether the text of a router's refusal names one of these schedules, so that no router of its release takes it."""
    return any('schedule "' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' in text for name in schedules)


def _is_text(value: object, bytes_max: int) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def _milliseconds(what: str, value: float | datetime.timedelta) -> int:
    """Raises ArgumentError if it is no time from 0 to 366 days."""
    seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= SECONDS_MAX:
        raise ArgumentError(f"{what} = {value!r:.80}, want a timedelta or a number of seconds, from 0 to 366 days")
    return round(seconds * 1000)
