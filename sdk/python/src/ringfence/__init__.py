"""The Python SDK of Ringfence: the application's side of the stream between a router and the application beside it.

A handler is a function, plain or ``async``. :func:`run` calls it for the events of a key one by one, and for many keys at once; no two
handlers of one key run at the same time, on any machine of the group::

    import ringfence

    def handle(event: ringfence.Event) -> None:
        store.apply(event.key, event.fence.text, event.payload)

    ringfence.run(handle)

**What a handler does.** Returning means done: the event is acked. Raising :class:`RetryAfter` or any other exception means that the
handler failed, and the event is retried, after your delay or the router's back-off. Raising :class:`Reject` means that the event will
never succeed: it goes to the dead letter topic.

**When the key is lost.** Keys move between machines. A handler that runs when its key moves may finish while the router still holds the
lease. When the lease ends, it is cancelled, and from then on another machine may work on the key: stop at once, and write nothing. An
asyncio handler is cancelled as a task is; in a plain one :meth:`Event.check` raises :class:`KeyLost`. Deadlines are checked every 50 ms;
``check`` reads the clock itself, so call it before a write that must not be late. What such a handler raises counts as neither failure
nor success; returning counts as success.

**Calls.** Another process may call a handler of a key, which runs when no event and no other call of the key is handled, and wait for
its reply. A worker registers a handler for each method, and :class:`Lane` calls it::

    ringfence.run(handle, calls={"charge": charge})  # def charge(call: ringfence.Call) -> bytes

    ringfence.Lane().invoke("user-7", "charge", b"4200")

**Reservations.** Who is no handler can hold a key: no handler of it runs meanwhile, on any machine::

    with ringfence.Lane().reserve("user-7", wait=30) as r:
        r.check()  # raises KeyLost if the key is lost
        store.apply("user-7", r.fence.text, b"repaired")

**Timers.** A handler that has returned may be called again later, for the same key; and any process may send an event that is due later::

    event.after(3600, "remind", b"order-8")  # the handler gets an event with event.timer.name == "remind"

    ringfence.Lane().send("user-7", b"order-8", after=3600, name="remind")

**State.** What a handler has loaded can be kept in memory for the next turn of its key, as long as nothing else can have changed it::

    account = event.state(lambda: store.load(event.key))  # in a coroutine: await event.state_async(...)

**Schedules.** A worker can declare handlers that run at set times, once in the whole group::

    ringfence.run(handle, schedules=[ringfence.Schedule("report", ringfence.cron("0 6 * * 1-5", "Europe/Berlin"), report)])

Pass ``event.fence.text`` to your database with every write, and refuse a write whose fence is less than the greatest one seen for that
key (docs/sinks.md): no lease can stop a process that is frozen between your last check and the write.
"""

from ringfence.call import AsyncCallHandler, Call, CallHandler, PlainCallHandler
from ringfence.caller import Lane
from ringfence.errors import (
    ArgumentError,
    Broken,
    CallerGone,
    CallError,
    CallFailure,
    CallOutcome,
    Cancelled,
    DrainTimeout,
    Error,
    GoAway,
    HandlersStillRunning,
    HandlerTimeout,
    KeyLost,
    MaybeSent,
    NotReserved,
    NotSent,
    Refused,
    Reject,
    RetryAfter,
    SessionError,
    Silent,
    TooManyWorkers,
    Unauthenticated,
    Unreachable,
    VersionMismatch,
)
from ringfence.event import Event, Fence, MessageID, Timer
from ringfence.handlers import AsyncHandler, Handler, PlainHandler, json_handler
from ringfence.options import DEFAULT_ENDPOINT, ENDPOINT_ENV, TLS, TOKEN_FILE_ENV, Hooks, Options, Result, ResultKind, Session
from ringfence.reservation import AsyncReservation, Reservation
from ringfence.schedules import (
    AsyncFiringHandler,
    Firing,
    FiringHandler,
    MissedPolicy,
    PlainFiringHandler,
    Schedule,
    Times,
    at,
    cron,
    every,
)
from ringfence.version import VERSION as __version__
from ringfence.worker import Worker, run, serve

__all__ = [
    "DEFAULT_ENDPOINT",
    "ENDPOINT_ENV",
    "TLS",
    "TOKEN_FILE_ENV",
    "ArgumentError",
    "AsyncCallHandler",
    "AsyncFiringHandler",
    "AsyncHandler",
    "AsyncReservation",
    "Broken",
    "Call",
    "CallError",
    "CallFailure",
    "CallHandler",
    "CallOutcome",
    "CallerGone",
    "Cancelled",
    "DrainTimeout",
    "Error",
    "Event",
    "Fence",
    "Firing",
    "FiringHandler",
    "GoAway",
    "Handler",
    "HandlerTimeout",
    "HandlersStillRunning",
    "Hooks",
    "KeyLost",
    "Lane",
    "MaybeSent",
    "MessageID",
    "MissedPolicy",
    "NotReserved",
    "NotSent",
    "Options",
    "PlainCallHandler",
    "PlainFiringHandler",
    "PlainHandler",
    "Refused",
    "Reject",
    "Reservation",
    "Result",
    "ResultKind",
    "RetryAfter",
    "Schedule",
    "Session",
    "SessionError",
    "Silent",
    "Timer",
    "Times",
    "TooManyWorkers",
    "Unauthenticated",
    "Unreachable",
    "VersionMismatch",
    "Worker",
    "__version__",
    "at",
    "cron",
    "every",
    "json_handler",
    "run",
    "serve",
]
