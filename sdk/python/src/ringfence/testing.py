"""A router in memory, which tests a handler through the real SDK and a real stream, without a router process or a broker::

    def test_handler(ringfence_router):
        ringfence_router.start(handle)
        delivery = ringfence_router.deliver("user-7", b"hello")
        assert delivery.outcome().kind == "done"

Events of one key are given to the handler one at a time, in the order of :meth:`Router.deliver`; different keys run concurrently. The
router retries nothing: it records the outcome, and :meth:`Delivery.redeliver` makes the next attempt. :meth:`Router.lose` moves a key to
another machine while its handler runs, :meth:`Router.expire` lets the lease run out, and :meth:`Router.disconnect` breaks the streams.
With ``handler_timeout`` handlers that take too long are cancelled. Leases last for an hour of the router's own clock, which lose and
expire move forward, so a slow test machine cancels nothing by accident.

What handlers set as timers, and what a lane sends, comes back when the test says so: :attr:`Router.sent` records it, and :meth:`Sent.deliver` is
when it is due. Schedules fire when the test says so, too: :meth:`Router.fire`.

With pytest the fixture ``ringfence_router`` is a router for one test. Elsewhere use ``with Router() as router:``. All methods may be
called from any thread; those that wait block, also in a test that is a coroutine, while an asyncio handler runs in a loop of its own.
"""

from __future__ import annotations

import asyncio
import collections
import datetime
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from ringfence.app.v1 import app_pb2 as pb
from ringfence.call import NO_HANDLER, TIMEOUT_DEFAULT
from ringfence.clock import LeaseClock
from ringfence.errors import ArgumentError
from ringfence.event import _EPOCH, Arrival, Event, Fence, MessageID, Occurrence, Timer, _Set
from ringfence.handlers import Handler
from ringfence.lane.v1 import lane_pb2 as lane
from ringfence.runner import FRAME_MAX
from ringfence.schedules import key_of
from ringfence.worker import Worker
from ringfence.xxh64 import xxh64

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ringfence.options import Options

LEASE_NS = 3600 * 1_000_000_000
"""The time between the router's clock and the end of its lease, in nanoseconds."""
OUTCOME_WAIT = 30.0
"""Seconds for which outcome and the router's other methods wait by default."""
PING_INTERVAL_MS = 20
PARTITIONS = 4093
STREAMS_MAX = 32
_SENT_LEDGER, _CALL_LEDGER = 1 << 61, 1 << 62  # of the ids that routers make themselves
_METHOD = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY_MAX, _CALL_ID_MAX, _SEND_ID_MAX, _PROPERTY_MAX = 4096, 128, 256, 4096  # bytes that routers take
_PATH_MAX, _PROPERTIES_MAX, _TIMEOUT_MS_MAX = 8, 64, 600_000

_KINDS = {
    pb.RESULT_KIND_UNSPECIFIED: "retry",
    pb.RESULT_KIND_DONE: "done",
    pb.RESULT_KIND_RETRY: "retry",
    pb.RESULT_KIND_REJECT: "reject",
    pb.RESULT_KIND_NOT_STARTED: "not_started",
    pb.RESULT_KIND_CANCELLED: "cancelled",
}


class Outcome(NamedTuple):
    """The router's record of the end of a delivery."""

    kind: str
    """done; retry: the handler failed; reject; cancelled: the handler was cancelled because the key was lost, or the worker stopped;
    timed_out: it was cancelled because of handler_timeout; not_started: the handler was not called; lost: the stream broke, and the
    lease ran out without an answer."""
    after: float = 0.0
    """retry: the delay in seconds that the handler asked for, 0 for none."""
    reason: str = ""
    """retry and reject: the text of the exception."""
    reply: bytes = b""
    """done, of a call: the reply."""
    code: str = ""
    """retry and reject, of a call: the code of the failure. not_started: no_handler if the worker has no handler of the method."""


class Delivery:
    """One delivery of an event to the handler, with its outcome."""

    def __init__(self, router: Router, event: Event, attempt: int) -> None:
        self._router = router
        self._event = event
        self._attempt = attempt
        self._over = threading.Event()
        self._outcome: Outcome | None = None
        # Guarded by the router's lock.
        self._stream: _Stream | None = None
        self._id = 0
        self._timed_out = False
        self._began = 0.0

    @property
    def over(self) -> bool:
        """Whether the delivery has ended."""
        return self._over.is_set()

    def outcome(self, timeout: float = OUTCOME_WAIT) -> Outcome:
        """Waits for the end of the delivery and returns its outcome. Raises TimeoutError after ``timeout`` seconds."""
        if not self._over.wait(timeout):
            raise TimeoutError(f"no outcome after {timeout:g} s: does a worker run, and does its handler end?")
        assert self._outcome is not None
        return self._outcome

    async def wait_outcome(self, timeout: float = OUTCOME_WAIT) -> Outcome:
        """Is :meth:`outcome` for a coroutine: it does not block the event loop."""
        return await asyncio.to_thread(self.outcome, timeout)

    def give_up(self) -> None:
        """Takes a call back, as when its caller is no longer waiting: its handler is cancelled with CallerGone, if it runs."""
        self._router._give_up(self)

    def redeliver(self) -> Delivery:
        """Gives the same event to the handler again, as a router would, once this delivery has ended.

        It has a greater fence, unless the test chose one, and the next attempt if the handler failed.
        """
        failed = self.outcome().kind in ("retry", "timed_out")
        return self._router._add(Delivery(self._router, self._event, self._attempt + failed))

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._over.set()


class Sent:
    """One event that the router was to publish: a timer of a handler, or what :meth:`ringfence.Lane.send` sent."""

    def __init__(self, router: Router, request: lane.SendRequest, message_id: MessageID) -> None:
        self._router = router
        self.key: bytes = request.key
        """The key."""
        self.payload: bytes = request.payload
        """The payload."""
        self.name: str = request.name
        """The name of the timer."""
        self.id: str = request.id
        """The sender's id of the event: a second one with the same key and id is not recorded."""
        self.properties: dict[str, str] = dict(request.properties)
        """The properties."""
        self.message_id: MessageID = message_id
        """The id that the sender was told."""
        self.after: float = request.after_ms / 1000
        """Seconds after which it is due."""
        now = datetime.datetime.now(datetime.timezone.utc)
        self.due: datetime.datetime = (
            _EPOCH + datetime.timedelta(milliseconds=request.at_ms) if request.at_ms else now + datetime.timedelta(seconds=self.after)
        )
        """When it is due, in UTC."""

    def __repr__(self) -> str:  # without key and payload
        return f"<Sent {self.name!r} due {self.due}>"

    def deliver(self) -> Delivery:
        """Gives the event to the handler, as when it is due, and returns its delivery."""
        timer = Timer(self.name, self.due)
        return self._router.deliver(self.key, self.payload, properties=self.properties, message_id=self.message_id, timer=timer)


class _Box:
    """One key with deliveries."""

    def __init__(self, key: bytes, partition: int) -> None:
        self.key, self.partition = key, partition
        self.token = 1
        self.queue: collections.deque[Delivery] = collections.deque()
        self.running: Delivery | None = None
        self.stream: _Stream | None = None  # that of the last turn; None: another router may have had a turn since
        self.generation = 0  # counts its changes

    def given_to(self, stream: _Stream) -> None:
        """Begins a turn of the key."""
        if self.stream is not stream:
            self.stream = stream
            self.generation += 1


class _Clock(LeaseClock):
    """The router's clock, as the lease clock of one worker."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.deadline = 0  # guarded by the router's lock

    def now(self) -> int:
        return self._router._now()

    def ticks(self) -> int:
        return self._router._now()

    def renewed(self, until: int) -> None:
        with self._router._changed:
            self.deadline = until
            self._router._clocks.add(self)
            self._router._changed.notify_all()

    def ended(self) -> None:
        with self._router._changed:
            self._router._clocks.discard(self)
            self._router._changed.notify_all()


class _Stream:
    """The router's side of one stream."""

    def __init__(self, router: Router, cancel: Callable[[], object]) -> None:
        self.router, self.cancel = router, cancel
        self.out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Guarded by the router's lock.
        self.window = 0  # 0: no Hello yet
        self.number = 0
        self.deliveries: dict[int, Delivery] = {}
        self.draining = self.over = self.calls = self.state = False

    def send(self, response: pb.WorkResponse) -> None:
        self.out.put(response.SerializeToString())

    def handle(self, request: pb.WorkRequest) -> None:
        """Processes one frame of the worker. The router's lock is held."""
        kind = request.WhichOneof("frame")
        router = self.router
        if kind == "hello":
            self.window = request.hello.max_in_flight
            self.calls, self.state = ("calls" in request.hello.capabilities), ("state" in request.hello.capabilities)
            limits = pb.Limits(max_in_flight=self.window, frame_max_bytes=FRAME_MAX, ping_interval_ms=PING_INTERVAL_MS, reason_max_bytes=1 << 10)
            welcome = pb.Welcome(node="testing", group="testing", worker=request.hello.worker or "worker", version=1, limits=limits)
            self.send(pb.WorkResponse(welcome=welcome))
        elif kind == "ping":
            remaining = router._until - router._at()
            self.send(pb.WorkResponse(pong=pb.Pong(k=request.ping.k, remaining_ns=remaining)))
            if request.ping.k == 1:
                router._connected += 1
                router._changed.notify_all()
        elif kind == "results":
            for result in request.results.results:
                router._finish(self, result)
            self.send(pb.WorkResponse(receipt=request.results.number))
        elif kind == "progress":
            for delivery_id in request.progress.delivery_ids:
                delivery = self.deliveries.get(delivery_id)
                if delivery is not None:
                    delivery._began = time.monotonic()
        elif kind == "drain":
            self.draining = True
        router._dispatch()


class Router:
    """A router in memory, for one test. See the documentation of the module."""

    def __init__(self, *, handler_timeout: float | None = None) -> None:
        """Makes a router. ``handler_timeout`` is in seconds of real time; None: handlers may take any time."""
        self._timeout = handler_timeout
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._begun = time.monotonic_ns()
        self._ahead = 0  # how far our clock is ahead of the real one
        self._until = LEASE_NS  # end of the lease
        self._clocks: set[_Clock] = set()
        self._connected = 0
        self._workers: list[Worker] = []
        self._streams: list[_Stream] = []
        self._boxes: dict[bytes, _Box] = {}
        self._orphans: list[tuple[_Box, Delivery]] = []  # deliveries whose stream broke: their keys wait for the lease
        self._sent: list[Sent] = []
        self._last = 0  # counts deliveries, and is the turn of the newest one
        self._closed = threading.Event()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(STREAMS_MAX, "ringfence-testing"),
            options=[("grpc.max_receive_message_length", FRAME_MAX), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)],
        )
        work: grpc.RpcMethodHandler[pb.WorkRequest, bytes] = grpc.stream_stream_rpc_method_handler(self._work, pb.WorkRequest.FromString, None)
        invoke: grpc.RpcMethodHandler[lane.InvokeRequest, lane.InvokeResponse] = grpc.unary_unary_rpc_method_handler(
            self._invoke, lane.InvokeRequest.FromString, lane.InvokeResponse.SerializeToString
        )
        send: grpc.RpcMethodHandler[lane.SendRequest, lane.SendResponse] = grpc.unary_unary_rpc_method_handler(
            self._send, lane.SendRequest.FromString, lane.SendResponse.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler("ringfence.app.v1.AppService", {"Work": work}),
                grpc.method_handlers_generic_handler("ringfence.lane.v1.LaneService", {"Invoke": invoke, "Send": send}),
            ]
        )
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._watch: threading.Thread | None = None
        if handler_timeout is not None:
            if handler_timeout <= 0:
                raise ValueError(f"handler_timeout = {handler_timeout}, want more than 0")
            self._watch = threading.Thread(target=self._time_out, name="ringfence-testing-timeout", daemon=True)
            self._watch.start()

    @property
    def endpoint(self) -> str:
        """The address of the router, for a worker that the test starts by itself. Such a worker does not know the router's clock, so
        lose and expire do not reach its handlers."""
        return f"127.0.0.1:{self._port}"

    def start(self, handler: Handler, **options: Unpack[Options]) -> Worker:
        """Runs a handler in the background until the test ends, and returns when its stream is established.

        The options are those of :func:`ringfence.run`. Raises what that raises, and TimeoutError if there is no stream.
        """
        worker = Worker.__new__(Worker)
        worker._init(handler, self.endpoint, dict(options), _Clock(self))
        with self._changed:
            want = self._connected + 1
            self._workers.append(worker)
        worker.start()
        self._wait(lambda: self._connected >= want, "the worker did not connect")
        return worker

    def deliver(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        properties: Mapping[str, str] | None = None,
        topic: str = "persistent://public/default/testing",
        message_id: MessageID | None = None,
        publish_time: datetime.datetime | None = None,
        event_time: datetime.datetime | None = None,
        attempt: int = 1,
        redelivery: int = 0,
        schema_version: bytes | None = None,
        fence: Fence = Fence(0, 0),
        timer: Timer | None = None,
    ) -> Delivery:
        """Queues an event for the handler. What is not given the router chooses: each event has another message_id, and each delivery
        of a key a greater fence than the one before."""
        with self._lock:
            self._last += 1
            message_id = message_id or MessageID(1, self._last)
        event = Event(
            key,
            payload,
            properties=properties,
            topic=topic,
            message_id=message_id,
            publish_time=publish_time or datetime.datetime.now(datetime.timezone.utc),
            event_time=event_time,
            redelivery=redelivery,
            schema_version=schema_version,
            fence=fence,
            timer=timer,
        )
        return self._add(Delivery(self, event, attempt))

    def call(
        self, key: bytes | str, method: str, payload: bytes | str = b"", *, id: str = "", timeout: float = TIMEOUT_DEFAULT, path: tuple[int, ...] = ()
    ) -> Delivery:
        """Queues a call for the handler of its method, behind what waits for the key already. The reply is in its outcome.

        :class:`ringfence.Lane` with :attr:`endpoint` calls through the real protocol instead. Nobody waits here: :meth:`Delivery.give_up` is
        what a caller does when ``timeout`` is over.
        """
        with self._lock:
            self._last += 1
            event = Event(key, payload, message_id=MessageID(_CALL_LEDGER, self._last))
        event._call = Arrival(method, id, timeout, path)
        return self._add(Delivery(self, event, 1))

    def fire(
        self, schedule: str, *, time: datetime.datetime | None = None, missed: int = 0, attempt: int = 1, fence: Fence = Fence(0, 0)
    ) -> Delivery:
        """Queues a firing for the handler of its schedule, and returns its delivery. ``time`` is the time that it is for, by default now.

        The times of the schedule do not matter: nothing fires by itself. One that the worker does not declare has the outcome retry.
        """
        with self._lock:
            self._last += 1
            message_id = MessageID(_SENT_LEDGER, self._last)
        if time is None:
            time = datetime.datetime.now(datetime.timezone.utc)
        event = Event(key_of(schedule), message_id=message_id, fence=fence, timer=Timer(schedule, time))
        event._firing = Occurrence(time, missed)
        return self._add(Delivery(self, event, attempt))

    @property
    def sent(self) -> list[Sent]:
        """What the router was to publish, in the order of its coming: timers of handlers that have ended well, and what lanes have sent."""
        with self._lock:
            return list(self._sent)

    def lose(self, key: bytes | str) -> None:
        """Moves a key away: its waiting deliveries are not started, and its running handler is cancelled with KeyLost.

        Other keys are not affected. When it returns, the router's clock is past the handler's deadline, and the handler is cancelled
        within 50 ms. Later deliveries have a fence with a higher token.
        """
        with self._changed:
            box = self._box(key.encode(errors="surrogateescape") if isinstance(key, str) else key)
            box.token += 1
            for delivery in box.queue:
                delivery._end(Outcome("not_started"))
            box.queue.clear()
            for stream in self._streams:
                stream.send(pb.WorkResponse(revoke=pb.Revoke(partitions=[box.partition], reason="the key moves")))
            # The running handler may continue until the end of the present lease. Renew it for the other keys, and when all workers
            # know, move the clock past the old end.
            old = self._until
            self._until = old + LEASE_NS
            self._wait(lambda: not self._streams or all(clock.deadline > old for clock in self._clocks), "the workers did not renew their lease")
            self._ahead += max(old - self._at(), 0)

    def expire(self) -> None:
        """Lets the lease run out, as when a router has lost its broker: every running handler is cancelled with KeyLost.

        Then there is a new lease. Deliveries whose stream broke before have the outcome lost.
        """
        with self._lock:
            self._ahead += max(self._until - self._at(), 0)
            self._until += LEASE_NS
            for box in self._boxes.values():
                box.stream = None
            for box, delivery in self._orphans:
                box.running = None
                delivery._end(Outcome("lost"))
            self._orphans.clear()
            self._dispatch()

    def suspend(self) -> None:
        """Lets nothing start until :meth:`resume`; running handlers continue."""
        self._send_all(pb.WorkResponse(suspend=pb.Suspend(reason="the test")))

    def resume(self) -> None:
        """Ends a :meth:`suspend`."""
        self._send_all(pb.WorkResponse(resume=pb.Resume()))

    def disconnect(self) -> None:
        """Breaks the streams of all workers, which reconnect by themselves.

        Their running deliveries have the outcome lost after the next :meth:`expire`; until then their keys wait.
        """
        with self._changed:
            streams = list(self._streams)
            for stream in streams:
                self._break_off(stream)
        for stream in streams:
            stream.cancel()

    def close(self) -> None:
        """Stops the workers and the router. Raises HandlersStillRunning if handlers do not end when they are cancelled."""
        self._closed.set()
        try:
            for worker in self._workers:
                worker.stop()
            for worker in self._workers:
                worker.join()
        finally:
            self._server.stop(None).wait()
            if self._watch is not None:
                self._watch.join()

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The clock.

    def _at(self) -> int:
        return time.monotonic_ns() - self._begun + self._ahead

    def _now(self) -> int:
        return self._at()  # without the lock: one reading of _ahead, which only grows

    def _wait(self, condition: Callable[[], bool], failure: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, OUTCOME_WAIT):
                raise TimeoutError(f"{failure} within {OUTCOME_WAIT:g} s")

    # Mailboxes.

    def _box(self, key: bytes) -> _Box:
        if key not in self._boxes:
            self._boxes[key] = _Box(key, len(self._boxes) % PARTITIONS)
        return self._boxes[key]

    def _add(self, delivery: Delivery) -> Delivery:
        with self._lock:
            self._box(delivery._event.key).queue.append(delivery)
            self._dispatch()
        return delivery

    def _dispatch(self) -> None:
        """Sends what may be sent. The lock is held."""
        for stream in self._streams:
            if stream.window == 0 or stream.draining:
                continue
            frame: list[pb.Delivery] = []
            tokens: list[int] = []
            topics: list[str] = []
            names: list[str] = []
            schemas: list[bytes] = []
            for box in self._boxes.values():
                while box.running is None and box.queue and box.queue[0]._event._call is not None and not stream.calls:
                    box.queue.popleft()._end(Outcome("not_started", reason="the worker takes no calls", code=NO_HANDLER))
                if box.running is None and box.queue and len(stream.deliveries) < stream.window:
                    delivery = box.queue.popleft()
                    self._last += 1
                    delivery._id, delivery._stream, delivery._began = self._last, stream, time.monotonic()
                    box.running = stream.deliveries[self._last] = delivery
                    box.given_to(stream)
                    frame.append(self._wire(delivery, box, tokens, topics, names, schemas))
            if frame:
                stream.number += 1
                deliveries = pb.Deliveries(number=stream.number, deliveries=frame, tokens=tokens, topics=topics, names=names, schema_versions=schemas)
                stream.send(pb.WorkResponse(deliveries=deliveries))

    def _wire(self, delivery: Delivery, box: _Box, tokens: list[int], topics: list[str], names: list[str], schemas: list[bytes]) -> pb.Delivery:
        event = delivery._event
        properties = []
        for name, value in event.properties.items():
            properties.append(pb.Property(name=_index(names, name), value=value))
        milliseconds = datetime.timedelta(milliseconds=1)
        epoch = _EPOCH
        return pb.Delivery(
            delivery_id=delivery._id,
            partition=box.partition,
            key=event.key,
            payload=event.payload,
            properties=properties,
            ledger_id=event.message_id.ledger,
            entry_id=event.message_id.entry,
            batch_index=event.message_id.batch,
            topic_partition=event.message_id.topic_partition,
            topic=_index(topics, event.topic),
            token=_index(tokens, event.fence.token or box.token),
            turn=event.fence.turn or self._last,
            publish_time_ms=(event.publish_time - epoch) // milliseconds,
            event_time_ms=(event.event_time - epoch) // milliseconds if event.event_time else 0,
            attempt=delivery._attempt,
            redelivery_count=event.redelivery,
            schema_version=0 if event.schema_version is None else _index(schemas, event.schema_version) + 1,
            call=_call(event._call),
            timer=_timer(event),
            generation=box.generation if box.stream is not None and box.stream.state else 0,
        )

    def _finish(self, stream: _Stream, result: pb.Result) -> None:
        """Takes a result in. The lock is held."""
        delivery = stream.deliveries.pop(result.delivery_id, None)
        if delivery is None:
            return
        self._box(delivery._event.key).running = None
        kind = _KINDS.get(result.kind, "retry")
        if kind == "cancelled" and delivery._timed_out:
            kind = "timed_out"
        delivery._end(Outcome(kind, result.after_ms / 1000, result.reason, result.reply, result.code))

    def _give_up(self, delivery: Delivery) -> None:
        with self._lock:
            box = self._box(delivery._event.key)
            if delivery in box.queue:
                box.queue.remove(delivery)
                delivery._end(Outcome("not_started"))
            elif delivery._stream is not None and not delivery.over:
                revoke = pb.Revoke(delivery_ids=[delivery._id], reason="the caller is no longer waiting")
                delivery._stream.send(pb.WorkResponse(revoke=revoke))

    def _break_off(self, stream: _Stream) -> None:
        """Records the end of a stream. The lock is held."""
        if stream.over:
            return
        stream.over = True
        if stream in self._streams:
            self._streams.remove(stream)
        self._orphans += [(self._box(delivery._event.key), delivery) for delivery in stream.deliveries.values()]
        stream.deliveries.clear()
        stream.out.put(None)
        self._changed.notify_all()

    def _time_out(self) -> None:
        """Cancels handlers that take too long."""
        assert self._timeout is not None
        while not self._closed.wait(self._timeout / 4):
            with self._lock:
                for stream in self._streams:
                    late = [
                        delivery
                        for delivery in stream.deliveries.values()
                        if not delivery._timed_out and time.monotonic() - delivery._began > self._timeout
                    ]
                    for delivery in late:
                        delivery._timed_out = True
                    if late:
                        revoke = pb.Revoke(delivery_ids=[delivery._id for delivery in late], timed_out=True, reason="handler.timeout")
                        stream.send(pb.WorkResponse(revoke=revoke))

    # Calls of a Lane.

    def _invoke(self, request: lane.InvokeRequest, context: grpc.ServicerContext) -> lane.InvokeResponse:
        """Answers one call, as a router does."""
        wrong = _wrong_call(request)
        if wrong:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        with self._lock:
            box = self._box(request.key)
            if box.running is not None and xxh64(request.key) in request.path:
                return lane.InvokeResponse(outcome=lane.OUTCOME_NOT_RUN, code="cycle", text="a handler of the same key waits for it")
        timeout = request.timeout_ms / 1000 or TIMEOUT_DEFAULT
        delivery = self.call(request.key, request.method, request.payload, id=request.id, timeout=timeout, path=tuple(request.path))
        if not context.add_callback(delivery.give_up):  # called when the caller goes away; it has gone already
            delivery.give_up()
        if not delivery._over.wait(timeout):
            delivery.give_up()
            if not delivery.over:
                return lane.InvokeResponse(outcome=lane.OUTCOME_UNKNOWN, text="its time was up while its handler ran")
        outcome = delivery.outcome()
        if outcome.kind == "done":
            return lane.InvokeResponse(outcome=lane.OUTCOME_REPLIED, reply=outcome.reply)
        if outcome.kind in ("retry", "reject"):
            return lane.InvokeResponse(outcome=lane.OUTCOME_FAILED, code=outcome.code, text=outcome.reason)
        if outcome.kind == "not_started":
            return lane.InvokeResponse(outcome=lane.OUTCOME_NOT_RUN, code=outcome.code or "timeout", text=outcome.reason)
        return lane.InvokeResponse(outcome=lane.OUTCOME_UNKNOWN, text=f"its handler was {outcome.kind}")

    def _send(self, request: lane.SendRequest, context: grpc.ServicerContext) -> lane.SendResponse:
        """Records an event, as a router publishes it."""
        try:
            wrong = _wrong_send(request)
            if wrong:
                raise ArgumentError(wrong)
            _Set.of(request.after_ms / 1000, request.name, request.payload)
        except ArgumentError as failure:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(failure))
        with self._lock:
            same = [sent for sent in self._sent if request.id and (sent.key, sent.id) == (request.key, request.id)]
            if not same:
                self._last += 1
                same = [Sent(self, request, MessageID(_SENT_LEDGER, self._last))]
                self._sent += same
            return lane.SendResponse(message_id=str(same[0].message_id), due_ms=(same[0].due - _EPOCH) // datetime.timedelta(milliseconds=1))

    # Streams.

    def _send_all(self, response: pb.WorkResponse) -> None:
        with self._lock:
            for stream in self._streams:
                stream.send(response)

    def _work(self, requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = _Stream(self, context.cancel)
        with self._lock:
            self._streams.append(stream)

        def read() -> None:
            try:
                for request in _until_broken(requests):
                    with self._changed:
                        if not stream.over:
                            stream.handle(request)
            finally:
                with self._changed:
                    self._break_off(stream)

        threading.Thread(target=read, name="ringfence-testing-read", daemon=True).start()
        return iter(stream.out.get, None)


def _until_broken(requests: Iterator[pb.WorkRequest]) -> Iterator[pb.WorkRequest]:
    """Yields the frames of a worker until the stream ends in any way."""
    while True:
        try:
            request = next(requests)
        except (StopIteration, grpc.RpcError):
            return
        yield request


def _call(arrival: Arrival | None) -> pb.Call | None:
    """Returns the wire's form. The deadline of a call of this router is its timeout, since only its worker counts from now on."""
    if arrival is None:
        return None
    return pb.Call(method=arrival.method, timeout_ms=int(arrival.deadline * 1000), id=arrival.id, path=arrival.path)


def _timer(event: Event) -> pb.Timer | None:
    """Returns the wire's form of a timer or a firing."""
    if event.timer is None:
        return None
    millisecond, of = datetime.timedelta(milliseconds=1), event._firing
    firing = None if of is None else pb.Firing(time_ms=(of.time - _EPOCH) // millisecond, missed=of.missed)
    return pb.Timer(name=event.timer.name, due_ms=(event.timer.due - _EPOCH) // millisecond, firing=firing)


def _index(values: list[Any], value: object) -> int:
    if value not in values:
        values.append(value)
    return values.index(value)


def _wrong_key(key: bytes) -> str:
    return "" if 0 < len(key) <= _KEY_MAX else f"a key of {len(key)} bytes: want 1 to {_KEY_MAX}"


def _wrong_call(request: lane.InvokeRequest) -> str:
    """Returns why routers refuse a call, empty if they take it."""
    if not _METHOD.fullmatch(request.method):
        return f"method {request.method!r:.80}: want 1 to 64 bytes of A-Z, a-z, 0-9, '.', '_' and '-'"
    if len(request.id.encode()) > _CALL_ID_MAX:
        return f"an id of {len(request.id.encode())} bytes: want at most {_CALL_ID_MAX}"
    if len(request.path) > _PATH_MAX:
        return f"a call behind {len(request.path)} others: want at most {_PATH_MAX}"
    if request.timeout_ms > _TIMEOUT_MS_MAX:
        return f"a timeout of {request.timeout_ms} ms: want at most {_TIMEOUT_MS_MAX}"
    return _wrong_key(request.key)


def _wrong_send(request: lane.SendRequest) -> str:
    """Returns why routers refuse an event, empty if they take it. Its name, its payload and its delay are checked as those of a timer.

    Its time is not, since a test may have a fixed one.
    """
    if request.after_ms and request.at_ms:
        return "after and at are both set: want one of them"
    if len(request.id.encode()) > _SEND_ID_MAX:
        return f"an id of {len(request.id.encode())} bytes: want at most {_SEND_ID_MAX}"
    if len(request.properties) - ("traceparent" in request.properties) > _PROPERTIES_MAX:  # SDKs add that, and not the sender
        return f"{len(request.properties)} properties: want at most {_PROPERTIES_MAX}"
    for name, value in request.properties.items():
        if not name or len(name.encode()) + len(value.encode()) > _PROPERTY_MAX:
            return f"property {name!r:.80}: want a name, and at most {_PROPERTY_MAX} bytes with the value"
        if name.lower().startswith("ringfence-"):
            return f"property {name!r:.80}: names that begin with ringfence- are the router's"
    return _wrong_key(request.key)
