"""Calls of handlers of keys, and what becomes of them."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from ringfence.errors import ArgumentError, CallFailure, Cancelled
from ringfence.event import Arrival, Event, Fence

if TYPE_CHECKING:
    from ringfence.handlers import Handler, PlainHandler

V = TypeVar("V")

REPLY_MAX = 1 << 20
"""Bytes of a reply."""
CODE_MAX = 64
"""Bytes of the code of a failure."""
TIMEOUT_DEFAULT = 10.0
"""Seconds that a call may take."""

NO_HANDLER = "no_handler"
TOO_LARGE = "too_large"

_METHOD = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class Call:
    """A request for a handler of a key, whose caller waits for the reply.

    It belongs to its handler until the handler returns. Its methods may be called from any thread. Make one yourself to call a handler
    in a test; :class:`ringfence.testing.Router` tests more.
    """

    __slots__ = ("_event",)

    def __init__(
        self,
        key: bytes | str,
        method: str,
        payload: bytes | str = b"",
        *,
        id: str = "",
        timeout: float = TIMEOUT_DEFAULT,
        fence: Fence = Fence(0, 0),
    ) -> None:
        event = Event(key, payload, fence=fence)
        event._call = Arrival(method, id, time.time() + timeout, ())
        self._event = event

    @classmethod
    def _of(cls, event: Event) -> Call:
        call = cls.__new__(cls)
        call._event = event
        return call

    @property
    def _arrival(self) -> Arrival:
        return cast(Arrival, self._event._call)

    def __repr__(self) -> str:  # without key and payload, which must not get into logs
        return f"<Call {self.method}>"

    @property
    def key(self) -> bytes:
        """While the handler runs, no event and no other call of this key is handled. It may hold any bytes, up to 4096."""
        return self._event.key

    @property
    def key_text(self) -> str:
        """The key as text, as :attr:`Event.key_text` has it."""
        return self._event.key_text

    @property
    def method(self) -> str:
        """The name under which the handler is registered."""
        return self._arrival.method

    @property
    def payload(self) -> bytes:
        """The argument."""
        return self._event.payload

    @property
    def id(self) -> str:
        """The caller's id of the call, empty if it gave none. Only a call with an id may run twice, with two fences."""
        return self._arrival.id

    @property
    def deadline(self) -> datetime.datetime:
        """When the caller stops waiting, in UTC by this machine's clock. The handler is cancelled then, with the cause CallerGone."""
        return datetime.datetime.fromtimestamp(self._arrival.deadline, datetime.timezone.utc)

    @property
    def fence(self) -> Fence:
        """Greater than that of any earlier delivery of the key, event or call. Pass its text to your database with every write."""
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
        """Raises :class:`KeyLost`, :class:`CallerGone` or :class:`DrainTimeout` if the handler must stop, as :meth:`Event.check` does."""
        self._event.check()

    def progress(self) -> None:
        """Restarts the router's ``handler.timeout``, as :meth:`Event.progress` does, but not the timeout of the caller."""
        self._event.progress()

    def after(self, delay: float | datetime.timedelta, name: str = "", payload: bytes | str = b"") -> None:
        """Sets a timer, as :meth:`Event.after` does: it is published before the caller gets its reply. The handler of events gets it."""
        self._event.after(delay, name, payload)

    def state(self, load: Callable[[], V], name: str = "") -> V:
        """Returns the state of the key, as :meth:`Event.state` does. Its events and calls share it."""
        return self._event.state(load, name)

    async def state_async(self, load: Callable[[], Awaitable[V]], name: str = "") -> V:
        """Is :meth:`state` for a coroutine, as :meth:`Event.state_async`."""
        return await self._event.state_async(load, name)

    @property
    def lease_until(self) -> datetime.datetime | None:
        """The current end of the handler's lease, as :attr:`Event.lease_until` has it."""
        return self._event.lease_until


Reply = Union[bytes, bytearray, memoryview, None]
PlainCallHandler = Callable[[Call], Reply]
AsyncCallHandler = Callable[[Call], Awaitable[Reply]]
CallHandler = Union[PlainCallHandler, AsyncCallHandler]
"""A function that answers one call. What it returns is the reply, None an empty one; raising means that the call failed. It is not tried again."""


class NoHandler(Exception):
    """There is no handler of the method of a call."""


def check_calls(calls: Mapping[str, CallHandler], handler: Handler) -> None:
    """Raises ArgumentError if a method is no name of one, or a handler is none or not of the style of the handler of events.

    Raises TypeError if a handler is a generator function.
    """
    from ringfence.handlers import is_async, refuse_generator

    style = is_async(handler)
    for method, of in calls.items():
        if not isinstance(method, str) or not _METHOD.match(method):
            raise ArgumentError(f"calls: the method {method!r}: want 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
        if not callable(of):
            raise ArgumentError(f"calls[{method!r}] = {of!r}, want a function")
        refuse_generator(f"calls[{method!r}]", of)
        if is_async(cast(Any, of)) != style:
            raise ArgumentError(f"calls[{method!r}]: want a {'coroutine' if style else 'plain'} function, as the handler of events is one")


def with_calls(calls: Mapping[str, CallHandler], handler: Handler) -> Handler:
    """Returns a handler of events and calls. The reply of a call is in its event."""
    from ringfence.handlers import is_async

    if not calls:
        return handler
    if is_async(handler):
        events_async = cast(Callable[[Event], Awaitable[object]], handler)

        async def handle_async(event: Event) -> Any:
            if event._call is None:
                return await events_async(event)
            event._reply = _reply(await cast(AsyncCallHandler, _find(calls, event))(Call._of(event)))
            return None

        return handle_async

    events = cast("PlainHandler", handler)

    def handle(event: Event) -> Any:
        if event._call is None:
            return events(event)
        event._reply = _reply(cast(PlainCallHandler, _find(calls, event))(Call._of(event)))
        return None

    return handle


def _find(calls: Mapping[str, CallHandler], event: Event) -> CallHandler:
    handler = calls.get(event.method)
    if handler is None:
        raise NoHandler("this worker has no handler for the method")
    return handler


def _reply(value: object) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        close = getattr(value, "close", None)  # of a coroutine that nobody awaits, of which Python would warn as well
        if close is not None:
            close()
        raise TypeError(f"the handler returned {type(value).__name__}: want bytes or None")
    reply = bytes(value)
    if len(reply) > REPLY_MAX:
        raise CallFailure(TOO_LARGE, f"a reply of {len(reply)} bytes: want at most {REPLY_MAX}")
    return reply


def code_of(error: BaseException) -> str:
    """Returns the code of what a handler raised, empty if it has none that fits."""
    if isinstance(error, CallFailure) and isinstance(error.code, str) and len(error.code.encode(errors="replace")) <= CODE_MAX:
        return error.code.encode(errors="replace").decode()
    return ""
