"""Publishing events that come back when they are due: the timers of handlers, and what a lane sends."""

from __future__ import annotations

import asyncio
import datetime
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import grpc

from ringfence.errors import ArgumentError, MaybeSent, NotSent, SessionError
from ringfence.event import Event, MessageID
from ringfence.lane.v1 import lane_pb2 as pb
from ringfence.schedules import fire

if TYPE_CHECKING:
    from ringfence.connections import Connections
    from ringfence.handlers import Handler
    from ringfence.options import Settings
    from ringfence.schedules import Schedule

METHOD = "/ringfence.lane.v1.LaneService/Send"
TIMEOUT_DEFAULT = 35.0
"""Seconds that the router's answer is waited for. The router itself waits 30 s for the broker."""
GRACE = 1.0
"""Seconds that the answer to a request is waited for that is under way when the time is up: otherwise nobody would know whether it was refused."""
TOGETHER_MAX = 8
"""Timers of one event that are under way at once."""
PAUSE_MIN, CALL_PAUSE_MAX, SEND_PAUSE_MAX = 0.001, 0.02, 0.1
"""Seconds before a request that the router has refused unread is made again: doubled from the first to the second or third value."""

PAYLOAD_MAX, REQUEST_MAX = 1 << 20, 2 << 20
"""Bytes of a payload, and of a whole request, that a router reads."""

_NOT_SENT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_NO_CONNECTION = ("failed to connect to all addresses", "DNS resolution failed")  # gRPC's words for a call that was never sent


def was_never_sent(failure: grpc.RpcError) -> bool:
    """Reports whether there was no connection for a request."""
    text = failure.details() or ""
    return failure.code() == grpc.StatusCode.UNAVAILABLE and any(words in text for words in _NO_CONNECTION)


def is_crowded(error: BaseException | None) -> bool:
    """Reports whether the router has refused a request unread: too many are just beginning, or wait for the broker."""
    failure = error.__cause__ if isinstance(error, Exception) and not isinstance(error, grpc.RpcError) else error
    return isinstance(failure, grpc.RpcError) and failure.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def wrong_size(request: pb.InvokeRequest | pb.SendRequest) -> str:
    """Returns what is wrong with the size of a request, empty if nothing is.

    gRPC would refuse a larger one with the status of a router that has taken nothing in, and it would be made again and again.
    """
    if len(request.payload) > PAYLOAD_MAX:
        return f"a payload of {len(request.payload)} bytes: want at most {PAYLOAD_MAX}"
    size = request.ByteSize()
    return f"a request of {size} bytes: want at most {REQUEST_MAX}" if size > REQUEST_MAX else ""


class Pauses:
    """The pauses before a refused request is made again, until its time is up."""

    def __init__(self, timeout: float, most: float) -> None:
        self._timeout, self._most = timeout, most
        self._end = time.monotonic() + timeout
        self._next = PAUSE_MIN

    def left(self) -> float:
        """Returns how many seconds are left: for the first attempt all."""
        return self._timeout if self._next == PAUSE_MIN else max(self._end - time.monotonic(), 0.001)

    def next(self) -> float | None:
        """Returns how many seconds to wait, None if the time would be up then."""
        pause = self._next * random.uniform(0.5, 1)
        self._next = min(2 * self._next, self._most)
        return pause if pause < self.left() else None


class Sender:
    """Sends over one channel."""

    def __init__(self, settings: Settings, channel: grpc.Channel | Connections) -> None:
        self._settings = settings
        self._call: Any = channel.unary_unary(METHOD, pb.SendRequest.SerializeToString, pb.SendResponse.FromString)

    def begin(self, request: pb.SendRequest, timeout: float = TIMEOUT_DEFAULT) -> Any:
        """Sends a request, and returns gRPC's future of its response. Raises NotSent if that cannot even be tried."""
        wrong = wrong_size(request)
        if wrong:
            raise NotSent(wrong)
        try:
            metadata = self._settings.metadata()
        except SessionError as failure:
            raise NotSent(str(failure)) from failure
        try:
            return self._call.future(request, timeout=min(timeout, TIMEOUT_DEFAULT) + GRACE, metadata=metadata)
        except ValueError as failure:  # gRPC's word for a channel that is closed
            raise NotSent("the connection was closed") from failure

    def send(self, request: pb.SendRequest, timeout: float) -> MessageID:
        """Sends until the router takes the request. It blocks."""
        pauses = Pauses(timeout, SEND_PAUSE_MAX)
        while True:
            try:
                left = min(pauses.left(), TIMEOUT_DEFAULT)
                future = self.begin(request, left)
                try:
                    future.result(left)
                except grpc.FutureTimeoutError:
                    future.probe()
                except (grpc.RpcError, grpc.FutureCancelledError):
                    pass
                return id_of(future)
            except NotSent as failure:
                pause = pauses.next()
                if pause is None or not is_crowded(failure):
                    raise
            time.sleep(pause)

    async def send_async(self, request: pb.SendRequest, timeout: float) -> MessageID:
        """Is :meth:`send` for a coroutine."""
        pauses = Pauses(timeout, SEND_PAUSE_MAX)
        while True:
            try:
                left = min(pauses.left(), TIMEOUT_DEFAULT)
                future = self.begin(request, left)
                late = asyncio.get_running_loop().call_later(left, future.probe)
                try:
                    await answered([future])
                finally:
                    late.cancel()
                return id_of(future)
            except NotSent as failure:
                pause = pauses.next()
                if pause is None or not is_crowded(failure):
                    raise
            await asyncio.sleep(pause)


def id_of(future: Any) -> MessageID:
    """Waits for the response, and returns the id of the event. Raises NotSent or MaybeSent."""
    try:
        response = future.result()
    except grpc.RpcError as failure:
        code, text = failure.code(), failure.details() or ""
        if code in _NOT_SENT or was_never_sent(failure):
            raise NotSent(text or code.name) from failure
        raise MaybeSent(f"{code.name}: {text}" if text else code.name) from failure
    except grpc.FutureCancelledError as failure:
        raise MaybeSent("the connection was closed, or the caller stopped waiting") from failure
    try:
        ledger, entry, topic_partition, batch = (int(number) for number in response.message_id.split(":"))
    except ValueError as failure:
        raise MaybeSent(f"the router answered {response.message_id!r:.80}") from failure
    return MessageID(ledger, entry, batch, topic_partition)


async def answered(futures: list[Any]) -> None:
    """Waits until all of gRPC's futures are done. Cancels them if its task is cancelled."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    left = len(futures)

    def count() -> None:
        nonlocal left
        left -= 1
        if not left and not over.done():
            over.set_result(None)

    def done(_: object) -> None:
        try:
            loop.call_soon_threadsafe(count)
        except RuntimeError:  # the loop was closed: nobody waits
            pass

    for future in futures:
        future.add_done_callback(done)
    try:
        await over
    except asyncio.CancelledError:
        for future in futures:
            future.cancel()
        raise


class Due(NamedTuple):
    """When an event is due, as the request has it."""

    after_ms: int = 0
    at_ms: int = 0


def due(after: float | datetime.timedelta | None, at: datetime.datetime | None) -> Due:
    """Raises ArgumentError if it is no time."""
    if at is not None:
        if after is not None:
            raise ArgumentError("after and at: want one of them")
        if not isinstance(at, datetime.datetime) or at.tzinfo is None:
            raise ArgumentError(f"at = {at!r}, want a datetime with a time zone")
        return Due(at_ms=max(1, math.floor(at.timestamp() * 1000)))
    seconds = after.total_seconds() if isinstance(after, datetime.timedelta) else 0.0 if after is None else after
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds < math.inf:
        raise ArgumentError(f"after = {after!r}, want a number of seconds, or a timedelta")
    return Due(after_ms=min(int(max(0, seconds) * 1000), (1 << 64) - 1))


def request_of(
    key: bytes,
    payload: bytes | str,
    when: Due,
    name: str,
    id: str | None,
    properties: Mapping[str, str] | None,
    traceparent: str,
) -> pb.SendRequest:
    """Returns what a lane sends."""
    all_properties = {"traceparent": traceparent} if traceparent else {}
    all_properties.update(properties or {})
    check_utf8(payload=payload, name=name, id=id)
    for text in (*all_properties, *all_properties.values()):
        check_utf8(properties=text)
    payload = payload.encode() if isinstance(payload, str) else payload
    return pb.SendRequest(key=key, payload=payload, name=name, id=id or "", properties=all_properties, after_ms=when.after_ms, at_ms=when.at_ms)


def check_utf8(**arguments: object) -> None:
    """Raises ArgumentError for a text that has no UTF-8. What is no text passes."""
    for name, text in arguments.items():
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError as failure:
                raise ArgumentError(f"{name}: half of a surrogate pair has no UTF-8") from failure


def with_timers(handler: Handler, schedules: Mapping[str, Schedule]) -> Handler:
    """Returns a handler of events and firings that publishes the timers that their handler has set, once that has returned.

    It fails if the handler has returned something that has not run.
    """
    from ringfence.handlers import check_returned, check_returned_plain, is_async

    if is_async(handler):
        inner = cast(Callable[[Event], Awaitable[object]], handler)

        async def handle_async(event: Event) -> None:
            value = await (inner(event) if event._firing is None else fire(schedules, event))
            if value is not None:
                check_returned(value)
            if event._timers is not None:
                await _publish_async(event)

        return handle_async

    plain = cast(Callable[[Event], object], handler)

    def handle(event: Event) -> None:
        value = plain(event) if event._firing is None else fire(schedules, event)
        if value is not None:
            check_returned_plain(value)
        if event._timers is not None:
            _publish(event)

    return handle


def _requests(event: Event) -> list[pb.SendRequest]:
    """Returns the requests for the timers of an event, which can set no more. Their ids are the same in every run."""
    event._timers_taken = True
    return [
        pb.SendRequest(key=event.key, payload=timer.payload, name=timer.name, after_ms=timer.after_ms, id=f"after/{event.message_id}/{n}")
        for n, timer in enumerate(event._timers or ())
    ]


class _Round:
    """Some requests that are under way."""

    def __init__(self, event: Event, requests: list[pb.SendRequest]) -> None:
        assert event._stream is not None and event._stream.sender is not None
        self.event, self.requests = event, requests
        self.futures: list[Any] = []
        for request in requests:
            self.futures.append(event._stream.sender.begin(request))

    def refused(self) -> list[pb.SendRequest]:
        """Waits for the answers, and returns what is to be sent again. Raises NotSent or MaybeSent, or as check does."""
        again = []
        for request, future in zip(self.requests, self.futures, strict=True):
            try:
                id_of(future)
            except (NotSent, MaybeSent) as failure:
                self.event.check()  # a key that is lost is the better reason
                if not is_crowded(failure):
                    self.cancel()
                    raise
                again.append(request)
        return again

    def cancel(self) -> None:
        for future in self.futures:
            future.cancel()


def _publish(event: Event) -> None:
    """Publishes the timers of an event from its thread, which is freed when the key is lost."""
    left, pauses = _requests(event), Pauses(math.inf, SEND_PAUSE_MAX)
    while left:
        event.check()  # a handler that has lost its key and returns as if it had not has not succeeded
        sends = _Round(event, left[:TOGETHER_MAX])
        event._give_up = sends.cancel
        if event._cause is not None:  # it came before there was anything to give up
            sends.cancel()
        refused = sends.refused()
        event._give_up = None
        left = refused + left[TOGETHER_MAX:]
        if refused:
            time.sleep(cast(float, pauses.next()))


async def _publish_async(event: Event) -> None:
    """Publishes the timers of an event from its task."""
    left, pauses = _requests(event), Pauses(math.inf, SEND_PAUSE_MAX)
    while left:
        event.check()  # it may have swallowed its cancellation
        sends = _Round(event, left[:TOGETHER_MAX])
        await answered(sends.futures)
        refused = sends.refused()
        left = refused + left[TOGETHER_MAX:]
        if refused:
            await asyncio.sleep(cast(float, pauses.next()))
