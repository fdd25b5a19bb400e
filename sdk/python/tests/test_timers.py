"""Timers of handlers, and events that a lane sends."""

from __future__ import annotations

import asyncio
import datetime
import pathlib
import pickle
import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
import pytest
from mute import Mute

import ringfence
from ringfence import ArgumentError, Call, Event, MaybeSent, MessageID, NotSent
from ringfence.event import TIMER_AFTER_MAX, TIMER_NAME_MAX, TIMER_PAYLOAD_MAX, TIMERS_MAX
from ringfence.lane.v1 import lane_pb2 as pb
from ringfence.sending import PAYLOAD_MAX, REQUEST_MAX, Sender
from ringfence.testing import Outcome, Router

WAIT = 30.0


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


def sets_two(of: Event | Call) -> None:
    of.after(1.5, "first", b"1")
    of.after(datetime.timedelta(), payload="2")


def test_a_timer(ringfence_router: Router, style: str) -> None:
    got: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def body(event: Event) -> None:
        if event.timer is None:
            sets_two(event)
        else:
            got.put(event)

    ringfence_router.start(styled(style, body))
    before = datetime.datetime.now(datetime.timezone.utc)
    assert ringfence_router.deliver(b"\xff", message_id=MessageID(7, 8, 2, 3)).outcome() == Outcome("done")
    first, second = sorted(ringfence_router.sent, key=lambda sent: sent.id)  # done says that both are there
    assert (first.key, first.name, first.payload, first.after, first.id) == (b"\xff", "first", b"1", 1.5, "after/7:8:3:2/0")
    assert (second.key, second.name, second.payload, second.after, second.id) == (b"\xff", "", b"2", 0, "after/7:8:3:2/1")
    assert before < first.due - datetime.timedelta(seconds=1.5) < datetime.datetime.now(datetime.timezone.utc)
    assert repr(first).startswith("<Sent 'first' due ")

    assert first.deliver().outcome() == Outcome("done")
    event = got.get(timeout=WAIT)
    assert event.timer is not None and event.timer.name == "first"
    assert abs(event.timer.due - first.due) < datetime.timedelta(milliseconds=1)
    assert (event.key, event.payload, event.message_id) == (b"\xff", b"1", first.message_id)
    assert len(ringfence_router.sent) == 2


def test_a_handler_that_fails_sets_none(ringfence_router: Router, style: str) -> None:
    def body(event: Event) -> None:
        sets_two(event)
        if event.attempt == 1:
            raise ringfence.RetryAfter(1)
        if event.payload:
            raise ringfence.Reject("no")

    ringfence_router.start(styled(style, body))
    failed = ringfence_router.deliver("k")
    assert failed.outcome().kind == "retry"
    assert ringfence_router.deliver("k", b"reject", attempt=2).outcome().kind == "reject"
    assert ringfence_router.sent == []
    again = failed.redeliver()
    assert again.outcome() == Outcome("done")
    assert len(ringfence_router.sent) == 2
    assert again.redeliver().outcome() == Outcome("done")
    assert len(ringfence_router.sent) == 2, "a second run sets the same timers"


def test_a_call_sets_timers(ringfence_router: Router, style: str) -> None:
    def body(call: Call) -> bytes:
        sets_two(call)
        return b"r"

    ringfence_router.start(styled(style, lambda event: None), calls={"do": styled(style, body)})
    for n in (1, 2):
        assert ringfence_router.call("k", "do").outcome() == Outcome("done", reply=b"r")
        assert len({sent.id for sent in ringfence_router.sent}) == 2 * n, "each call has timers of its own"


def test_many_timers(ringfence_router: Router, style: str) -> None:
    def body(event: Event) -> None:
        for n in range(TIMERS_MAX):
            event.after(n, f"n-{n}")

    ringfence_router.start(styled(style, body))
    assert ringfence_router.deliver("k").outcome() == Outcome("done")
    assert {sent.name for sent in ringfence_router.sent} == {f"n-{n}" for n in range(TIMERS_MAX)}


class Odd(Router):
    """A router whose Sends end as the test says."""

    def __init__(self, answer: Callable[[int, grpc.ServicerContext], object]) -> None:
        self.answer, self.count, self.lock = answer, 0, threading.Lock()
        super().__init__()

    def __enter__(self) -> Odd:
        return self

    def _send(self, request: pb.SendRequest, context: grpc.ServicerContext) -> pb.SendResponse:
        with self.lock:
            self.count += 1
            n = self.count
        self.answer(n, context)
        return super()._send(request, context)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, "NotSent: the event was not published: as told"),
        (grpc.StatusCode.UNAVAILABLE, "MaybeSent: the event may have been published: UNAVAILABLE: as told"),
    ],
)
def test_a_send_that_fails(code: grpc.StatusCode, text: str, style: str) -> None:
    finished: queue.SimpleQueue[str] = queue.SimpleQueue()
    hooks = ringfence.Hooks(finished=lambda event, result: finished.put(result.kind))

    def body(call: Call) -> bytes:
        sets_two(call)
        return b"r"

    with Odd(lambda n, context: context.abort(code, "as told")) as router:
        router.start(styled(style, sets_two), calls={"do": styled(style, body)}, hooks=hooks)
        assert router.deliver("k").outcome() == Outcome("retry", reason=text)
        assert router.call("k", "do").outcome() == Outcome("retry", reason=text)
        assert [finished.get(timeout=WAIT) for _ in range(2)] == ["retry", "retry"]


def test_a_send_in_a_crowd(style: str) -> None:
    def answer(n: int, context: grpc.ServicerContext) -> None:
        if n <= 20:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")

    with Odd(answer) as router:
        router.start(styled(style, sets_two))
        assert router.deliver("k").outcome() == Outcome("done")
        assert (router.count, len(router.sent)) == (22, 2)
    with Odd(answer) as router, ringfence.Lane(router.endpoint) as lane:
        send(style, lane, "k", timeout=WAIT)
        assert (router.count, len(router.sent)) == (21, 1)
    with Odd(lambda n, context: context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many")) as router, ringfence.Lane(router.endpoint) as lane:
        with pytest.raises(NotSent, match="too many"):
            send(style, lane, "k", timeout=2)
        assert router.count > 3


def test_a_lost_key_gives_sends_up(style: str) -> None:
    sends, opened = threading.Event(), threading.Event()

    def answer(n: int, context: grpc.ServicerContext) -> None:
        sends.set()
        opened.wait(WAIT)

    with Odd(answer) as router:
        router.start(styled(style, sets_two))
        delivery = router.deliver("k")
        assert sends.wait(WAIT)
        router.lose("k")
        assert delivery.outcome() == Outcome("cancelled")
        opened.set()


def test_a_handler_that_has_lost_its_key_sets_none(ringfence_router: Router, style: str) -> None:
    def threads(event: Event) -> None:
        sets_two(event)
        ringfence_router.expire()
        assert event.cancelled

    async def coroutine(event: Event) -> None:
        sets_two(event)
        ringfence_router.expire()
        try:
            await asyncio.sleep(WAIT)
        except asyncio.CancelledError:  # swallowed: it returns as if all were well
            pass

    ringfence_router.start(threads if style == "threads" else coroutine)
    assert ringfence_router.deliver("k").outcome() == Outcome("cancelled")
    assert ringfence_router.sent == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((float("nan"),), "delay = nan"),
        ((True,), "delay = True"),
        ((datetime.timedelta(days=366, seconds=1),), "366 days"),
        ((0, "n" * (TIMER_NAME_MAX + 1)), "printable"),
        ((0, "a\nb"), "printable"),
        ((0, "\udcff"), "printable"),
        ((0, "n", bytes(TIMER_PAYLOAD_MAX + 1)), "payload: 1048577 bytes"),
    ],
)
def test_bad_timers(arguments: tuple[Any, ...], text: str) -> None:
    event = Event("k")
    with pytest.raises(ArgumentError, match=text):
        event.after(*arguments)
    assert event._timers is None


def test_the_largest_timers() -> None:
    event = Event("k")
    for _ in range(TIMERS_MAX):
        event.after(TIMER_AFTER_MAX, "é" * (TIMER_NAME_MAX // 2), bytes(TIMER_PAYLOAD_MAX))
    with pytest.raises(ArgumentError, match="more than 100 timers"):
        event.after(0)


def test_a_timer_in_the_past_is_due_at_once() -> None:
    event = Event("k")
    event.after(-5)
    event.after(datetime.timedelta(days=-400))
    assert [timer.after_ms for timer in event._timers or []] == [0, 0]


def test_a_refused_timer_fails_the_event(ringfence_router: Router, style: str) -> None:
    ringfence_router.start(styled(style, lambda event: event.after(TIMER_AFTER_MAX + 1)))
    assert ringfence_router.deliver("k").outcome().kind == "retry"


def send(style: str, lane: ringfence.Lane, *arguments: Any, **options: Any) -> MessageID:
    if style == "threads":
        return lane.send(*arguments, **options)
    return asyncio.run(lane.send_async(*arguments, **options))


def test_a_lane_sends(ringfence_router: Router, style: str) -> None:
    at = datetime.datetime(2100, 1, 2, 3, 4, 5, 678_000, datetime.timezone.utc)
    with ringfence.Lane(ringfence_router.endpoint, tls=None) as lane:
        ids = [
            send(style, lane, "é", "payload", after=2.5, name="mine", id="order-8", properties={"a": "1"}),
            send(style, lane, b"\xff", at=at),
            send(style, lane, "é", "payload", id="order-8"),
        ]
    first, second = ringfence_router.sent
    assert ids == [first.message_id, second.message_id, first.message_id]
    assert (first.key, first.payload, first.name, first.id) == ("é".encode(), b"payload", "mine", "order-8")
    assert (first.properties, first.after) == ({"a": "1"}, 2.5)
    assert (second.key, second.payload, second.due, second.id) == (b"\xff", b"", at, "")
    seen: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ringfence_router.start(styled(style, seen.put))
    assert first.deliver().outcome() == Outcome("done")
    event = seen.get(timeout=WAIT)
    assert (event.properties, event.message_id) == ({"a": "1"}, ids[0])
    assert event.timer is not None and event.timer.name == "mine"


def test_a_lane_sends_at_once_what_is_due_in_the_past(ringfence_router: Router, style: str) -> None:
    with ringfence.Lane(ringfence_router.endpoint) as lane:
        for after in (-0.5, -5, float("-inf"), datetime.timedelta(days=-400)):
            send(style, lane, "k", after=after)
    assert [sent.after for sent in ringfence_router.sent] == [0, 0, 0, 0]


def test_a_timer_is_refused_when_the_handler_has_returned(ringfence_router: Router, style: str) -> None:
    seen: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ringfence_router.start(styled(style, seen.put))
    assert ringfence_router.deliver("k").outcome().kind == "done"
    with pytest.raises(ringfence.Cancelled, match="the handler has returned"):
        seen.get(timeout=WAIT).after(0)


def test_a_timer_is_refused_while_others_are_published(ringfence_router: Router, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the handler has left behind is told that nobody would publish its timer."""
    late: list[BaseException] = []
    begin = Sender.begin

    def begins(sender: Sender, request: pb.SendRequest, *more: Any) -> Any:
        with pytest.raises(ringfence.Cancelled, match="the handler has returned") as raised:
            events[0].after(0, "too late")
        late.append(raised.value)
        return begin(sender, request, *more)

    events: list[Event] = []

    def handle(event: Event) -> None:
        events.append(event)
        event.after(0, "in time")

    monkeypatch.setattr(Sender, "begin", begins)
    ringfence_router.start(styled(style, handle))
    assert ringfence_router.deliver("k").outcome().kind == "done"
    assert [sent.name for sent in ringfence_router.sent] == ["in time"]
    assert len(late) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"after": float("nan")}, "after = nan"),
        ({"after": float("inf")}, "after = inf"),
        ({"after": "1"}, "after = '1'"),
        ({"after": 1, "at": datetime.datetime.now(datetime.timezone.utc)}, "want one of them"),
        ({"at": datetime.datetime(2100, 1, 1)}, "with a time zone"),
        ({"timeout": 0}, "timeout = 0"),
    ],
)
def test_bad_arguments_of_send(options: dict[str, Any], text: str, style: str) -> None:
    with ringfence.Lane("127.0.0.1:1") as lane, pytest.raises(ArgumentError, match=text):
        send(style, lane, "k", **options)


class SendServer:
    """A router that answers each Send as the test says."""

    def __init__(self, answer: Callable[[pb.SendRequest, grpc.ServicerContext], pb.SendResponse]) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        method: Any = grpc.unary_unary_rpc_method_handler(answer, pb.SendRequest.FromString, pb.SendResponse.SerializeToString)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("ringfence.lane.v1.LaneService", {"Send": method})])
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> SendServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, NotSent),
        (grpc.StatusCode.UNIMPLEMENTED, NotSent),
        (grpc.StatusCode.UNAUTHENTICATED, NotSent),
        (grpc.StatusCode.PERMISSION_DENIED, NotSent),
        (grpc.StatusCode.FAILED_PRECONDITION, NotSent),
        (grpc.StatusCode.UNAVAILABLE, MaybeSent),
        (grpc.StatusCode.INTERNAL, MaybeSent),
        (grpc.StatusCode.DEADLINE_EXCEEDED, MaybeSent),
    ],
)
def test_statuses(code: grpc.StatusCode, kind: type[Exception], style: str) -> None:
    def answer(request: pb.SendRequest, context: grpc.ServicerContext) -> pb.SendResponse:
        context.abort(code, "as told")

    with SendServer(answer) as server, ringfence.Lane(server.endpoint) as lane, pytest.raises(kind, match="as told") as caught:
        send(style, lane, "k")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is kind and str(again) == str(caught.value)


@pytest.mark.parametrize("bad", [{"key": "k\ud800"}, {"payload": "\ud800"}, {"id": "a\udfff"}, {"name": "\ud800"}, {"properties": {"a": "\ud800"}}])
def test_what_is_no_text_is_not_sent(bad: dict[str, Any], style: str) -> None:
    with ringfence.Lane("127.0.0.1:1") as lane, pytest.raises(ArgumentError, match=f"^{next(iter(bad))}: half of a surrogate pair"):
        send(style, lane, **{"key": "k", **bad})


@pytest.mark.parametrize(
    ("key", "payload", "text"),
    [
        ("k", "é" * (PAYLOAD_MAX // 2) + "e", "a payload of 1048577 bytes: want at most 1048576"),
        ("k", bytes(3 * PAYLOAD_MAX), "a payload of 3145728 bytes: want at most 1048576"),
        ("k" * REQUEST_MAX, b"", "a request of 2097157 bytes: want at most 2097152"),
    ],
)
def test_what_is_too_large_is_not_sent(key: str, payload: bytes | str, text: str, style: str) -> None:
    count = 0

    def answer(request: pb.SendRequest, context: grpc.ServicerContext) -> pb.SendResponse:
        nonlocal count
        count += 1
        return pb.SendResponse(message_id="1:2:-1:-1")

    with SendServer(answer) as server, ringfence.Lane(server.endpoint) as lane:
        assert send(style, lane, "k", bytes(PAYLOAD_MAX)) == MessageID(1, 2)
        with pytest.raises(NotSent, match=text):
            send(style, lane, key, payload, timeout=1)
    assert count == 1


def test_a_router_that_does_not_answer_a_send(style: str) -> None:
    opened = threading.Event()

    def answer(request: pb.SendRequest, context: grpc.ServicerContext) -> pb.SendResponse:
        opened.wait(WAIT)
        return pb.SendResponse(message_id="nonsense")

    with SendServer(answer) as server, ringfence.Lane(server.endpoint) as lane:
        opened.set()
        with pytest.raises(MaybeSent, match="nonsense"):
            send(style, lane, "k", timeout=WAIT)
        opened.clear()
        begun = time.monotonic()
        with pytest.raises(MaybeSent, match="DEADLINE_EXCEEDED"):  # over a connection that is there: without one nothing is sent
            send(style, lane, "k", timeout=0.2)
        assert time.monotonic() - begun < WAIT
        opened.set()


def test_a_broker_that_is_slow_costs_no_connection(style: str) -> None:
    """A Send without an answer says nothing about the connection: the router is there."""
    opened = threading.Event()
    opened.set()

    def answer(request: pb.SendRequest, context: grpc.ServicerContext) -> pb.SendResponse:
        opened.wait(WAIT)
        return pb.SendResponse(message_id="1:2:-1:-1")

    with SendServer(answer) as server, Mute(server.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane:
        send(style, lane, "k", timeout=WAIT)
        opened.clear()
        for _ in range(2):
            with pytest.raises(MaybeSent, match="DEADLINE_EXCEEDED"):
                send(style, lane, "k", timeout=0.01)
        opened.set()
        send(style, lane, "k", timeout=WAIT)
        assert proxy.count == 1


def test_no_router_for_a_send(tmp_path: pathlib.Path, style: str) -> None:
    lane = ringfence.Lane("127.0.0.1:1")
    with pytest.raises(NotSent):
        send(style, lane, "k")
    lane.close()
    with pytest.raises(NotSent, match="was closed"):
        send(style, lane, "k")
    with ringfence.Lane("127.0.0.1:1", token_file=str(tmp_path / "none")) as lane, pytest.raises(NotSent, match="token file"):
        send(style, lane, "k")


def test_the_token_of_a_send(tmp_path: pathlib.Path) -> None:
    seen: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def answer(request: pb.SendRequest, context: grpc.ServicerContext) -> pb.SendResponse:
        seen.put(dict(context.invocation_metadata()).get("authorization"))
        return pb.SendResponse(message_id="1:2:-1:-1")

    token = tmp_path / "token"
    token.write_text("one\n")
    with SendServer(answer) as server, ringfence.Lane(server.endpoint, token_file=str(token)) as lane:
        assert lane.send("k") == MessageID(1, 2)
        assert seen.get(timeout=WAIT) == "Bearer one"


PROPERTIES = {f"p{i}": "" for i in range(64)}


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("", {}),
        ("k" * 4097, {}),
        ("k", {"id": "i" * 257}),
        ("k", {"properties": {**PROPERTIES, "more": ""}}),
        ("k", {"properties": {"": "v"}}),
        ("k", {"properties": {"p": "v" * 4096}}),
        ("k", {"properties": {"Ringfence-Key": "v"}}),
    ],
)
def test_the_router_in_memory_refuses_events_as_routers_do(ringfence_router: Router, key: str, options: dict[str, Any]) -> None:
    with ringfence.Lane(ringfence_router.endpoint) as lane:
        lane.send("k" * 4096, id="i" * 256, properties={**PROPERTIES, "p0": "v" * 4094, "traceparent": ""})
        with pytest.raises(NotSent):
            lane.send(key, **options)
