"""Workers against the router in memory, with handlers of both styles."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import ringfence
from ringfence import Event, Fence, HandlersStillRunning, MessageID, Reject, RetryAfter
from ringfence.testing import Outcome, Router

WAIT = 30.0

Body = Callable[[Event], Any]


class Gate:
    """Lets a handler of either style wait until the test opens it."""

    def __init__(self) -> None:
        self.started: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def wait_started(self) -> Event:
        return self.started.get(timeout=WAIT)

    def plain(self, event: Event) -> None:
        self.started.put(event)
        while not self._open.wait(0.005):
            event.check()

    async def task(self, event: Event) -> None:
        self.started.put(event)
        while not self._open.is_set():
            await asyncio.sleep(0.005)

    def stubborn(self, event: Event) -> None:
        self.started.put(event)
        self._open.wait(WAIT)

    async def stubborn_task(self, event: Event) -> None:
        self.started.put(event)
        while not self._open.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(params=["threads", "async"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def styled(style: str, body: Body) -> ringfence.Handler:
    """A handler of one style that does what a plain function does."""
    if style == "threads":
        return body

    async def handle(event: Event) -> None:
        body(event)

    return handle


def waiting(style: str, gate: Gate) -> ringfence.Handler:
    return gate.plain if style == "threads" else gate.task


def ignoring(style: str, gate: Gate) -> ringfence.Handler:
    return gate.stubborn if style == "threads" else gate.stubborn_task


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.002)


def fail(error: BaseException) -> Body:
    def body(event: Event) -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(lambda event: None, Outcome("done"), id="done"),
        pytest.param(fail(ValueError("no database")), Outcome("retry", 0, "ValueError: no database"), id="an exception"),
        pytest.param(fail(RetryAfter(90, "busy")), Outcome("retry", 90, "busy"), id="its own delay"),
        pytest.param(fail(Reject("not JSON")), Outcome("reject", 0, "not JSON"), id="reject"),
        pytest.param(fail(SystemExit("exit")), Outcome("retry", 0, "SystemExit: exit"), id="an attempt to exit"),
        pytest.param(fail(GeneratorExit("closed")), Outcome("retry", 0, "GeneratorExit: closed"), id="the end of a generator"),
        pytest.param(fail(ValueError("é" * 2000)), Outcome("retry", 0, "ValueError: " + "é" * 506), id="a long reason"),
        pytest.param(fail(ValueError("\udcff")), Outcome("retry", 0, "ValueError: ?"), id="a reason that is not UTF-8"),
    ],
)
def test_outcomes(ringfence_router: Router, style: str, body: Body, want: Outcome) -> None:
    ringfence_router.start(styled(style, body))
    delivery = ringfence_router.deliver("k")
    assert delivery.outcome() == want
    assert delivery.redeliver().outcome() == want


def test_the_event_reaches_the_handler(ringfence_router: Router, style: str) -> None:
    seen: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ringfence_router.start(styled(style, seen.put))
    ringfence_router.deliver(
        b"\xff",
        b"payload",
        properties={"a": "1", "b": "2"},
        message_id=MessageID(1, 2, 3, 4),
        attempt=3,
        redelivery=2,
        schema_version=b"v",
        fence=Fence(1 << 40, 1 << 50),
    ).outcome()
    event = seen.get(timeout=WAIT)
    assert (event.key, event.payload, event.properties, event.message_id) == (b"\xff", b"payload", {"a": "1", "b": "2"}, MessageID(1, 2, 3, 4))
    assert (event.attempt, event.redelivery, event.schema_version, event.fence) == (3, 2, b"v", Fence(1 << 40, 1 << 50))


def test_fences_grow(ringfence_router: Router, style: str) -> None:
    fences: list[Fence] = []

    def body(event: Event) -> None:
        fences.append(event.fence)
        raise ValueError("again")

    ringfence_router.start(styled(style, body))
    delivery = ringfence_router.deliver("k")
    delivery.redeliver().outcome()
    ringfence_router.lose("k")
    delivery.redeliver().outcome()
    ringfence_router.deliver("k").outcome()
    assert fences == sorted(set(fences))
    assert len(fences) == 4
    assert fences[0].token > 0
    assert fences[0].turn > 0


def test_a_key_is_handled_one_at_a_time_and_keys_at_once(ringfence_router: Router, style: str, gate: Gate) -> None:
    ringfence_router.start(waiting(style, gate))
    deliveries = [ringfence_router.deliver(key) for key in ("a", "a", "b", "c")]
    assert sorted(gate.wait_started().key for _ in range(3)) == [b"a", b"b", b"c"]
    assert gate.started.empty()
    gate.open()
    assert [delivery.outcome().kind for delivery in deliveries] == ["done"] * 4


@pytest.mark.parametrize("count", [1, 50, 1000])
def test_many_wait_at_once(ringfence_router: Router, gate: Gate, count: int) -> None:
    ringfence_router.start(gate.task)
    deliveries = [ringfence_router.deliver(f"k{i}") for i in range(count)]
    for _ in range(count):
        gate.wait_started()
    gate.open()
    assert {delivery.outcome().kind for delivery in deliveries} == {"done"}


def test_a_lost_key_cancels_its_handler_alone(ringfence_router: Router, style: str, gate: Gate) -> None:
    ringfence_router.start(waiting(style, gate))
    lost, kept = ringfence_router.deliver("lost"), ringfence_router.deliver("kept")
    events = {event.key: event for event in (gate.wait_started(), gate.wait_started())}
    ringfence_router.lose("lost")
    assert lost.outcome() == Outcome("cancelled")
    assert isinstance(events[b"lost"].cause, ringfence.KeyLost)
    assert events[b"kept"].cause is None
    gate.open()
    assert kept.outcome() == Outcome("done")


def test_waiting_events_of_a_lost_key_are_not_started(ringfence_router: Router, style: str) -> None:
    waits = ringfence_router.deliver("k")  # there is no worker yet
    ringfence_router.lose("k")
    assert waits.outcome() == Outcome("not_started")
    tokens: list[int] = []
    ringfence_router.start(styled(style, lambda event: tokens.append(event.fencing_token)))
    assert waits.redeliver().outcome() == Outcome("done")
    assert tokens == [2]


def test_success_after_a_cancellation_is_a_success(ringfence_router: Router, style: str, gate: Gate) -> None:
    ringfence_router.start(ignoring(style, gate))
    delivery = ringfence_router.deliver("k")
    event = gate.wait_started()
    ringfence_router.lose("k")
    until(lambda: event.cause is not None)
    gate.open()
    assert delivery.outcome() == Outcome("done")


def test_the_end_of_the_lease_cancels_all(ringfence_router: Router, style: str, gate: Gate) -> None:
    ringfence_router.start(waiting(style, gate))
    deliveries = [ringfence_router.deliver(key) for key in "abc"]
    for _ in deliveries:
        gate.wait_started()
    ringfence_router.expire()
    assert [delivery.outcome() for delivery in deliveries] == [Outcome("cancelled")] * 3
    gate.open()
    assert ringfence_router.deliver("a").outcome() == Outcome("done")


def test_check_reads_the_clock(ringfence_router: Router) -> None:
    """The deadline passes between two checks of the watch: check must notice."""
    inside, passed = threading.Event(), threading.Event()
    seen: list[bool] = []

    def handle(event: Event) -> None:
        seen.append(event.cancelled)
        event.check()
        inside.set()
        passed.wait(WAIT)
        seen.append(event.cancelled)
        event.check()

    worker = ringfence_router.start(handle)
    delivery = ringfence_router.deliver("k")
    inside.wait(WAIT)
    with worker._runner.lock:  # the watch can check nothing now
        ringfence_router.expire()
        passed.set()
    assert delivery.outcome() == Outcome("cancelled")
    assert seen == [False, True]


def test_an_event_is_over_when_its_handler_has_returned(ringfence_router: Router, style: str) -> None:
    seen: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ringfence_router.start(styled(style, seen.put))
    ringfence_router.deliver("k").outcome()
    event = seen.get(timeout=WAIT)
    assert event.cancelled
    with pytest.raises(ringfence.Cancelled, match="has returned"):
        event.check()


def test_lease_until_grows(ringfence_router: Router, gate: Gate) -> None:
    ringfence_router.start(gate.plain)
    delivery = ringfence_router.deliver("k")
    event = gate.wait_started()
    first = event.lease_until
    assert first is not None
    ringfence_router.lose("other")  # renews the lease
    until(lambda: (event.lease_until or first) > first)
    gate.open()
    delivery.outcome()


def test_a_handler_timeout_cancels(style: str, gate: Gate) -> None:
    with Router(handler_timeout=1) as router:
        router.start(waiting(style, gate))
        delivery = router.deliver("k")
        event = gate.wait_started()
        assert delivery.outcome() == Outcome("timed_out")
        assert isinstance(event.cause, ringfence.HandlerTimeout)


def test_progress_restarts_the_handler_timeout() -> None:
    def handle(event: Event) -> None:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            event.progress()
            time.sleep(0.01)

    def reply(call: ringfence.Call) -> None:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            call.progress()
            time.sleep(0.01)

    with Router(handler_timeout=3) as router:
        router.start(handle, calls={"do": reply})
        delivery, call = router.deliver("k"), router.call("l", "do")
        assert delivery.outcome() == Outcome("done")
        assert call.outcome() == Outcome("done")


def test_a_disconnected_worker_reconnects(ringfence_router: Router, style: str, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    ringfence_router.start(waiting(style, gate))
    lost = ringfence_router.deliver("k")
    event = gate.wait_started()
    ringfence_router.disconnect()
    gate.open()
    assert ringfence_router.deliver("other").outcome() == Outcome("done")
    assert event.cause is None or not isinstance(event.cause, ringfence.KeyLost), "it ran on until its deadline"
    ringfence_router.expire()
    assert lost.outcome() == Outcome("lost")
    assert ringfence_router.deliver("k").outcome() == Outcome("done")
    assert "no stream to the router" in caplog.text


def test_a_handler_of_a_broken_stream_is_cancelled_at_its_deadline(ringfence_router: Router, style: str, gate: Gate) -> None:
    ringfence_router.start(waiting(style, gate))
    ringfence_router.deliver("k")
    event = gate.wait_started()
    ringfence_router.disconnect()
    ringfence_router._wait(lambda: ringfence_router._connected == 2, "it did not reconnect")
    assert event.cause is None
    ringfence_router.expire()
    until(lambda: isinstance(event.cause, ringfence.KeyLost))


def test_a_late_handler_holds_up_no_other(ringfence_router: Router, gate: Gate) -> None:
    """The pool has one thread, and a cancelled handler that runs on does not count."""

    def handle(event: Event) -> None:
        if event.key == b"late":
            gate.stubborn(event)

    ringfence_router.start(handle, threads=1)
    late = ringfence_router.deliver("late")
    gate.wait_started()
    waits = ringfence_router.deliver("other")
    ringfence_router.lose("late")
    assert waits.outcome() == Outcome("done")
    assert not late.over
    gate.open()
    assert late.outcome() == Outcome("done")


def test_threads_are_bounded(ringfence_router: Router, gate: Gate) -> None:
    ringfence_router.start(gate.plain, threads=3)
    deliveries = [ringfence_router.deliver(f"k{i}") for i in range(10)]
    for _ in range(3):
        gate.wait_started()
    running = [thread for thread in threading.enumerate() if thread.name == "ringfence-handler"]
    assert len(running) == 3
    gate.open()
    assert {delivery.outcome().kind for delivery in deliveries} == {"done"}


def test_the_window_is_kept(ringfence_router: Router, gate: Gate) -> None:
    ringfence_router.start(gate.task, max_in_flight=2)
    deliveries = [ringfence_router.deliver(f"k{i}") for i in range(5)]
    gate.wait_started()
    gate.wait_started()
    assert [len(stream.deliveries) for stream in ringfence_router._streams] == [2]
    gate.open()
    assert {delivery.outcome().kind for delivery in deliveries} == {"done"}


def test_suspended_events_wait(ringfence_router: Router, style: str) -> None:
    ringfence_router.start(styled(style, lambda event: None))
    ringfence_router.suspend()
    waits = ringfence_router.deliver("k")
    ringfence_router.lose("other")  # a Pong has followed the Suspend
    assert not waits.over
    ringfence_router.resume()
    assert waits.outcome() == Outcome("done")


def test_a_stopped_worker_finishes_what_runs(ringfence_router: Router, style: str, gate: Gate) -> None:
    ready: list[bool] = []
    worker = ringfence_router.start(waiting(style, gate), ready=ready.append, threads=1, max_in_flight=1)
    runs = ringfence_router.deliver("runs")
    gate.wait_started()
    worker.stop()
    until(worker._runner._stopping.is_set)
    waits = ringfence_router.deliver("waits")
    assert not worker.join(0.1)
    gate.open()
    assert worker.join(WAIT)
    assert runs.outcome() == Outcome("done")
    assert not waits.over
    assert ready == [True, False]


def test_what_waits_at_a_stop_is_not_started(ringfence_router: Router, gate: Gate) -> None:
    worker = ringfence_router.start(gate.plain, threads=1)
    runs, waits = ringfence_router.deliver("runs"), ringfence_router.deliver("waits")
    gate.wait_started()
    worker.stop()
    assert waits.outcome() == Outcome("not_started")
    gate.open()
    assert runs.outcome() == Outcome("done")


def test_the_drain_grace_cancels(ringfence_router: Router, style: str, gate: Gate) -> None:
    worker = ringfence_router.start(waiting(style, gate), drain_grace=0.05)
    delivery = ringfence_router.deliver("k")
    event = gate.wait_started()
    worker.stop()
    assert worker.join(WAIT)
    assert delivery.outcome() == Outcome("cancelled")
    assert isinstance(event.cause, ringfence.DrainTimeout)


def test_a_second_stop_cancels(ringfence_router: Router, style: str, gate: Gate) -> None:
    worker = ringfence_router.start(waiting(style, gate), drain_grace=1000)
    delivery = ringfence_router.deliver("k")
    gate.wait_started()
    worker.stop()
    worker.stop()
    assert worker.join(WAIT)
    assert delivery.outcome() == Outcome("cancelled")


def test_handlers_that_ignore_everything_are_reported(style: str, gate: Gate) -> None:
    router = Router()
    worker = router.start(ignoring(style, gate), drain_grace=0)
    router.deliver("k")
    gate.wait_started()
    worker.stop()
    opener = threading.Timer(WAIT, gate.open)  # ends a wait for the handler itself
    opener.start()
    with pytest.raises(HandlersStillRunning, match="1 handlers are still running"):
        worker.join()
    assert not gate.is_open, "it has waited for a handler that ignores its cancellation"
    opener.cancel()
    gate.open()
    with pytest.raises(HandlersStillRunning):
        router.close()


def test_join_does_not_outlast_its_timeout(ringfence_router: Router, gate: Gate) -> None:
    """A task that a handler has left behind, and that ignores its cancellation, keeps the event loop running."""
    left: list[asyncio.Task[None]] = []

    async def handle(event: Event) -> None:
        left.append(asyncio.create_task(gate.stubborn_task(event)))

    worker = ringfence_router.start(handle)
    assert ringfence_router.deliver("k").outcome() == Outcome("done")
    gate.wait_started()
    worker.stop()
    opener = threading.Timer(WAIT, gate.open)
    opener.start()
    until(worker._done.is_set)
    assert not worker.join(0.1)
    assert not gate.is_open
    opener.cancel()
    gate.open()
    assert worker.join(WAIT)


def test_hooks(ringfence_router: Router, style: str) -> None:
    calls: list[tuple[str, object]] = []
    hooks = ringfence.Hooks(
        started=lambda event: calls.append(("started", event.key)),
        finished=lambda event, result: calls.append(("finished", result.kind)),
        connected=lambda session: calls.append(("connected", session.in_flight_max)),
        disconnected=lambda error: calls.append(("disconnected", error)),
    )

    def body(event: Event) -> None:
        if event.payload:
            raise Reject("no")

    worker = ringfence_router.start(styled(style, body), hooks=hooks, max_in_flight=7)
    ringfence_router.deliver("a").outcome()
    ringfence_router.deliver("b", b"x").outcome()
    worker.stop()
    worker.join(WAIT)
    assert calls == [
        ("connected", 7),
        ("started", b"a"),
        ("finished", "done"),
        ("started", b"b"),
        ("finished", "reject"),
        ("disconnected", None),
    ]


def test_a_hook_that_fails_is_logged(ringfence_router: Router, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a broken hook")

    ringfence_router.start(lambda event: None, hooks=ringfence.Hooks(started=broken, finished=broken, connected=broken))
    assert ringfence_router.deliver("k").outcome() == Outcome("done")
    assert caplog.text.count("a broken hook") >= 3


def test_a_failure_is_logged_without_the_data(ringfence_router: Router, style: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ringfence_router.start(styled(style, fail(ValueError("no database"))))
        ringfence_router.deliver("secret-key", b"secret-payload", message_id=MessageID(7, 8)).outcome()
    assert "handler failed: message 7:8:-1:-1, attempt 1: ValueError at " in caplog.text
    assert "test_worker.py" in caplog.text
    assert "no database" not in caplog.text, "the text may hold parts of the event"
    assert "secret" not in caplog.text


def test_failures_are_logged_once_a_second(ringfence_router: Router, style: str, caplog: pytest.LogCaptureFixture) -> None:
    worker = ringfence_router.start(styled(style, fail(ValueError("x"))))
    log = worker._settings.log
    log._failures_logged = time.monotonic() + WAIT  # as long as the machine is slow
    for n in range(3):
        ringfence_router.deliver(f"k{n}").outcome()
    assert "handler failed" not in caplog.text
    log._failures_logged = -float("inf")
    ringfence_router.deliver("k").outcome()
    ringfence_router.deliver("l").outcome()
    lines = [record for record in caplog.records if "handler failed" in record.getMessage()]
    assert lines[0].getMessage().endswith("; failures since the last such line: 4")
    assert all(record.levelno == logging.WARNING for record in lines)


def test_a_handler_gives_an_event_back_during_a_drain(ringfence_router: Router, style: str, gate: Gate) -> None:
    wait = waiting(style, gate)

    def plain(event: Event) -> None:
        wait(event)
        raise ringfence.DrainTimeout

    async def task(event: Event) -> None:
        await wait(event)  # type: ignore[misc]  # it is of this style
        raise ringfence.DrainTimeout

    handler: Any = plain if style == "threads" else task
    gate.open()
    worker = ringfence_router.start(handler)
    assert ringfence_router.deliver("k").outcome().kind == "retry", "the worker was not told to stop"
    gate._open.clear()
    delivery = ringfence_router.deliver("k")
    gate.wait_started()
    gate.wait_started()
    worker.stop()
    until(worker._runner._stopping.is_set)
    gate.open()
    assert delivery.outcome() == Outcome("cancelled")


def test_the_window_is_told(ringfence_router: Router, style: str, gate: Gate) -> None:
    told: list[tuple[int, int]] = []
    worker = ringfence_router.start(waiting(style, gate), max_in_flight=7, hooks=ringfence.Hooks(window=lambda held, most: told.append((held, most))))
    first, second = ringfence_router.deliver("a"), ringfence_router.deliver("b")
    until(lambda: (2, 7) in told)
    gate.open()
    first.outcome(), second.outcome()
    until(lambda: told[-1] == (0, 7))
    worker.stop()
    assert worker.join(WAIT)
    assert told[-1] == (0, 7)
    assert all(before != after for before, after in itertools.pairwise(told))


def test_a_function_that_returns_a_coroutine_is_refused(ringfence_router: Router) -> None:
    async def handle(event: Event) -> None: ...

    def returns(event: Event) -> Any:
        return handle(event)

    ringfence_router.start(returns)
    outcome = ringfence_router.deliver("k").outcome()
    assert outcome.kind == "retry"
    assert "pass a coroutine function" in outcome.reason


class BrokenHandler(logging.Handler):
    """Logs nothing, and raises, as one may that sends lines to a machine that is down."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is down")


@pytest.fixture
def broken_logger() -> logging.Logger:
    logger = logging.Logger("broken")
    logger.addHandler(BrokenHandler())
    return logger


def test_a_broken_logger_stops_nothing(
    ringfence_router: Router, style: str, gate: Gate, broken_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(event: Event) -> None:
        if event.key_text == "fails":
            raise ValueError("no database")

    async def task(event: Event) -> None:
        await gate.task(event) if event.key_text == "waits" else body(event)

    def plain(event: Event) -> None:
        gate.plain(event) if event.key_text == "waits" else body(event)

    worker = ringfence_router.start(plain if style == "threads" else task, logger=broken_logger, threads=1)
    assert ringfence_router.deliver("fails").outcome() == Outcome("retry", 0, "ValueError: no database")
    lost = ringfence_router.deliver("waits")
    event = gate.wait_started()
    ringfence_router.lose("waits")
    assert lost.outcome() == Outcome("cancelled")
    assert isinstance(event.cause, ringfence.KeyLost)
    ringfence_router.disconnect()
    assert ringfence_router.deliver("k").outcome() == Outcome("done"), "the worker did not reconnect"
    waits = ringfence_router.deliver("waits")
    gate.wait_started()
    worker.stop()
    worker.stop()
    assert worker.join(WAIT)
    assert waits.outcome() == Outcome("cancelled")
    errors = capsys.readouterr().err
    assert "ringfence: the logger raised ConnectionError; it was to log: handler failed: message " in errors
    assert "no stream to the router" in errors


def test_a_handler_is_cancelled_before_that_is_logged(ringfence_router: Router, gate: Gate) -> None:
    ended = threading.Event()
    logged: list[bool] = []

    async def handle(event: Event) -> None:
        try:
            await gate.task(event)
        finally:
            ended.set()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.msg.startswith("handler cancelled"):
                logged.append(ended.wait(WAIT))

    logger = logging.Logger("slow")
    logger.addHandler(Slow())
    ringfence_router.start(handle, logger=logger)
    lost = ringfence_router.deliver("k")
    gate.wait_started()
    ringfence_router.lose("k")
    assert lost.outcome() == Outcome("cancelled")
    until(lambda: bool(logged))
    assert logged == [True]


def generate(event: Any, more: int = 0) -> Any:
    yield event


async def generate_async(event: Any, more: int = 0) -> Any:
    yield event


class Generating:
    def __call__(self, event: Any) -> Any:
        yield event

    def method(self, event: Any) -> Any:
        yield event


class GeneratingAsync:
    async def __call__(self, event: Any) -> Any:
        yield event


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(generate, id="a function"),
        pytest.param(generate_async, id="an async function"),
        pytest.param(functools.partial(generate, more=1), id="a partial"),
        pytest.param(functools.partial(functools.partial(generate_async), more=1), id="an async partial"),
        pytest.param(Generating(), id="an object"),
        pytest.param(GeneratingAsync(), id="an async object"),
        pytest.param(functools.partial(Generating()), id="a partial of an object"),
        pytest.param(Generating().method, id="a method"),
        pytest.param(functools.partial(Generating().method), id="a partial of a method"),
    ],
)
def test_a_generator_function_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"handler = .* is a generator function"):
        ringfence.Worker(handler)
    with pytest.raises(TypeError, match=r"calls\['do'\] = .* is a generator function"):
        ringfence.Worker(lambda event: None, calls={"do": handler})
    with pytest.raises(TypeError, match="is a generator function"):
        ringfence.json_handler(handler)


@pytest.mark.parametrize("made", [generate, generate_async])
@pytest.mark.parametrize("calls", [False, True])
def test_a_returned_generator_is_a_failure(ringfence_router: Router, style: str, made: Body, calls: bool) -> None:
    results: list[str] = []

    def plain(event: Any) -> Any:
        event.after(1)
        return made(event)

    async def task(event: Any) -> Any:
        event.after(1)
        return made(event)

    handler: Any = plain if style == "threads" else task
    hooks = ringfence.Hooks(finished=lambda event, result: results.append(result.kind))
    ringfence_router.start(handler, hooks=hooks, calls={"do": handler} if calls else None)
    outcome = ringfence_router.deliver("k").outcome()
    assert outcome.kind == "retry"
    assert "returned a generator" in outcome.reason
    if calls:
        outcome = ringfence_router.call("k", "do").outcome()
        assert outcome.kind == "retry"
        assert "generator: want bytes or None" in outcome.reason
    assert set(results) == {"retry"}
    assert ringfence_router.sent == []


def test_a_returned_coroutine_is_a_failure(ringfence_router: Router) -> None:
    async def store(event: Event) -> None:
        raise AssertionError("nobody awaits it")

    async def task(event: Event) -> Any:
        return store(event)  # without await

    ringfence_router.start(task)
    outcome = ringfence_router.deliver("k").outcome()
    assert outcome.kind == "retry"
    assert "returned a coroutine" in outcome.reason


def test_context_variables_do_not_leak(ringfence_router: Router, style: str) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("of the test")
    seen: list[str] = []

    def plain(event: Event) -> None:
        seen.append(variable.get())
        variable.set("of a handler")

    async def task(event: Event) -> None:
        seen.append(variable.get())
        variable.set("of a handler")
        await asyncio.sleep(0)
        assert variable.get() == "of a handler"
        variable.set("later")

    ringfence_router.start(plain if style == "threads" else task)
    for _ in range(3):
        assert ringfence_router.deliver("k").outcome() == Outcome("done")
    assert seen == ["of the test"] * 3


def test_a_handler_that_leaves_its_context_changed_ends_its_task(ringfence_router: Router) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("another variable")
    tasks: list[asyncio.Task[Any] | None] = []

    async def handle(event: Event) -> None:
        assert variable.get("unset") == "unset"
        tasks.append(asyncio.current_task())
        token = variable.set("of a handler")
        if event.payload == b"resets it":
            variable.reset(token)

    ringfence_router.start(handle)
    for payload in ("resets it", "leaves it", "leaves it"):
        assert ringfence_router.deliver("k", payload).outcome() == Outcome("done")
    assert tasks[0] is tasks[1], "a task whose handler left nothing ended with it"
    assert tasks[1] is not tasks[2], "a handler ran in the changed context of another"


def test_a_handler_that_blocks_the_loop_holds_up_no_answer(ringfence_router: Router, gate: Gate) -> None:
    handled: list[str] = []

    async def handle(event: Event) -> None:
        if event.key_text == "blocks":
            gate.stubborn(event)
        handled.append(event.key_text)

    quick, blocks, later = (ringfence_router.deliver(key) for key in ("quick", "blocks", "later"))  # in one frame
    ringfence_router.start(handle)
    gate.wait_started()
    assert quick.outcome() == Outcome("done")
    ringfence_router.lose("later")
    assert later.outcome() == Outcome("not_started"), "what the loop has claimed was not taken back"
    gate.open()
    assert blocks.outcome() == Outcome("done")
    assert handled == ["quick", "blocks"]


def test_asyncio_in_handlers(ringfence_router: Router) -> None:
    """Timeouts, gathers and errors work as in any task, for many handlers at once."""

    async def handle(event: Event) -> None:
        number = int(event.payload)
        try:
            await asyncio.wait_for(asyncio.sleep(10), 0.01)
        except asyncio.TimeoutError:
            pass
        values = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0.001, 2))
        assert list(values) == [1, 2]
        if number % 10 == 0:
            raise Reject(str(number))

    ringfence_router.start(handle)
    deliveries = [ringfence_router.deliver(f"k{i}", str(i)) for i in range(200)]
    kinds = [delivery.outcome().kind for delivery in deliveries]
    assert kinds == ["reject" if i % 10 == 0 else "done" for i in range(200)]


def test_a_task_that_was_cancelled_runs_no_other_handler(ringfence_router: Router, gate: Gate) -> None:
    causes: list[object] = []

    async def handle(event: Event) -> None:
        if event.payload:
            gate.started.put(event)
            try:
                await asyncio.sleep(WAIT)
            except asyncio.CancelledError as error:
                causes.append(error.__cause__)
                raise
        await asyncio.sleep(0.001)

    ringfence_router.start(handle)
    for _ in range(5):
        delivery = ringfence_router.deliver("k", b"long")
        gate.wait_started()
        ringfence_router.lose("k")
        assert delivery.outcome() == Outcome("cancelled")
        assert ringfence_router.deliver("k").outcome() == Outcome("done")
    assert [type(cause) for cause in causes] == [ringfence.KeyLost] * 5


def test_a_handler_that_cancels_itself_has_failed(ringfence_router: Router) -> None:
    async def handle(event: Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    ringfence_router.start(handle)
    delivery = ringfence_router.deliver("k")
    assert delivery.outcome() == Outcome("retry", 0, "CancelledError")
    assert delivery.redeliver().outcome() == Outcome("retry", 0, "CancelledError")


def test_the_clock_is_read_before_each_start(ringfence_router: Router, style: str) -> None:
    overdue: list[bool] = []

    def handle(event: Event) -> None:
        if event.key_text == "first":
            ringfence_router.expire()
        else:
            overdue.append(event.cancelled)

    deliveries = [ringfence_router.deliver(key) for key in ("first", "second")]  # in one frame
    ringfence_router.start(styled(style, handle), threads=1)
    for delivery in deliveries:
        delivery.outcome()
    assert overdue == [False], "it started after its deadline"


def test_quick_handlers_let_other_tasks_run() -> None:
    turns = 0

    async def main() -> None:
        nonlocal turns
        with Router() as router:
            deliveries = [router.deliver(f"k{i}") for i in range(20)]
            stop = asyncio.Event()

            async def handle(event: Event) -> None:
                time.sleep(0.005)

            async def count() -> None:
                nonlocal turns
                while not all(delivery.over for delivery in deliveries):
                    turns += 1
                    await asyncio.sleep(0)
                stop.set()

            await asyncio.gather(ringfence.serve(handle, router.endpoint, stop=stop), count())

    asyncio.run(main())
    assert turns > 20


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_serve(style: str, how: str, gate: Gate) -> None:
    async def main(router: Router) -> str:
        stop = asyncio.Event()
        serving = asyncio.ensure_future(ringfence.serve(waiting(style, gate), router.endpoint, stop=stop))
        delivery = router.deliver("k")
        await asyncio.to_thread(gate.wait_started)
        stop.set() if how == "stop" else serving.cancel()
        await asyncio.sleep(0)
        assert not serving.done()
        gate.open()
        ended: Awaitable[None] = serving
        try:
            await ended
            end = "returned"
        except asyncio.CancelledError:
            end = "cancelled"
        assert (await delivery.wait_outcome()).kind == "done"
        return end

    with Router() as router:
        assert asyncio.run(main(router)) == ("returned" if how == "stop" else "cancelled")


def test_the_end_of_asyncio_run_drains(ringfence_router: Router) -> None:
    """asyncio.run cancels all tasks when its own has ended, and waits for them."""
    started, cancelled = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        started.set()
        assert cancelled.wait(WAIT)
        event.check()

    async def watch() -> None:
        try:
            await asyncio.sleep(WAIT)
        finally:
            cancelled.set()

    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(of) for of in (ringfence.serve(handle, ringfence_router.endpoint), watch())]
        await asyncio.to_thread(started.wait, WAIT)
        return tasks

    delivery = ringfence_router.deliver("k")
    serving, _ = asyncio.run(main())
    assert serving.cancelled(), serving.exception()
    assert delivery.outcome().kind == "done"


def test_a_second_cancellation_of_serve_cancels_handlers(style: str, gate: Gate) -> None:
    async def main(router: Router) -> None:
        serving = asyncio.ensure_future(ringfence.serve(waiting(style, gate), router.endpoint, drain_grace=1000))
        delivery = router.deliver("k")
        await asyncio.to_thread(gate.wait_started)
        serving.cancel()
        await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert (await delivery.wait_outcome()).kind == "cancelled"

    with Router() as router:
        asyncio.run(main(router))


def test_a_worker_starts_once(ringfence_router: Router) -> None:
    worker = ringfence_router.start(lambda event: None)
    with pytest.raises(RuntimeError, match="already started"):
        worker.start()


def test_run_wants_no_event_loop() -> None:
    async def handle(event: Event) -> None: ...

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"use ringfence\.serve"):
            ringfence.run(handle)

    asyncio.run(main())


def test_run_wants_the_main_thread() -> None:
    raised: list[BaseException] = []

    def call() -> None:
        try:
            ringfence.run(lambda event: None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(WAIT)
    assert [type(error) for error in raised] == [RuntimeError]
