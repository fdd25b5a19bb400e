"""Schedules: what a worker declares, and the handlers of their firings."""

from __future__ import annotations

import asyncio
import datetime
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import ringfence
from ringfence import ArgumentError, Event, Fence, Firing, MessageID, Schedule, Times, at, cron, every
from ringfence.app.v1 import app_pb2 as pb
from ringfence.caller import path_of
from ringfence.event import Timer
from ringfence.options import check
from ringfence.runner import Runner
from ringfence.schedules import CRON_MAX, NAME_MAX, SCHEDULES_MAX, ZONE_MAX
from ringfence.stream import Stream
from ringfence.testing import Outcome, Router
from ringfence.xxh64 import xxh64

WAIT = 30.0
UTC = datetime.timezone.utc
DAILY = cron("@daily")


@pytest.fixture(params=["threads", "async"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def styled(style: str, body: Callable[[Any], Any]) -> Any:
    """A handler of one style that does what a plain function does."""
    if style == "threads":
        return body

    async def handle(delivery: Any) -> Any:
        return body(delivery)

    return handle


def nothing(delivery: object) -> None:
    pass


def declared(*schedules: Schedule) -> list[pb.Schedule]:
    """Returns what a worker says in its Hello."""
    stream = Stream(Runner(check("127.0.0.1:1", {"schedules": schedules})))
    return list(pb.WorkRequest.FromString(next(stream.requests())).hello.schedules)


@pytest.mark.parametrize(
    ("times", "options", "want"),
    [
        (cron("0 6 * * 1-5", "Europe/Berlin"), {}, pb.Schedule(cron="0 6 * * 1-5", zone="Europe/Berlin")),
        (cron("@hourly"), {"missed": "skip"}, pb.Schedule(cron="@hourly", missed=pb.MISSED_POLICY_SKIP)),
        (every(16.1), {"missed": "all"}, pb.Schedule(every_ms=16_100, missed=pb.MISSED_POLICY_ALL)),  # as a float it is a bit more
        (every(16.005), {}, pb.Schedule(every_ms=16_005)),  # and this a bit less
        (every(datetime.timedelta(days=1)), {"missed": "latest"}, pb.Schedule(every_ms=86_400_000)),
        (every(0.001), {}, pb.Schedule(every_ms=1)),  # the router's to refuse
        (at(datetime.datetime(2030, 1, 2, 3, 4, 5, 678_999, UTC)), {}, pb.Schedule(at_ms=1_893_553_445_678)),
        (at(datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))), {}, pb.Schedule(at_ms=1)),
        (at(datetime.datetime(1969, 12, 31, tzinfo=UTC)), {}, pb.Schedule(at_ms=-86_400_000)),
        (DAILY, {"grace": 0}, pb.Schedule(cron="@daily", grace_ms=1)),  # 0 on the wire is an hour
        (DAILY, {"grace": 0.0001}, pb.Schedule(cron="@daily", grace_ms=1)),
        (DAILY, {"grace": 90.5, "jitter": datetime.timedelta(minutes=1)}, pb.Schedule(cron="@daily", grace_ms=90_500, jitter_ms=60_000)),
    ],
)
def test_a_schedule_is_declared(times: Times, options: dict[str, Any], want: pb.Schedule) -> None:
    want.name, want.missed = "report", want.missed or pb.MISSED_POLICY_LATEST
    assert declared(Schedule("report", times, nothing, **options)) == [want]


def test_the_most_schedules() -> None:
    times = cron("é" * (CRON_MAX // 2), "é" * (ZONE_MAX // 2))
    hello = declared(*(Schedule(f"{n:0{NAME_MAX - 2}}é", times, nothing) for n in range(SCHEDULES_MAX)))
    assert (len(hello), len(hello[0].name.encode())) == (SCHEDULES_MAX, NAME_MAX)
    assert declared() == []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Schedule("", DAILY, nothing), "name = '', want 1 to 128 bytes"),
        (lambda: Schedule("é" * (NAME_MAX // 2) + "a", DAILY, nothing), "want 1 to 128 bytes"),
        (lambda: Schedule("a\nb", DAILY, nothing), "printable"),
        (lambda: Schedule("\udcff", DAILY, nothing), "printable"),
        (lambda: Schedule(7, DAILY, nothing), "name = 7"),  # type: ignore[arg-type]
        (lambda: Schedule("report", "@daily", nothing), r"schedule 'report': times = '@daily', want ringfence.cron"),  # type: ignore[arg-type]
        (lambda: Schedule("report", DAILY, None), "schedule 'report': handler = None"),  # type: ignore[arg-type]
        (lambda: Schedule("report", DAILY, nothing, missed="none"), "schedule 'report': missed = 'none'"),  # type: ignore[arg-type]
        (lambda: Schedule("report", DAILY, nothing, missed=[]), "missed = "),  # type: ignore[arg-type]
        (lambda: Schedule("report", DAILY, nothing, grace=-1), "schedule 'report': grace = -1"),
        (lambda: Schedule("report", DAILY, nothing, grace=True), "schedule 'report': grace = True"),
        (lambda: Schedule("report", DAILY, nothing, jitter=float("nan")), "schedule 'report': jitter = nan"),
        (lambda: Schedule("report", DAILY, nothing, jitter=None), "schedule 'report': jitter = None"),  # type: ignore[arg-type]
        (lambda: cron(""), "expression = ''"),
        (lambda: cron("é" * (CRON_MAX // 2) + "a"), "want a cron expression of 1 to 256 bytes"),
        (lambda: cron("@daily", "é" * (ZONE_MAX // 2) + "a"), "want a time zone of at most 64 bytes"),
        (lambda: cron("@daily", None), "zone = None"),  # type: ignore[arg-type]
        (lambda: every(0), "period = 0, want at least 10 seconds"),
        (lambda: every(-10), "period = -10"),
        (lambda: every(float("inf")), "period = inf"),
        (lambda: every(datetime.timedelta(days=367)), "366 days"),
        (lambda: every("10"), "period = '10'"),  # type: ignore[arg-type]
        (lambda: at(datetime.datetime(2030, 1, 1)), "with a time zone"),
        (lambda: at(1.5), "time = 1.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_schedules(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make()


def yields(firing: Firing) -> Iterator[None]:
    yield


async def coroutine(delivery: Any) -> None: ...


REPORT = Schedule("report", DAILY, nothing)


@pytest.mark.parametrize(
    ("schedules", "error", "text"),
    [
        ([REPORT, Schedule("report", every(30), nothing)], ArgumentError, "'report' is declared twice"),
        ([Schedule(f"s-{n}", DAILY, nothing) for n in range(SCHEDULES_MAX + 1)], ArgumentError, "schedules: 257 of them, want at most 256"),
        (["report"], ArgumentError, "schedules: 'report', want a ringfence.Schedule"),
        (REPORT, ArgumentError, "want a list"),
        ([Schedule("report", DAILY, coroutine)], ArgumentError, "'report': want a plain function"),
        ([Schedule("report", DAILY, yields)], TypeError, "the handler of the schedule 'report'.*generator function"),  # type: ignore[arg-type]
    ],
)
def test_bad_lists_of_schedules(schedules: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ringfence.Worker(nothing, schedules=schedules)


def test_a_coroutine_function_wants_its_like() -> None:
    with pytest.raises(ArgumentError, match="'report': want a coroutine function"):
        ringfence.Worker(coroutine, schedules=[REPORT])
    ringfence.Worker(coroutine, schedules=[Schedule("report", DAILY, coroutine)])


def start(router: Router, style: str, body: Callable[[Firing], Any], **options: Any) -> queue.SimpleQueue[Event]:
    """Starts a worker with a schedule report. Returns what the handler of events gets."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    router.start(styled(style, events.put), schedules=[Schedule("report", DAILY, styled(style, body))], **options)
    return events


def test_a_firing(ringfence_router: Router, style: str) -> None:
    firings: queue.SimpleQueue[Firing] = queue.SimpleQueue()
    hooked: queue.SimpleQueue[tuple[Event, str]] = queue.SimpleQueue()
    hooks = ringfence.Hooks(finished=lambda event, result: hooked.put((event, result.kind)))
    events = start(ringfence_router, style, firings.put, hooks=hooks)
    at = datetime.datetime(2026, 11, 27, 6, 0, 0, 123_000, UTC)
    fence = Fence(7, (1 << 53) + 1)
    assert ringfence_router.fire("report", time=at, missed=3, attempt=2, fence=fence).outcome() == Outcome("done")
    firing = firings.get(timeout=WAIT)
    assert (firing.schedule, firing.time, firing.missed, firing.attempt, firing.fence) == ("report", at, 3, 2, fence)
    assert (firing.cause is not None, firing.cancelled) == (True, True), "it is over"
    event, kind = hooked.get(timeout=WAIT)
    assert (event.key, event.payload, event.timer, kind) == (b"schedule/report", b"", Timer("report", at), "done")
    assert events.empty(), "the handler of events gets no firing"
    assert ringfence_router.deliver("k").outcome() == Outcome("done")
    assert events.get(timeout=WAIT).key == b"k"
    assert firings.empty(), "the handler of a schedule gets no event"


def test_the_time_of_a_firing_is_now_by_default(ringfence_router: Router, style: str) -> None:
    firings: queue.SimpleQueue[Firing] = queue.SimpleQueue()
    start(ringfence_router, style, firings.put)
    before = datetime.datetime.now(UTC) - datetime.timedelta(milliseconds=1)  # the wire has whole ones
    assert ringfence_router.fire("report").outcome() == Outcome("done")
    firing = firings.get(timeout=WAIT)
    assert before < firing.time <= datetime.datetime.now(UTC)
    assert (firing.missed, firing.attempt) == (0, 1)


def raises(error: BaseException) -> Callable[[Firing], None]:
    def body(firing: Firing) -> None:
        if firing.attempt == 1:
            raise error

    return body


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(raises(ValueError("no database")), Outcome("retry", reason="ValueError: no database"), id="an exception"),
        pytest.param(raises(SystemExit("exit")), Outcome("retry", reason="SystemExit: exit"), id="an attempt to exit"),
        pytest.param(raises(ringfence.RetryAfter(1.5, "later")), Outcome("retry", 1.5, "later"), id="retry after"),
        pytest.param(raises(ringfence.Reject("never")), Outcome("reject", reason="never"), id="reject"),
        pytest.param(lambda firing: "a value", Outcome("done"), id="a value"),
        pytest.param(
            lambda firing: yields(firing) if firing.attempt == 1 else None,
            Outcome("retry", reason="TypeError: the handler returned a generator, which has run nothing: remove the yield, or loop over it"),
            id="a generator",
        ),
    ],
)
def test_outcomes(ringfence_router: Router, style: str, body: Callable[[Firing], Any], want: Outcome) -> None:
    start(ringfence_router, style, body)
    first = ringfence_router.fire("report")
    assert first.outcome() == want
    if want.kind == "retry":
        assert first.redeliver().outcome() == Outcome("done"), "the next attempt has its number"


def test_a_firing_of_another_schedule(ringfence_router: Router, style: str, caplog: pytest.LogCaptureFixture) -> None:
    events = start(ringfence_router, style, nothing)
    want = Outcome("retry", reason="NoSchedule: this worker does not declare the schedule 'sweep'")
    assert ringfence_router.fire("sweep").outcome() == want
    assert "NoSchedule" in caplog.text
    assert events.empty()


def test_a_firing_at_a_worker_without_schedules(ringfence_router: Router, style: str) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ringfence_router.start(styled(style, events.put))
    assert ringfence_router.fire("report").outcome().kind == "retry"
    assert events.empty()


def test_a_firing_sets_timers(ringfence_router: Router, style: str) -> None:
    def body(firing: Firing) -> None:
        firing.after(60, "first", b"1")
        firing.after(0, "second")
        if firing.missed:
            raise ValueError("too late")

    events = start(ringfence_router, style, body)
    assert ringfence_router.fire("report", missed=1).outcome().kind == "retry"
    assert ringfence_router.sent == []
    delivery = ringfence_router.fire("report")
    assert delivery.outcome() == Outcome("done")
    first, second = sorted(ringfence_router.sent, key=lambda sent: sent.id)
    assert (first.key, first.name, first.payload, first.after) == (b"schedule/report", "first", b"1", 60)
    assert (second.key, second.name, second.after) == (b"schedule/report", "second", 0)
    assert first.id.startswith("after/") and first.id.endswith("/0")
    assert delivery.redeliver().outcome() == Outcome("done")
    assert len(ringfence_router.sent) == 2, "a second run sets the same timers"
    assert first.deliver().outcome() == Outcome("done")
    assert events.get(timeout=WAIT).timer == Timer("first", _whole(first.due)), "a timer is an event"


def _whole(time: datetime.datetime) -> datetime.datetime:
    """Returns a time as the wire has it."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def test_a_firing_whose_key_is_lost(ringfence_router: Router, style: str) -> None:
    begun = threading.Event()
    causes: queue.SimpleQueue[object] = queue.SimpleQueue()

    def plain(firing: Firing) -> None:
        begun.set()
        try:
            while True:
                firing.check()
        finally:
            causes.put(firing.cause)

    async def task(firing: Firing) -> None:
        begun.set()
        try:
            await asyncio.sleep(WAIT)
        finally:
            causes.put(firing.cause)

    handlers: dict[str, Any] = {"threads": plain, "async": task}
    ringfence_router.start(styled(style, nothing), schedules=[Schedule("report", DAILY, handlers[style])])
    delivery = ringfence_router.fire("report")
    assert begun.wait(WAIT)
    ringfence_router.lose("schedule/report")
    assert delivery.outcome() == Outcome("cancelled")
    assert isinstance(causes.get(timeout=WAIT), ringfence.KeyLost)


def test_a_firing_of_a_test() -> None:
    firing = Firing("report", datetime.datetime(2026, 11, 27, 6, tzinfo=UTC), missed=2, attempt=3, fence=Fence(1, 2))
    assert (firing.schedule, firing.missed, firing.attempt, firing.fence) == ("report", 2, 3, Fence(1, 2))
    firing.check()
    firing.progress()
    firing.after(1, "x")
    assert repr(firing) == "<Firing 'report' of 2026-11-27 06:00:00+00:00 attempt 3>"
    assert (firing.cause, firing.cancelled, firing.lease_until) == (None, False, None)
    assert path_of(firing) == [xxh64(b"schedule/report")]


def test_schedules_are_values() -> None:
    assert Schedule("report", cron("@daily"), nothing) == REPORT
    assert pickle.loads(pickle.dumps(REPORT)) == REPORT
    with pytest.raises(AttributeError):
        REPORT.name = "other"  # type: ignore[misc]


def test_a_firing_needs_little_of_its_event(ringfence_router: Router) -> None:
    """A handler that runs for long does not keep the frame of its delivery."""
    begun, goes_on = threading.Event(), threading.Event()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def body(firing: Firing) -> None:
        events.put(firing._event)
        begun.set()
        assert goes_on.wait(WAIT)
        assert (firing.schedule, firing.missed) == ("report", 1)

    start(ringfence_router, "threads", body)
    delivery = ringfence_router.fire("report", missed=1)
    assert begun.wait(WAIT)
    event = events.get()
    while event._frame is not None:
        assert not delivery.over
    goes_on.set()
    assert delivery.outcome() == Outcome("done")
    assert event.message_id != MessageID()


class Refusing(Router):
    """A router that refuses each Hello."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        super().__init__()

    def _work(self, requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.texts.pop(0) if len(self.texts) > 1 else self.texts[0])


WRONG = 'app: schedule "the \\"é\\" \\\\ report": cron = "x": expected exactly 5 fields'
NAMED = 'the "é" \\ report'


def test_a_wrong_schedule_ends_the_worker(style: str, caplog: pytest.LogCaptureFixture) -> None:
    handler = styled(style, nothing)
    schedules = [REPORT if style == "threads" else Schedule("report", DAILY, handler), Schedule(NAMED, cron("x"), handler)]
    ends: queue.SimpleQueue[object] = queue.SimpleQueue()
    readiness: list[bool] = []
    # The first refusal names none of its schedules: another router may take them.
    with Refusing("app: schedule: more than 4096 schedules in all workers", WRONG) as router:
        worker = ringfence.Worker(handler, router.endpoint, schedules=schedules, hooks=ringfence.Hooks(disconnected=ends.put), ready=readiness.append)
        worker.start()
        with pytest.raises(ringfence.Refused, match="expected exactly 5 fields"):
            worker.join(WAIT)
        assert "4096" in str(ends.get(timeout=WAIT))
        assert "5 fields" in str(ends.get(timeout=WAIT))
        assert ends.empty(), "it does not dial again"
        assert readiness == [False, False]
        assert "refuses a schedule, and the worker ends: INVALID_ARGUMENT: " + WRONG in caplog.text
        worker.stop()
        with pytest.raises(ringfence.Refused):
            worker.join(WAIT)

        with pytest.raises(ringfence.Refused, match="expected exactly 5 fields"):
            ringfence.run(handler, router.endpoint, schedules=schedules)
        with pytest.raises(ringfence.Refused, match="expected exactly 5 fields"):
            asyncio.run(ringfence.serve(handler, router.endpoint, schedules=schedules))


def test_a_refusal_that_names_no_schedule_of_the_worker_is_not_final(style: str) -> None:
    ends: queue.SimpleQueue[object] = queue.SimpleQueue()
    handler = styled(style, nothing)
    with (
        Refusing(WRONG) as router,
        ringfence.Worker(
            handler, router.endpoint, schedules=[Schedule("report", DAILY, handler)], hooks=ringfence.Hooks(disconnected=ends.put)
        ) as worker,
    ):
        for _ in range(3):
            assert isinstance(ends.get(timeout=WAIT), ringfence.Refused)
        assert not worker.join(0)
