"""One stream to a router: its frames, in their order, around an inbox."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ringfence import clock
from ringfence.app.v1 import app_pb2 as pb
from ringfence.encode import results_frame
from ringfence.errors import CallerGone, HandlerTimeout, KeyLost, VersionMismatch
from ringfence.event import Arrival, Event, Occurrence
from ringfence.inbox import NEVER, Answer, Inbox
from ringfence.options import Session
from ringfence.version import SDK

if TYPE_CHECKING:
    from ringfence.runner import Runner
    from ringfence.sending import Sender

METHOD = "/ringfence.app.v1.AppService/Work"
PROTOCOL_VERSION = 1

PING_DEFAULT = 0.2  # seconds between Pings, until the Welcome says otherwise
REASON_MAX_DEFAULT = 1 << 10  # bytes of a reason, until the Welcome says otherwise
PING_NEVER = 1e9  # seconds before any time at which a Ping was sent
RESULTS_MAX = 32_768  # in one frame
RESULT_BYTES_MAX = 1 << 20  # of the reasons and replies in one frame, about, unless one reply is larger
RESULT_BYTES = 64  # of an answer besides its reason, at most


class Stream:
    """One stream. Three threads work on it: gRPC's sender, which pulls :meth:`requests` and so decides the order of frames; the
    reader, which handles received frames in order and never waits for a handler; and the watch of the runner, which cancels handlers
    when their deadline passes.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.clock = runner.settings.clock
        self.cancel: Callable[[], Any] = lambda: None  # ends the call at once
        self.sender: Sender | None = None  # of timers, by the same connection; set before the first delivery
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

        # Guarded by the runner's lock.
        self.inbox: Inbox[pb.Delivery, Event] = Inbox()
        self.sure = NEVER  # an instant before which no handler's deadline passes
        self.silence = 0  # ticks of the watch since the newest received frame
        self.silent = False  # it was given up because of that
        self.welcomed = False
        self.session: Session | None = None
        self.going_away = False  # the router has announced the end of the stream
        self.away = 0.0  # seconds that the router wants to pass before the next stream
        self.refused = False  # the router refuses a schedule, as it would at each attempt
        self.over = False  # the call has ended
        self._signalled = False  # the sender was woken and has not looked yet
        self.quiet = False  # nothing can be sent for a handler that has ended: the sender was woken, or a Results frame is in flight
        self._given = 0  # number of the newest Deliveries frame received
        self._told = 0  # number of the newest Deliveries frame for which a receipt was sent
        self._sent = 0  # number of the newest Results frame sent
        self._receipt = 0  # number of the newest Results frame that the router has received
        self._ongoing: set[int] = set()  # deliveries whose progress is to be reported
        self._drain_due = False
        self._ping_every = PING_DEFAULT
        self._reason_max = REASON_MAX_DEFAULT

        self._window_lock = threading.Lock()  # held while the hook window runs; guards the next one
        self._window = 0  # of the last call of the hook

    # The sender.

    def requests(self) -> Iterator[bytes]:
        """Yields the frames to send, until the stream breaks, or is drained and the router has received all results."""
        settings = self.runner.settings
        hello = pb.Hello(
            worker=settings.name,
            max_in_flight=settings.max_in_flight,
            sdk=SDK,
            version_min=PROTOCOL_VERSION,
            version_max=PROTOCOL_VERSION,
            capabilities=self._capabilities(),
            schedules=[one._wire() for one in settings.schedules.values()],
        )
        yield pb.WorkRequest(hello=hello).SerializeToString()
        pinged = -PING_NEVER  # when the last Ping was sent, for timing alone: deadlines count by the lease clock
        while not self.over:
            now = time.monotonic()
            wait = pinged + self._ping_every - now
            if wait <= 0:
                late = -wait  # the next one is not later for that, so that their mean interval is right
                pinged = now - late if late < self._ping_every else now
                with self.runner.lock:
                    k = self.inbox.ping(self.clock.now())  # before it is sent: deadlines count from this instant
                yield pb.WorkRequest(ping=pb.Ping(k=k)).SerializeToString()
                continue
            frame, last = self._next()
            if settings.hooks.window is not None:
                self.tell_window()
            if frame is not None:
                yield frame
            elif last:
                return  # gRPC half-closes
            else:
                try:
                    self._wake.get(timeout=wait)
                except queue.Empty:
                    pass

    def _capabilities(self) -> list[str]:
        settings = self.runner.settings
        return ["conformant"] + ["raw_clock"] * clock.RAW + ["calls"] * bool(settings.calls) + ["state"] * bool(settings.state_max)

    def _next(self) -> tuple[bytes | None, bool]:
        """Returns the next frame if one is due, and whether there will be none any more.

        At most one Results frame is in flight without a receipt; results are collected meanwhile.
        """
        with self.runner.lock:
            self._signalled = self.quiet = False
            receipt = self._given
            inbox = self.inbox
            inbox.settle()
            if self._drain_due:
                self._drain_due = False
                drain = pb.Drain(reason="the application stops", node=self.runner.settings.leave_group)
                return pb.WorkRequest(drain=drain).SerializeToString(), False
            if self._ongoing:
                progress = pb.Progress(delivery_ids=self._ongoing)
                self._ongoing, self._told = set(), receipt
                return pb.WorkRequest(receipt=receipt, progress=progress).SerializeToString(), False
            if (inbox.done or inbox.answers) and self._receipt == self._sent:
                self._sent += 1
                number, self._told = self._sent, receipt
                done, answers = self._take_results()
            elif self._told < receipt:
                self._told = receipt
                return pb.WorkRequest(receipt=receipt).SerializeToString(), False
            else:
                self.quiet = self._receipt != self._sent and not inbox.draining
                return None, inbox.draining and not inbox.held() and not inbox.done and not inbox.answers and self._receipt == self._sent
        results = pb.Results(number=number)
        add = results.results.add
        for answer in answers:
            add(
                delivery_id=answer.delivery_id,
                kind=answer.kind,
                after_ms=answer.after_ms,
                reason=self._cut(answer.reason),
                started_ns=answer.started_ns,
                took_ns=answer.took_ns,
                reply=answer.reply,
                code=answer.code,
            )
        return results_frame(receipt, results, *done), False

    def _take_results(self) -> tuple[tuple[list[int], list[int], list[int]], list[Answer]]:
        """Removes as many results as fit into a frame: those that are DONE, with their times, and the others. The lock is held."""
        inbox = self.inbox
        done, answers = (inbox.done, inbox.starts, inbox.tooks), inbox.answers
        if len(inbox.done) + len(answers) <= RESULTS_MAX and self._fitting(answers, len(inbox.done)) >= len(answers):
            inbox.done, inbox.starts, inbox.tooks, inbox.answers = [], [], [], []
            return done, answers
        room = RESULTS_MAX - min(len(inbox.done), RESULTS_MAX)
        n = min(room, self._fitting(answers, min(len(inbox.done), RESULTS_MAX)))
        inbox.done, inbox.starts, inbox.tooks = (column[RESULTS_MAX:] for column in done)
        inbox.answers = answers[n:]
        ids, starts, tooks = (column[:RESULTS_MAX] for column in done)
        return (ids, starts, tooks), answers[:n]

    def _fitting(self, answers: list[Answer], done: int) -> int:
        """Returns how many answers fit into a frame beside so many that are only DONE: at least one if the frame has nothing else."""
        if not self.runner.settings.calls:  # then none has a reply
            return max(1, RESULT_BYTES_MAX // (RESULT_BYTES + self._reason_max))
        left = RESULT_BYTES_MAX - done * RESULT_BYTES // 2  # a DONE has half of what an answer has
        for n, answer in enumerate(answers):
            left -= RESULT_BYTES + self._reason_max + len(answer.reply)
            if left < 0 and (n or done):
                return n
        return len(answers)

    def _cut(self, reason: str) -> str:
        """Returns a reason that is UTF-8 of at most as many bytes as the router wants."""
        return reason.encode(errors="replace")[: self._reason_max].decode(errors="ignore") if reason else ""

    def tell_window(self) -> None:
        """Calls the hook if the number of unanswered events has changed. The lock is not held."""
        if self.session is None or self.runner.settings.hooks.window is None:
            return
        with self._window_lock:
            with self.runner.lock:
                held = 0 if self.over else self.inbox.held()
            if held != self._window:
                self._window = held
                self.runner.tell(self.runner.settings.hooks.window, held, self.session.in_flight_max)

    def notify(self) -> None:
        """Wakes the sender. The lock is held."""
        if not self._signalled:
            self._signalled = True
            self.quiet = not self.inbox.draining
            self._wake.put(None)

    def tell(self) -> None:
        """Wakes the sender if it may send something. The lock is held."""
        inbox = self.inbox
        if self._told != self._given or ((inbox.done or inbox.answers) and self._receipt == self._sent) or inbox.draining:
            self.notify()

    def drain(self) -> None:
        """Asks the router for no further deliveries; what waits is answered as not started. The lock is held."""
        if not self.inbox.draining:
            self.inbox.drain()
            self._drain_due = True
            self.notify()

    def end(self) -> None:
        """Records that the call has ended. The lock is held."""
        self.over = True  # first, so that handlers that still run leave no states behind
        self.runner.states.forget(self)
        self.inbox.break_off()
        self.notify()

    # The reader.

    def handle(self, data: bytes) -> None:
        """Processes one received frame. Raises VersionMismatch, ValueError, and protobuf's DecodeError."""
        response = pb.WorkResponse.FromString(data)
        kind = response.WhichOneof("frame")
        runner = self.runner
        if kind == "deliveries":
            frame = response.deliveries
            new = Event.__new__
            calls, received = bool(runner.settings.calls), time.time()

            def start(deliveries: list[pb.Delivery]) -> list[Event]:
                events: list[Event] = []
                add = events.append
                for delivery in deliveries:
                    event = new(Event)
                    event.id = delivery.delivery_id
                    event._delivery = delivery
                    event._frame = frame
                    event._stream = self
                    event._cause = None
                    if calls and delivery.HasField("call"):
                        event._call = Arrival.of(delivery.call, received)
                    if delivery.HasField("timer") and delivery.timer.HasField("firing"):  # whatever is declared: no other handler must get it
                        event._firing = Occurrence.of(delivery.timer.firing)
                    add(event)
                return events

            if not frame.number:
                raise ValueError("deliveries without a number: no receipt could tell the router that they have come")
            deliveries = list(frame.deliveries)
            with runner.lock:
                self.silence = 0
                self._take_receipt(response.receipt)
                self._given = frame.number
                self.inbox.give(deliveries, start)
                wake = runner.pool.wanted()
                self.notify()  # for the receipt
            if wake:
                runner.pool.wake()
            return
        lost: list[Event] = []
        slow: list[Event] = []
        with runner.lock:
            self.silence = 0
            self._take_receipt(response.receipt)
            if kind == "pong":
                pong = response.pong
                lost = self.inbox.pong(self.clock.now(), pong.k, pong.remaining_ns, pong.draining)
                self.sure = max(self.sure, self.inbox.sure())
                self.clock.renewed(self.inbox.newest)
            elif kind == "revoke":
                slow = self._revoke(response.revoke)
            elif kind == "suspend":
                self.inbox.suspend()
            elif kind == "resume":
                self.inbox.resume()
            elif kind == "go_away":
                self.going_away, self.away = True, response.go_away.retry_after_ms / 1000
            wake = runner.pool.wanted()
            self.tell()
            if self._receipt == self._sent and not self._signalled:  # else the sender, which waits, would not be woken for the next result
                self.quiet = False
        if wake:
            runner.pool.wake()
        if lost:
            runner.cancel(lost, KeyLost)
        if slow:
            timed_out = response.revoke.timed_out
            runner.cancel([event for event in slow if timed_out or event._call is None], HandlerTimeout)
            runner.cancel([event for event in slow if not timed_out and event._call is not None], CallerGone)
        if kind == "welcome":
            self._welcome(response.welcome)
        elif kind == "go_away":
            runner.settings.log.info("the router ends the stream: %s", response.go_away.reason)

    def _take_receipt(self, number: int) -> None:
        """Notes the router's receipt. Raises ValueError if it is for a frame that was not sent: no result would follow it. The lock is held."""
        if number > self._sent:
            raise ValueError(f"the router sent a receipt for Results frame {number}, but only {self._sent} were sent")
        self._receipt = max(self._receipt, number)

    def _revoke(self, revoke: pb.Revoke) -> list[Event]:
        """Takes deliveries back; returns those that took too long. The lock is held."""
        partitions = set(revoke.partitions)
        if revoke.all:
            self.inbox.revoke()
            self.runner.states.forget(self)
        elif partitions:
            self.inbox.revoke(partitions)
            self.runner.states.forget(self, partitions)
        ids = set(revoke.delivery_ids)
        return self.inbox.cut(ids) if ids else []

    def _welcome(self, welcome: pb.Welcome) -> None:
        if welcome.version != PROTOCOL_VERSION:
            raise VersionMismatch(f"the router chose version {welcome.version}, and this SDK speaks {PROTOCOL_VERSION}: use another release of it")
        settings, limits = self.runner.settings, welcome.limits
        session = Session(welcome.node, welcome.group, welcome.worker, min(limits.max_in_flight or settings.max_in_flight, settings.max_in_flight))
        with self.runner.lock:
            if self.welcomed:
                return
            self.welcomed, self.session = True, session
            self.inbox.timed = "intervals" in welcome.capabilities
            self._ping_every = limits.ping_interval_ms / 1000 or PING_DEFAULT
            self._reason_max = limits.reason_max_bytes or REASON_MAX_DEFAULT
            self.notify()
        settings.log.info("connected to the router: node %s, group %s, worker %s", session.node, session.group, session.worker)
        self.runner.connected(session)

    # Handlers, by the methods of their event.

    def overdue(self, event: Event) -> bool:
        """Reports whether the deadline of a running delivery has passed, and then cancels all overdue handlers.

        The lock is taken only near the deadline.
        """
        if self.clock.fast() < self.sure:
            return False
        with self.runner.lock:
            now = self.clock.now()
            if now < self.inbox.deadline(event):
                return event._cause is not None
            lost = self.inbox.check(now)
        self.runner.cancel(lost, KeyLost)
        self.runner.cancel([event], KeyLost)  # also if another thread has just found it, and has not got so far
        return True

    def holds(self, event: Event) -> bool:
        """Reports whether the key of a handler that has returned is still its own. Unlike :meth:`overdue` it cancels nothing."""
        if event._cause is not None or self.clock.fast() < self.sure:
            return event._cause is None
        with self.runner.lock:
            return event._cause is None and self.clock.now() < self.inbox.deadline(event)

    def progress(self, event: Event) -> None:
        """Queues a report of progress."""
        with self.runner.lock:
            self._ongoing.add(event.id)
            self.notify()

    def left(self, event: Event) -> int:
        """Returns how many nanoseconds of the lease are left."""
        with self.runner.lock:
            return self.inbox.deadline(event) - self.clock.now()
