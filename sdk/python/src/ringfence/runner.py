"""The state of one worker: its streams, one after the other, the watch of their deadlines, and the end."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc

from ringfence.errors import (
    Broken,
    CallerGone,
    Cancelled,
    DrainTimeout,
    Error,
    GoAway,
    HandlersStillRunning,
    HandlerTimeout,
    KeyLost,
    Refused,
    SessionError,
    Silent,
    TooManyWorkers,
    Unauthenticated,
    Unreachable,
    VersionMismatch,
)
from ringfence.event import Event, detach
from ringfence.inbox import Answer
from ringfence.options import TLS, Session, Settings
from ringfence.schedules import is_named
from ringfence.sending import Sender
from ringfence.state import States
from ringfence.stream import METHOD, Stream

CHECK_EVERY = 0.05
"""Seconds between two comparisons of the deadlines with the clock."""
SILENCE_MAX = 10.0
"""Seconds that the router may send nothing, counted in ticks of the watch, so that time asleep does not count."""
PATIENCE = 1.0
"""Seconds that the worker waits for handlers that were cancelled at the end of the drain grace, and for a router that did not answer
when the worker was told to stop."""
PAUSE_MIN, PAUSE_MAX = 0.05, 2.0
"""Seconds before the next stream: doubled from the first to the second value, less a jitter of up to half."""
AWAY_MAX = 60.0
"""Seconds: the longest pause that a router may ask for. Its settings may be wrong, and the next one at the endpoint has no part in it."""
FRAME_MAX = 72 << 20
"""Bytes: more than the largest frame of any router."""
WINDOW_BYTES = 4 << 20
"""The window of HTTP/2's flow control. A fixed one: gRPC would measure it by HTTP/2 pings, which routers count."""

_TICKS_MAX = round(SILENCE_MAX / CHECK_EVERY)

_CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", FRAME_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # a stream is not repeatable
    ("grpc.enable_http_proxy", 0),  # the router is on this machine, or reached by mutual TLS
    ("grpc.use_local_subchannel_pool", 1),  # the back-off is ours
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
]


class Pool(Protocol):
    """What runs handlers. Methods marked so are called with the runner's lock held."""

    def wanted(self) -> bool:
        """Reports whether :meth:`wake` is to be called, once the lock is released. The lock is held."""

    def wake(self) -> None:
        """Lets one more handler start, if one may."""

    def lost(self, event: Event) -> None:
        """Learns that a running handler was cancelled. The lock is held."""

    def cancel(self, event: Event) -> None:
        """Cancels a handler in the way of the language, after its cause was set."""

    def retire(self) -> None:
        """Ends the threads or tasks when their handlers have returned."""


class Runner:
    """One worker. Its lock guards the inboxes of all streams and the pool; it is held for short calls, never while a handler runs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.states = States(settings.state_max)
        self.pool: Pool
        self.lock = threading.Lock()
        self.live: Stream | None = None  # the stream whose deliveries start; None while disconnected
        self.retired = False
        self.error: Error | None = None  # set before the worker is over
        self._streams: list[Stream] = []  # the live one, and those that have running handlers
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()  # its put may be called by a signal handler
        self._stopping = threading.Event()
        self._connected = False  # whether ready was told True
        self._streaming_over = False  # no stream follows
        self._over: Callable[[], None] = lambda: None

    def start(self, over: Callable[[], None]) -> None:
        """Starts the worker; calls ``over`` in a thread of its own at the end."""
        self._over = over
        threading.Thread(target=self._connect, name="ringfence-stream", daemon=True).start()
        threading.Thread(target=self._watch, name="ringfence-watch", daemon=True).start()

    def stop(self) -> None:
        """Begins the drain, and at a second call ends the drain grace. Returns at once; may be called by a signal handler."""
        self._commands.put("stop")

    def stuck(self) -> bool:
        """Reports whether the worker has ended though handlers still run."""
        return isinstance(self.error, HandlersStillRunning)

    def stopping(self) -> bool:
        """Reports whether the worker was told to stop."""
        return self._stopping.is_set()

    # Streams.

    def _connect(self) -> None:
        """Runs one stream after the other until the worker is told to stop."""
        log = self.settings.log
        pause = PAUSE_MIN
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                stream, error = self._run_stream()
                if self._stopping.is_set():
                    self._disconnected(None)
                    return
                self._disconnected(error)
                if stream is not None and stream.refused:
                    log.error("the router at %s refuses a schedule, and the worker ends: %s", self.settings.endpoint, error)
                    self.error = error
                    return
                if stream is not None and stream.welcomed and time.monotonic() - begun >= PAUSE_MAX:
                    pause = PAUSE_MIN  # a router may end each session right after its Welcome
                delay = max(min(stream.away, AWAY_MAX) if stream is not None else 0.0, pause * random.uniform(0.5, 1))
                pause = min(2 * pause, PAUSE_MAX)
                log.warning(
                    "no stream to the router at %s: %s: %s; dialing again in %.2f s", self.settings.endpoint, type(error).__name__, error, delay
                )
                self._stopping.wait(delay)
        finally:
            self._streaming_over = True
            self._commands.put("look")

    def _run_stream(self) -> tuple[Stream | None, SessionError]:
        """Dials, works until the stream ends, and returns the reason."""
        settings = self.settings
        try:
            metadata = settings.metadata()
            channel = dial(settings, _CHANNEL_OPTIONS)
        except SessionError as failure:
            return None, failure
        except Exception as failure:  # such as an option tls whose files have no names
            return None, Unreachable(f"cannot dial: {failure!r}")
        stream = Stream(self)
        reason: SessionError | None = None
        call: Any = None
        with channel:
            stream.sender = Sender(settings, channel)
            with self.lock:
                self._streams.append(stream)
                self.live = stream
                if self._stopping.is_set():
                    stream.drain()
            try:
                work: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
                call = work(stream.requests(), metadata=metadata)
                stream.cancel = call.cancel
                for data in call:
                    stream.handle(data)
            except grpc.RpcError as failure:
                reason = _failure(stream, failure)
            except SessionError as failure:
                reason = failure
            except Exception as failure:  # a frame that cannot be decoded
                reason = Broken(f"a frame of the router: {failure!r}")
                settings.log.exception("a frame of the router cannot be handled")
            finally:
                with self.lock:
                    self.live = None
                    stream.end()
                if call is not None:
                    call.cancel()
                stream.tell_window()
        if reason is None:
            reason = Broken("the router closed the stream") if stream.welcomed else Refused("the router closed the stream")
        return stream, reason

    def connected(self, session: Session) -> None:
        """Tells the application about a session, before its first event."""
        self._connected = True
        self.tell(self.settings.hooks.connected, session)
        self.tell(self.settings.ready, True)

    def _disconnected(self, error: SessionError | None) -> None:
        self.tell(self.settings.ready, False)
        self.tell(self.settings.hooks.disconnected, error)

    def tell(self, function: Callable[..., object] | None, *values: object) -> None:
        """Calls a hook."""
        if function is not None:
            try:
                function(*values)
            except Exception:
                self.settings.log.exception("a hook failed")

    # Handlers.

    def returned(self, event: Event, answer: Answer | None) -> None:
        """Answers an event whose handler has returned, of any stream. The lock is held."""
        stream = event._stream
        assert stream is not None
        stream.inbox.end(event, answer)
        stream.tell()

    def has_lost(self, key: bytes) -> bool:
        """Reports whether a handler runs that has lost this key, on any stream: it may still write."""
        with self.lock:
            return any(event.key == key for stream in self._streams for event in stream.inbox.lost.values())

    def cancel(self, events: Iterable[Event], cause: type[Cancelled]) -> None:
        """Cancels running handlers, and logs it once all are cancelled. The first cause counts."""
        cancelled: list[Event] = []
        for event in events:
            with self.lock:
                self.states.lose(event.key)
                if event._cause is not None:
                    continue
                event._cause = cause(_TEXTS[cause])
                self.pool.lost(event)
                wake = self.pool.wanted()
            if wake:
                self.pool.wake()
            self.pool.cancel(event)
            cancelled.append(event)
        for event in cancelled:
            self.settings.log.warning("handler cancelled: message %s, attempt %d: %s", event.message_id, event.attempt, cause.__name__)

    # The watch.

    def _watch(self) -> None:
        """Cancels handlers whose deadline has passed, gives silent streams up, and ends the worker."""
        cut_at = give_up_at = stopped_at = float("inf")
        cut = False
        while True:
            try:
                command = self._commands.get(timeout=CHECK_EVERY)
            except queue.Empty:
                command = "tick"
            if command == "stop":
                now = time.monotonic()
                if not self._stopping.is_set():
                    stopped_at = now
                    self._begin_drain()
                    cut_at = now + self.settings.drain_grace
                else:
                    self.settings.log.warning("told to stop again: cancelling the running handlers")
                    cut_at = min(cut_at, now)
                give_up_at = cut_at + PATIENCE
            try:
                running = self._check(command == "tick")
            except Exception:  # deadlines must be checked, whatever happens
                self.settings.log.exception("the check of the deadlines failed")
                continue
            now = time.monotonic()
            if now >= cut_at and not cut:
                cut = True
                self._cut_all()
            live = self.live
            if live is not None and (now >= give_up_at or (now >= stopped_at + PATIENCE and not live.welcomed)):
                live.cancel()
            if self._streaming_over and (not running or now >= give_up_at):
                self._end(running)
                return

    def _check(self, tick: bool) -> int:
        """Cancels what is overdue, and returns how many handlers run."""
        running = 0
        for stream in list(self._streams):
            with self.lock:
                lost = stream.inbox.check(self.settings.clock.now())
                started = stream.inbox.started()
                held = [event for event in stream.inbox.running.values() if event._frame is not None] if tick and started else []
                if tick and not stream.over:
                    stream.silence += 1
                    stream.silent = stream.silence > _TICKS_MAX
                if stream.over and not started:
                    self._streams.remove(stream)
                running += started
            if lost:
                self.cancel(lost, KeyLost)
            if stream.silent and not stream.over:
                stream.cancel()  # the stream alone: its handlers may continue until their deadlines
            for event in held:
                try:
                    detach(event)
                except Exception:  # an index that is not in the frame: its handler fails when it reads the field
                    pass
        return running

    def _begin_drain(self) -> None:
        self.settings.log.info("stopping: running handlers have %g s to end", self.settings.drain_grace)
        with self.lock:
            self._stopping.set()
            if self.live is not None:
                self.live.drain()

    def _cut_all(self) -> None:
        with self.lock:
            inboxes = [stream.inbox for stream in self._streams]
            events = [event for inbox in inboxes for of in (inbox.running, inbox.frozen, inbox.lost) for event in of.values()]
        self.cancel(events, DrainTimeout)

    def _end(self, running: int) -> None:
        if running:
            self.error = HandlersStillRunning(f"{running} handlers are still running, though they were cancelled: let them call event.check()")
        with self.lock:
            self.retired = True
        self.pool.retire()
        self.settings.clock.ended()
        self._over()


def dial(settings: Settings, options: list[tuple[str, Any]]) -> grpc.Channel:
    """Returns a channel to the router, which connects with its first call. Raises Unreachable if a file of the option tls cannot be read."""
    if settings.tls is None:
        return grpc.insecure_channel(settings.target, options=options)
    if settings.tls.server_name:
        options = [*options, ("grpc.ssl_target_name_override", settings.tls.server_name)]
    return grpc.secure_channel(settings.target, _credentials(settings.tls), options=options)


_TEXTS = {
    KeyLost: "the lease on the key has ended: write nothing",
    CallerGone: "the caller is no longer waiting: the handler's return value is discarded",
    HandlerTimeout: "the handler took longer than the router's handler.timeout: write nothing",
    DrainTimeout: "the drain grace has ended: write nothing",
}

_STATUS = {
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.FAILED_PRECONDITION: VersionMismatch,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooManyWorkers,
}


def _failure(stream: Stream, failure: grpc.RpcError) -> SessionError:
    """Returns the reason for the end of a stream."""
    code, details = failure.code(), failure.details()
    text = f"{code.name}: {details}" if details else code.name
    if stream.silent:
        return Silent(f"the router has been silent for {SILENCE_MAX:g} s; it, its machine or the network may be down")
    if stream.going_away:
        return GoAway(text)
    if stream.welcomed:
        return Broken(text)
    stream.refused = code == grpc.StatusCode.INVALID_ARGUMENT and is_named(stream.runner.settings.schedules, text)
    return _STATUS.get(code, Refused)(text)


def _credentials(tls: TLS) -> grpc.ChannelCredentials:
    try:
        contents = []
        for path in (tls.ca_file, tls.key_file, tls.cert_file):
            with open(path, "rb") as file:
                contents.append(file.read())
    except OSError as error:
        raise Unreachable(f"cannot read a file of the option tls: {error}") from error
    return grpc.ssl_channel_credentials(*contents)
