"""Calling handlers of keys, and reserving keys: Lane."""

from __future__ import annotations

import asyncio
import datetime
import functools
import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import grpc

from ringfence.call import TIMEOUT_DEFAULT, TOO_LARGE, Call
from ringfence.connections import Connections
from ringfence.errors import ArgumentError, CallError, CallOutcome, NotReserved, SessionError
from ringfence.event import Event, MessageID
from ringfence.lane.v1 import lane_pb2 as pb
from ringfence.options import check
from ringfence.reservation import METHOD as RESERVE
from ringfence.reservation import AsyncReservation, Holder, Reservation, check_seconds
from ringfence.runner import FRAME_MAX, dial
from ringfence.schedules import Firing
from ringfence.sending import (
    CALL_PAUSE_MAX,
    REQUEST_MAX,
    Pauses,
    Sender,
    answered,
    check_utf8,
    due,
    is_crowded,
    request_of,
    was_never_sent,
    wrong_size,
)
from ringfence.sending import TIMEOUT_DEFAULT as SEND_TIMEOUT
from ringfence.xxh64 import xxh64

if TYPE_CHECKING:
    from ringfence.options import TLS

METHOD = "/ringfence.lane.v1.LaneService/Invoke"
GRACE = 1.0
"""Seconds that the router's answer is waited for after the timeout of a call."""
OVERLOADED, UNREACHABLE = "overloaded", "unreachable"

_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", FRAME_MAX),  # the status of a reply that is larger would look like a refusal of the router
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # only the caller knows whether a call may run twice
    ("grpc.enable_http_proxy", 0),  # the router is on this machine, or reached by mutual TLS
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # how long an attempt to connect may take at least: the GRACE of reservations comes first
    ("grpc.max_reconnect_backoff_ms", 2000),
]

_OUTCOMES: dict[int, CallOutcome] = {
    pb.OUTCOME_FAILED: "failed",
    pb.OUTCOME_NOT_RUN: "not_run",
    pb.OUTCOME_DONE_BEFORE: "done_before",
}  # all others: unknown

_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Lane:
    """Calls handlers of keys, reserves keys, and sends events, through one router of the group::

        lane = ringfence.Lane()
        receipt = lane.invoke("user-7", "charge", b"4200", id="order-8")

    It connects with the first call, and again whenever the connection breaks. All methods may be called from any thread.

    A lane serves the process that made it: its methods raise RuntimeError in a child of :func:`os.fork`, which needs a lane of its own.
    """

    def __init__(
        self, endpoint: str | None = None, *, token_file: str | None = None, tls: TLS | None = None, logger: logging.Logger | None = None
    ) -> None:
        """The arguments are as for :func:`run`, but ``token_file`` = "" is no token; the files of ``tls`` are read here.

        Raises ArgumentError if the endpoint is none, and Unreachable if a file of ``tls`` cannot be read.
        """
        options: dict[str, Any] = {"tls": tls, "logger": logger}
        if token_file is not None:
            options["token_file"] = token_file
        self._settings = check(endpoint, options)
        self._channel = Connections(functools.partial(dial, self._settings, _CHANNEL_OPTIONS))
        self._invoke = self._channel.unary_unary(METHOD, pb.InvokeRequest.SerializeToString, pb.InvokeResponse.FromString)
        self._reserve = self._channel.stream_stream(RESERVE, pb.ReserveRequest.SerializeToString, pb.ReserveResponse.FromString)
        self._sender = Sender(self._settings, self._channel)

    def close(self) -> None:
        """Ends the connection. Calls that wait raise CallError, with the outcome unknown; reservations are lost when their permission ends."""
        self._channel.close()

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def invoke(
        self,
        key: bytes | str,
        method: str,
        payload: bytes | str = b"",
        *,
        id: str | None = None,
        timeout: float = TIMEOUT_DEFAULT,
        caller: Event | Call | Firing | None = None,
    ) -> bytes:
        """Calls the handler that is registered for ``method`` at the owner of ``key``, and returns its reply. It blocks.

        The handler runs when no event and no other call of the key does, before events that wait. Raises CallError if there is no
        reply, and ArgumentError if ``timeout`` is no number of seconds greater than 0; routers allow 10 minutes at most. The payload has at
        most 1 MiB.

        With an ``id``, of up to 128 bytes, the call runs at least once within its timeout, even if the owner of the key dies, unless
        it is refused; and a repeat with the same key and id gets the reply of the first one, or the outcome done_before. Without one
        it runs at most once.

        ``caller`` is the event, the call or the firing whose handler calls: a call that would wait for the caller's own key is then refused, with the
        code cycle, and does not wait for its timeout.
        """
        pauses = _call_pauses(timeout)
        while True:
            try:
                return _reply(self._begin(key, method, payload, id, pauses.left(), caller))
            except CallError as failure:
                pause = pauses.next()
                if pause is None or not is_crowded(failure):
                    raise
            time.sleep(pause)  # the router has taken nothing in: too many calls of its callers are just beginning

    async def invoke_async(
        self,
        key: bytes | str,
        method: str,
        payload: bytes | str = b"",
        *,
        id: str | None = None,
        timeout: float = TIMEOUT_DEFAULT,
        caller: Event | Call | Firing | None = None,
    ) -> bytes:
        """Is :meth:`invoke` for a coroutine. If its task is cancelled the call is taken back, and may have run."""
        pauses = _call_pauses(timeout)
        while True:
            future = self._begin(key, method, payload, id, pauses.left(), caller)
            await answered([future])
            try:
                return _reply(future)
            except CallError as failure:
                pause = pauses.next()
                if pause is None or not is_crowded(failure):
                    raise
            await asyncio.sleep(pause)

    def send(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        after: float | datetime.timedelta | None = None,
        at: datetime.datetime | None = None,
        name: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float = SEND_TIMEOUT,
    ) -> MessageID:
        """Publishes an event of a key, and returns its id when the broker has it. It blocks.

        The handler of the key's events gets it, with an :attr:`Event.timer` of this name: at once, ``after`` some seconds, or ``at`` a time with a
        time zone; at most 366 days from now, and at once if that has passed. It needs no producer, and no rights of the application at the broker.

        Another event with the same key and ``id``, of up to 256 bytes, counts as the same, as long as the owner of the key remembers it.
        The payload has at most 1 MiB. There may be 64 ``properties``. ``timeout`` is in seconds; an attempt that is under way then has one more.

        Raises NotSent, MaybeSent if it may have been published, and ArgumentError.
        """
        return self._sender.send(self._sending(key, payload, after, at, name, id, properties), _checked(timeout))

    async def send_async(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        after: float | datetime.timedelta | None = None,
        at: datetime.datetime | None = None,
        name: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float = SEND_TIMEOUT,
    ) -> MessageID:
        """Is :meth:`send` for a coroutine. If its task is cancelled, the event may have been published."""
        return await self._sender.send_async(self._sending(key, payload, after, at, name, id, properties), _checked(timeout))

    def _sending(
        self,
        key: bytes | str,
        payload: bytes | str,
        after: float | datetime.timedelta | None,
        at: datetime.datetime | None,
        name: str,
        id: str | None,
        properties: Mapping[str, str] | None,
    ) -> pb.SendRequest:
        return request_of(_bytes(key), payload, due(after, at), name, id, properties, _traceparent(self._settings.traces))

    def reserve(self, key: bytes | str, *, wait: float = 0.0, ttl: float = 0.0, caller: Event | Call | Firing | None = None) -> Reservation:
        """Reserves a key: no handler of it runs, and nobody else holds it, until :meth:`Reservation.release`. It blocks::

            with lane.reserve("user-7", wait=30) as r:
                store.repair("user-7", fence=r.fence.text)

        ``wait`` is how many seconds to wait for the key, up to an hour; by default it must be free. The reservation is renewed in the
        background. It is lost if the owner of the key cannot be reached for about a lease (two seconds by default), dies, or gives the key up, and
        after an hour: stop working when ``r.lost`` is set or ``r.check()`` raises KeyLost, and pass ``r.fence`` to your database with every write.

        With a ``ttl`` of 5 to 300 seconds it lasts so long from each renewal on, also if the owner of the key dies or moves: no next owner gives the
        key to anybody else before, and the reservation is lost only if no owner can be reached for so long. It begins when the control log has it.
        A key whose holder has died is free only after the ttl.

        Raises NotReserved if there is no reservation. ``caller`` is as for :meth:`invoke`.
        """
        return Reservation(_bytes(key), self._holder(key, wait, ttl, caller))

    def reserve_async(
        self, key: bytes | str, *, wait: float = 0.0, ttl: float = 0.0, caller: Event | Call | Firing | None = None
    ) -> AsyncReservation:
        """Is :meth:`reserve` for coroutines: ``async with lane.reserve_async("user-7", wait=30) as r``, or ``r = await ...``.

        If its task is cancelled meanwhile, the wait ends.
        """
        return AsyncReservation(_bytes(key), self._holder(key, wait, ttl, caller))

    def _holder(self, key: bytes | str, wait: float, ttl: float, caller: Event | Call | Firing | None) -> Any:
        """Returns what starts a holder of a key."""
        check_seconds("wait", wait)
        check_seconds("ttl", ttl)
        self._channel.check_process()
        ask = pb.ReserveRequest(ask=pb.Ask(key=_bytes(key), path=path_of(caller)))
        if ask.ByteSize() > REQUEST_MAX:
            raise NotReserved(TOO_LARGE, f"a request of {ask.ByteSize()} bytes: want at most {REQUEST_MAX}")
        return functools.partial(Holder, self._settings, self._reserve, self._channel.silent, _bytes(key), wait, ttl, path_of(caller))

    def _begin(
        self, key: bytes | str, method: str, payload: bytes | str, id: str | None, timeout: float, caller: Event | Call | Firing | None
    ) -> Any:
        """Sends a call, and returns gRPC's future of its response."""
        check_utf8(method=method, payload=payload, id=id)
        request = pb.InvokeRequest(
            key=_bytes(key),
            method=method,
            payload=payload.encode() if isinstance(payload, str) else payload,
            id=id or "",
            timeout_ms=max(1, int(timeout * 1000)),
            path=path_of(caller),
            traceparent=_traceparent(self._settings.traces),
        )
        wrong = wrong_size(request)
        if wrong:
            raise CallError("not_run", TOO_LARGE, wrong)
        try:
            metadata = self._settings.metadata()
        except SessionError as failure:
            raise CallError("not_run", text=str(failure)) from failure
        try:
            return self._invoke.future(request, timeout=timeout + GRACE, metadata=metadata)
        except ValueError as failure:  # gRPC's word for a channel that is closed
            raise CallError("not_run", text="the lane was closed") from failure


def _checked(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ArgumentError(f"timeout = {timeout!r}, want a number of seconds greater than 0")
    return timeout


def _call_pauses(timeout: float) -> Pauses:
    """Returns the pauses between the attempts of a call."""
    return Pauses(_checked(timeout), CALL_PAUSE_MAX)


def _bytes(key: bytes | str) -> bytes:
    if not isinstance(key, str):
        return key
    try:
        return key.encode(errors="surrogateescape")
    except UnicodeEncodeError as failure:
        raise ArgumentError("key: half of a surrogate pair has no UTF-8") from failure


def path_of(caller: Event | Call | Firing | None) -> list[int]:
    """Returns the keys whose handlers wait for a call that this handler makes, the outermost first."""
    if caller is None:
        return []
    event = caller if isinstance(caller, Event) else caller._event
    return [*(event._call.path if event._call is not None else ()), xxh64(event.key)]


def _reply(future: Any) -> bytes:
    """Waits for the response, and returns its reply. Raises CallError if it has none."""
    try:
        response = future.result()
    except grpc.RpcError as failure:
        raise _not_answered(failure) from failure
    except grpc.FutureCancelledError as failure:
        raise CallError("unknown", text="the lane was closed") from failure
    if response.outcome == pb.OUTCOME_REPLIED:
        return bytes(response.reply)
    raise CallError(_OUTCOMES.get(response.outcome, "unknown"), response.code, response.text, response.retry_after_ms / 1000)


def _not_answered(failure: grpc.RpcError) -> CallError:
    """Returns the error for a call that the router has not answered."""
    code, text = failure.code(), failure.details() or ""
    if code in _REFUSALS:
        return CallError("not_run", OVERLOADED if code == grpc.StatusCode.RESOURCE_EXHAUSTED else "", text or code.name)
    if was_never_sent(failure):
        return CallError("not_run", UNREACHABLE, text)
    return CallError("unknown", text=f"{code.name}: {text}" if text else code.name)


def _traceparent(wanted: bool | None) -> str:
    """Returns the trace context of the caller, empty if the application uses no OpenTelemetry."""
    if wanted is False:
        return ""
    try:
        from opentelemetry import propagate
    except ImportError:
        return ""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")
