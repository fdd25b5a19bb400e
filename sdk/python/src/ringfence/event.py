"""The event that a handler gets."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ringfence.errors import ArgumentError, Cancelled
from ringfence.inbox import Item
from ringfence.state import state, state_async

if TYPE_CHECKING:
    from ringfence.app.v1 import app_pb2
    from ringfence.state import States
    from ringfence.stream import Stream

V = TypeVar("V")

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_TOKEN_DIGITS, _TURN_DIGITS = 19, 20
_TOKEN_MAX, _TURN_MAX = (1 << 63) - 1, (1 << 64) - 1


class Fence(NamedTuple):
    """Orders the deliveries of one key: each has a greater fence than all earlier ones, across machines and restarts.

    Keep the greatest fence of each key in your database, and refuse a write whose fence is less (docs/sinks.md). Fences compare
    as tuples do; fences of different keys cannot be compared.
    """

    token: int
    """Grows whenever the key gets another owner. Needs 63 bits. 0 if the routers cannot order owners (mode gossip)."""
    turn: int
    """Grows with each delivery under one token. Needs 64 bits, signed ones are enough. 0 if the router has no turns."""

    @property
    def text(self) -> str:
        """The fence as text of 40 characters; the texts' byte order is the order of the fences."""
        return f"{self.token:019d}.{self.turn:020d}"

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Returns the fence whose text this is. Raises ValueError if it is none."""
        token, point, turn = text[:_TOKEN_DIGITS], text[_TOKEN_DIGITS : _TOKEN_DIGITS + 1], text[_TOKEN_DIGITS + 1 :]
        if text.isascii() and point == "." and len(turn) == _TURN_DIGITS and token.isdigit() and turn.isdigit():
            fence = cls(int(token), int(turn))
            if fence.token <= _TOKEN_MAX and fence.turn <= _TURN_MAX:
                return fence
        raise ValueError(f"not the text of a fence: {text!r}; want 19 digits, a point and 20 digits")


class MessageID(NamedTuple):
    """Pulsar's id of an event, the same through all retries. As text it is ledger:entry:partition:batch, as Pulsar's tools have it."""

    ledger: int = 0
    entry: int = 0
    batch: int = -1
    """Index in the producer's batch, -1 without a batch."""
    topic_partition: int = -1
    """-1 if the topic is not partitioned."""

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.topic_partition}:{self.batch}"


class Timer(NamedTuple):
    """What an event has that a router published: one that a handler set with :meth:`Event.after`, or that :meth:`Lane.send` sent."""

    name: str
    """The name that the sender gave it, empty for none."""
    due: datetime.datetime
    """When it was due, in UTC by the clocks of the routers: the handler does not run earlier."""


TIMERS_MAX = 100
"""The timers that the handler of one event may set."""
TIMER_AFTER_MAX = 366 * 24 * 3600
"""Seconds until a timer is due, at most."""
TIMER_NAME_MAX = 128
"""Bytes of a timer's name."""
TIMER_PAYLOAD_MAX = 1 << 20
"""Bytes of a timer's payload."""


RETURNED = Cancelled("the handler has returned")
"""The cause of events whose handler has returned: for a thread or a task of the handler's that goes on and asks."""


class _Set(NamedTuple):
    """A timer that a handler has set."""

    after_ms: int
    name: str
    payload: bytes

    @classmethod
    def of(cls, delay: float | datetime.timedelta, name: str, payload: bytes | str) -> _Set:
        """Raises ArgumentError if routers do not take such a timer."""
        seconds = delay.total_seconds() if isinstance(delay, datetime.timedelta) else delay
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds <= TIMER_AFTER_MAX:
            raise ArgumentError(f"delay = {delay!r}, want a timedelta or a number of seconds, of at most 366 days")
        if not isinstance(name, str) or not name.isprintable() or "\ufffd" in name or len(name.encode(errors="replace")) > TIMER_NAME_MAX:
            raise ArgumentError(f"name = {name!r:.80}, want at most {TIMER_NAME_MAX} bytes of printable text")
        data = payload.encode() if isinstance(payload, str) else bytes(payload)
        if len(data) > TIMER_PAYLOAD_MAX:
            raise ArgumentError(f"payload: {len(data)} bytes, want at most {TIMER_PAYLOAD_MAX}")
        return cls(int(max(0, seconds) * 1000), name, data)  # one in the past, as a run after a crash may ask for, is due at once


def _time(milliseconds: int) -> datetime.datetime:
    try:
        return _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    except OverflowError:  # a producer may set any number
        return datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)


class Arrival(NamedTuple):
    """What an event has that is a call, as it was received."""

    method: str
    id: str
    deadline: float  # seconds since 1970
    path: tuple[int, ...]

    @classmethod
    def of(cls, call: app_pb2.Call, now: float) -> Arrival:
        """Copies the wire's form, which must not keep its frame in memory."""
        return cls(call.method, call.id, now + call.timeout_ms / 1000, tuple(call.path))


class Occurrence(NamedTuple):
    """What an event has that is a firing of a schedule. Its timer has the name of the schedule."""

    time: datetime.datetime
    missed: int

    @classmethod
    def of(cls, firing: app_pb2.Firing) -> Occurrence:
        """Copies the wire's form."""
        return cls(_time(firing.time_ms), firing.missed)


class Event(Item):
    """One event as the producer sent it, with the router's data about its delivery.

    It belongs to its handler until the handler returns. Its methods may be called from any thread. Make one yourself to call a
    handler in a test; :class:`ringfence.testing.Router` tests more.
    """

    __slots__ = ("__dict__", "_cause", "_delivery", "_frame", "_steps", "_stream")  # the fields below are in __dict__

    key: bytes
    """Events with one key are handled one at a time. It may hold any bytes, up to 4096; see :attr:`key_text`."""
    payload: bytes
    """The producer's bytes."""
    properties: Mapping[str, str]
    """The producer's properties, in its order; the first one counts if a name occurs twice."""
    topic: str
    """The full name of the topic that the event was first sent to."""
    message_id: MessageID
    """Names the event, through all retries."""
    publish_time: datetime.datetime
    """The time of sending by the producer's clock, in UTC."""
    event_time: datetime.datetime | None
    """The time that the producer assigned to the event, in UTC; None if it did not."""
    attempt: int
    """1 for the first delivery; grows with each failure of a handler, not with moves of the key."""
    redelivery: int
    """Counts Pulsar's earlier deliveries of the event."""
    schema_version: bytes | None
    """The version of the payload's schema in Pulsar's registry for the topic; None if the producer gave none."""
    fence: Fence
    """Greater than that of any earlier delivery of the key. Pass its text to your database with every write."""
    timer: Timer | None
    """Set for an event that a router published: a timer, or an event of :meth:`Lane.send`. Its message_id is none of Pulsar's. Hooks see a
    firing of a schedule as an event whose timer has the name of the schedule."""

    # Set by the SDK. _delivery and _frame are the wire's forms, from which the fields above are read when they are first used.
    _delivery: app_pb2.Delivery | None
    _frame: app_pb2.Deliveries | None
    _stream: Stream | None
    _generation: int  # see Delivery.generation in the wire's form; 0: the router does not say
    _cause: Cancelled | None  # why the handler must stop
    _steps: Any  # of the task that runs the handler; set by a LoopPool alone
    # Of calls alone. They are in __dict__, so that events pay nothing for them.
    _call: Arrival | None = None
    _reply: bytes = b""
    # Of firings of schedules alone.
    _firing: Occurrence | None = None
    # Of events whose handlers set timers.
    _timers: list[_Set] | None = None
    _timers_taken = False  # the handler has returned, and they are being published
    _give_up: Callable[[], None] | None = None  # frees the thread that publishes them

    def __init__(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        properties: Mapping[str, str] | None = None,
        topic: str = "",
        message_id: MessageID = MessageID(),
        publish_time: datetime.datetime = _EPOCH,
        event_time: datetime.datetime | None = None,
        attempt: int = 1,
        redelivery: int = 0,
        schema_version: bytes | None = None,
        fence: Fence = Fence(0, 0),
        timer: Timer | None = None,
    ) -> None:
        self.key = key.encode(errors="surrogateescape") if isinstance(key, str) else key  # as key_text has it
        self.payload = payload.encode() if isinstance(payload, str) else payload
        self.properties = {} if properties is None else dict(properties)
        self.topic = topic
        self.message_id = message_id
        self.publish_time, self.event_time = publish_time, event_time
        self.attempt, self.redelivery = attempt, redelivery
        self.schema_version = schema_version
        self.fence = fence
        self.timer = timer
        self.id = self.partition = self._generation = 0
        self._delivery = self._frame = self._stream = self._cause = None

    def __repr__(self) -> str:  # without key and payload, which must not get into logs
        return f"<Event {self.message_id} attempt {self.attempt}>"

    @property
    def key_text(self) -> str:
        """The key as text. Bytes that are not UTF-8 become surrogates, so different keys have different texts."""
        return self.key.decode(errors="surrogateescape")

    @property
    def fencing_token(self) -> int:
        """``fence.token``, for a database that keeps one number for each key.

        It refuses writes of former owners of the key, but not writes of an earlier delivery by the same owner.
        """
        return self.fence.token

    @property
    def turn(self) -> int:
        """``fence.turn``."""
        return self.fence.turn

    @property
    def traceparent(self) -> str:
        """The W3C trace context: that of this delivery if the router traces it, else the producer's; empty if there is none."""
        return self._property("traceparent")

    @property
    def tracestate(self) -> str:
        """The W3C trace state that belongs to :attr:`traceparent`, or empty."""
        return self._property("tracestate")

    @property
    def trace_headers(self) -> dict[str, str]:
        """The trace context as headers for outgoing calls of a handler, for applications without OpenTelemetry."""
        headers = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        return {name: value for name, value in headers.items() if value} if headers["traceparent"] else {}

    def _property(self, name: str) -> str:
        for candidate, value in self.properties.items():
            if candidate.lower() == name:
                return value
        return ""

    @property
    def method(self) -> str:
        """The method of a call, empty for an event. Hooks see calls as events, whose message_id, topic and times say nothing."""
        return "" if self._call is None else self._call.method

    @property
    def cause(self) -> Cancelled | None:
        """Why the handler was cancelled, None if it was not. It does not read the clock."""
        return self._cause

    @property
    def cancelled(self) -> bool:
        """Whether the handler must stop and write nothing. It reads the clock, so it is right even if the process was frozen."""
        if self._cause is not None:
            return True
        stream = self._stream
        return stream is not None and stream.overdue(self)

    def check(self) -> None:
        """Raises :class:`KeyLost`, :class:`HandlerTimeout` or :class:`DrainTimeout` if the handler must stop.

        Call it before a write that must not be late; it reads the clock. Plain functions have no other way to learn of the end;
        asyncio handlers are also cancelled.
        """
        if self.cancelled:
            cause = self._cause
            assert cause is not None
            raise type(cause)(*cause.args)

    def progress(self) -> None:
        """Tells the router that the handler still works on this event, which restarts its ``handler.timeout``, if it has one.

        It does not block. Raises as :meth:`check` does.
        """
        self.check()
        stream = self._stream
        if stream is not None:
            stream.progress(self)

    def after(self, delay: float | datetime.timedelta, name: str = "", payload: bytes | str = b"") -> None:
        """Sets a timer: when ``delay``, in seconds, has passed, the handler gets an event of the same key, with this payload, and with this
        name in its :attr:`timer`, on whichever machine owns the key then.

        Timers are durable: when the handler has returned they are published, and only then the event counts as done. If the handler fails they are
        dropped. If it runs again for the same event, the n-th timer of that run is the same one as the n-th of the run before. A timer
        cannot be cancelled: let its handler look whether it is still wanted.

        A delay of less than 0 is 0. Raises ArgumentError for more than 366 days, a name of more than 128 bytes or that is not printable, a
        payload of more than 1 MiB, and more than 100 timers of one event. Call it before the handler returns, from one thread: afterwards it raises
        Cancelled, and the timer is not set.
        """
        if self._cause is RETURNED or self._timers_taken:
            raise Cancelled(*RETURNED.args)
        timer = _Set.of(delay, name, payload)
        if self._timers is None:
            self._timers = []
        if len(self._timers) >= TIMERS_MAX:
            raise ArgumentError(f"more than {TIMERS_MAX} timers of one event")
        self._timers.append(timer)

    def _states(self) -> States | None:
        """Returns the states that the handler may ask for. None: no router delivered the event, or this is what the handler has left behind."""
        return None if self._stream is None or self._cause is RETURNED else self._stream.runner.states

    def state(self, load: Callable[[], V], name: str = "") -> V:
        """Returns the value that the last turn of the key has left in this process, or otherwise what ``load`` returns.

        The handler changes the value in place, and need not give it back. It is kept for the next turn of the key if this handler returns, and
        is returned there only if no other turn of the key came in between, on any machine: so a handler reads what the handler before it
        has written, without a query. A turn whose handler does not ask drops the value. So does any doubt: an exception, a cancelled
        handler, a key that has moved or was reserved, a worker that has come or gone, a router of an older release. The value is never
        durable: write to your database what must last, with the fence.

        A key may have several values, each with a name. None, numbers, texts, bytes, tuples, dates, times and members of an Enum are returned,
        but not kept: no handler can change them in place. A handler that writes a changed copy, as of a frozen dataclass, would leave the
        old value: keep the copy in an object that can be changed. What ``load`` raises is raised. At most ``state_max`` keys have values,
        those that were used last. An event that no router delivered always loads.
        """
        return state(self, load, name)

    async def state_async(self, load: Callable[[], Awaitable[V]], name: str = "") -> V:
        """Is :meth:`state` for a coroutine: ``load`` is a coroutine function, or returns another awaitable."""
        return await state_async(self, load, name)

    @property
    def lease_until(self) -> datetime.datetime | None:
        """The current end of the handler's lease in UTC, which is renewed as long as the key remains here.

        Use it for planning alone, such as whether to begin another chunk of work: :meth:`check` is the signal to stop. None for an
        event that no router delivered.
        """
        stream = self._stream
        if stream is None:
            return None
        left = stream.left(self)
        return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(microseconds=left // 1000)


def _properties(d: Any, f: Any) -> dict[str, str]:
    names = f.names
    out: dict[str, str] = {}
    for p in d.properties:
        out.setdefault(names[p.name], p.value)
    return out


_READ: dict[str, Callable[[Any, Any], Any]] = {
    "partition": lambda d, f: d.partition,
    "_generation": lambda d, f: d.generation,
    "key": lambda d, f: d.key,
    "payload": lambda d, f: d.payload,
    "properties": _properties,
    "topic": lambda d, f: f.topics[d.topic],
    "message_id": lambda d, f: MessageID(d.ledger_id, d.entry_id, d.batch_index, d.topic_partition),
    "publish_time": lambda d, f: _time(d.publish_time_ms),
    "event_time": lambda d, f: _time(d.event_time_ms) if d.event_time_ms else None,
    "attempt": lambda d, f: d.attempt,
    "redelivery": lambda d, f: d.redelivery_count,
    "schema_version": lambda d, f: f.schema_versions[d.schema_version - 1] if d.schema_version else None,
    "fence": lambda d, f: Fence(f.tokens[d.token], d.turn),
    "timer": lambda d, f: Timer(d.timer.name, _time(d.timer.due_ms)) if d.HasField("timer") else None,
}
"""How each field is read from its delivery and its frame."""


class _Field:
    """A field of an event, read from the frame when it is first used: most handlers read few. From then on it is in the event's __dict__.

    Not by ``__getattr__``: with it, Python reads all attributes of an event some 30 ns slower.
    """

    def __init__(self, name: str, read: Callable[[Any, Any], Any]) -> None:
        self.name, self.read = name, read

    def __get__(self, event: Event | None, of: type[Event]) -> Any:
        if event is None:
            return self
        delivery, frame, fields = event._delivery, event._frame, event.__dict__
        if delivery is None or frame is None:  # detach was faster, and has set all fields
            return fields[self.name]
        value = fields[self.name] = self.read(delivery, frame)
        return value


for _name, _read in _READ.items():
    setattr(Event, _name, _Field(_name, _read))


def detach(event: Event) -> None:
    """Reads all fields, and lets go of the frame: an event that is held for long must not keep the whole frame in memory."""
    if event._frame is not None:
        for name in _READ:
            getattr(event, name)
        event._frame = event._delivery = None
