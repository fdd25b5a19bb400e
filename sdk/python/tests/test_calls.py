"""Calls: handlers of both styles, and the lane by which they are called."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from mute import Mute

import ringfence
from ringfence import ArgumentError, Call, CallError, CallFailure, CallHandler, Event
from ringfence.app.v1 import app_pb2 as app
from ringfence.call import REPLY_MAX
from ringfence.caller import path_of
from ringfence.event import Arrival
from ringfence.inbox import Answer
from ringfence.lane.v1 import lane_pb2 as pb
from ringfence.options import check
from ringfence.runner import Runner
from ringfence.sending import PAYLOAD_MAX, REQUEST_MAX
from ringfence.stream import Stream
from ringfence.testing import Outcome, Router
from ringfence.xxh64 import xxh64

WAIT = 30.0
FRAME_MAX = 2 << 20  # bytes that a router takes


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


def start(router: Router, style: str, body: Callable[[Call], Any], **options: Any) -> ringfence.Worker:
    """Starts a worker whose handler of the method do is this one."""
    return router.start(styled(style, lambda event: None), calls={"do": styled(style, body)}, **options)


def fail(error: BaseException) -> Callable[[Call], bytes]:
    def body(call: Call) -> bytes:
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(lambda call: call.payload * 2, Outcome("done", reply=b"hellohello"), id="a reply"),
        pytest.param(lambda call: bytearray(b"r"), Outcome("done", reply=b"r"), id="a bytearray"),
        pytest.param(lambda call: None, Outcome("done"), id="no reply"),
        pytest.param(lambda call: bytes(REPLY_MAX), Outcome("done", reply=bytes(REPLY_MAX)), id="the largest reply"),
        pytest.param(
            lambda call: bytes(REPLY_MAX + 1),
            Outcome("retry", reason="a reply of 1048577 bytes: want at most 1048576", code="too_large"),
            id="a larger one",
        ),
        pytest.param(lambda call: "text", Outcome("retry", reason="TypeError: the handler returned str: want bytes or None"), id="no bytes"),
        pytest.param(fail(CallFailure("no_stock", "none left")), Outcome("retry", reason="none left", code="no_stock"), id="a failure with a code"),
        pytest.param(fail(CallFailure("x" * 64)), Outcome("retry", reason="CallFailure", code="x" * 64), id="the longest code"),
        pytest.param(fail(CallFailure("é" * 33, "long")), Outcome("retry", reason="long"), id="a longer code"),
        pytest.param(fail(ValueError("no database")), Outcome("retry", reason="ValueError: no database"), id="an exception"),
        pytest.param(fail(SystemExit("exit")), Outcome("retry", reason="SystemExit: exit"), id="an attempt to exit"),
        pytest.param(fail(ringfence.Reject("never")), Outcome("reject", reason="never"), id="reject"),
    ],
)
def test_outcomes(ringfence_router: Router, style: str, body: Callable[[Call], Any], want: Outcome) -> None:
    start(ringfence_router, style, body)
    assert ringfence_router.call("k", "do", b"hello").outcome() == want
    assert ringfence_router.deliver("k").outcome() == Outcome("done"), "the worker goes on"


def test_a_call_reaches_its_handler(ringfence_router: Router, style: str) -> None:
    seen: queue.SimpleQueue[Call] = queue.SimpleQueue()
    start(ringfence_router, style, seen.put)
    before = time.time()
    ringfence_router.call(b"\xff", "do", b"payload", id="id-1", timeout=60).outcome()
    call = seen.get(timeout=WAIT)
    assert (call.key, call.key_text, call.method, call.payload, call.id) == (b"\xff", "\udcff", "do", b"payload", "id-1")
    assert before + 59 < call.deadline.timestamp() < time.time() + 61
    assert call.fence.token == 1 and call.fence.turn > 0
    assert "payload" not in repr(call)


def test_a_method_without_a_handler(ringfence_router: Router, style: str) -> None:
    start(ringfence_router, style, lambda call: None)
    assert ringfence_router.call("k", "other").outcome() == Outcome(
        "not_started", reason="this worker has no handler for the method", code="no_handler"
    )


def test_a_worker_without_calls(ringfence_router: Router, style: str) -> None:
    ringfence_router.start(styled(style, lambda event: None))
    assert ringfence_router.call("k", "do").outcome().code == "no_handler"
    assert ringfence_router.deliver("k").outcome() == Outcome("done")


def test_hooks_see_calls(ringfence_router: Router, style: str) -> None:
    seen: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    hooks = ringfence.Hooks(finished=lambda event, result: seen.put((event.method, result.kind)))
    start(ringfence_router, style, lambda call: b"r", hooks=hooks)
    ringfence_router.call("k", "do").outcome()
    ringfence_router.call("k", "other").outcome()
    ringfence_router.deliver("k").outcome()
    assert [seen.get(timeout=WAIT) for _ in range(3)] == [("do", "done"), ("other", "not_started"), ("", "done")]


def test_a_caller_that_is_gone(ringfence_router: Router, style: str) -> None:
    started = threading.Event()
    causes: queue.SimpleQueue[object] = queue.SimpleQueue()

    def plain(call: Call) -> None:
        started.set()
        try:
            while True:
                call.check()
                time.sleep(0.002)
        except ringfence.CallerGone:
            causes.put(call.cause)
            raise

    async def task(call: Call) -> None:
        started.set()
        try:
            await asyncio.sleep(WAIT)
        finally:
            causes.put(call.cause)

    handler: CallHandler = plain if style == "threads" else task
    ringfence_router.start(styled(style, lambda event: None), calls={"do": handler})
    call = ringfence_router.call("k", "do")
    assert started.wait(WAIT)
    waits = ringfence_router.call("k", "do")
    waits.give_up()
    call.give_up()
    assert isinstance(causes.get(timeout=WAIT), ringfence.CallerGone)
    assert call.outcome() == Outcome("cancelled")
    assert waits.outcome() == Outcome("not_started")
    assert ringfence_router.deliver("k").outcome() == Outcome("done")
    started.clear()
    with ringfence.Lane(ringfence_router.endpoint) as lane:

        def ask() -> None:
            with pytest.raises(CallError):
                lane.invoke("k", "do", timeout=10 * WAIT)

        caller = threading.Thread(target=ask)
        caller.start()
        assert started.wait(WAIT)
    assert isinstance(causes.get(timeout=WAIT), ringfence.CallerGone), "the lane was closed"
    caller.join(WAIT)


def test_a_handler_timeout_is_not_a_caller_that_is_gone() -> None:
    causes: queue.SimpleQueue[object] = queue.SimpleQueue()

    def handler(call: Call) -> None:
        try:
            while True:
                call.check()
                time.sleep(0.002)
        finally:
            causes.put(call.cause)

    with Router(handler_timeout=1) as router:
        router.start(lambda event: None, calls={"do": handler})
        assert router.call("k", "do").outcome().kind == "timed_out"
    assert isinstance(causes.get(timeout=WAIT), ringfence.HandlerTimeout)


def test_a_lost_key(ringfence_router: Router) -> None:
    started = threading.Event()

    async def task(call: Call) -> None:
        started.set()
        await asyncio.sleep(WAIT)

    ringfence_router.start(styled("async", lambda event: None), calls={"do": task})
    call = ringfence_router.call("k", "do")
    assert started.wait(WAIT)
    ringfence_router.lose("k")
    assert call.outcome() == Outcome("cancelled")


def test_failures_are_logged_unless_they_are_meant(ringfence_router: Router, caplog: pytest.LogCaptureFixture) -> None:
    start(ringfence_router, "threads", fail(ValueError("x")))
    with caplog.at_level(logging.WARNING):
        ringfence_router.call("secret", "do", "secret").outcome()
    assert "handler failed: method do: ValueError at " in caplog.text
    assert "secret" not in caplog.text


async def coroutine_function(call: Call) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ({"": len}, "the method ''"),
        ({"a b": len}, "the method 'a b'"),
        ({"a\n": len}, "the method"),
        ({"x" * 65: len}, "want 1 to 64"),
        ({"do": None}, "want a function"),
        ({"do": coroutine_function}, "want a plain function"),
    ],
)
def test_bad_handlers(calls: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        ringfence.Worker(lambda event: None, calls=calls)


def test_a_plain_handler_beside_a_coroutine_function() -> None:
    async def handle(event: Event) -> None: ...

    with pytest.raises(ArgumentError, match="want a coroutine function"):
        ringfence.Worker(handle, calls={"do": lambda call: b""})


@pytest.mark.parametrize(
    ("calls", "want"), [(None, False), ({}, False), ({"do": lambda call: b""}, True)], ids=["no calls", "an empty dict", "a handler"]
)
def test_the_capability(calls: dict[str, CallHandler] | None, want: bool) -> None:
    runner = Runner(check("127.0.0.1:1", {"calls": calls}))
    hello = app.WorkRequest.FromString(next(Stream(runner).requests())).hello
    assert ("calls" in hello.capabilities) is want


def frames(done: int, replies: list[int]) -> list[app.Results]:
    """Returns the frames of so many results that are only DONE, and of calls with replies of these sizes."""
    stream = Stream(Runner(check("127.0.0.1:1", {"calls": {"do": lambda call: b""}})))
    stream.inbox.done = list(range(done))
    stream.inbox.answers = [Answer(done + i, app.RESULT_KIND_DONE, reply=bytes(size)) for i, size in enumerate(replies)]
    got = []
    while stream.inbox.done or stream.inbox.answers:
        data, _ = stream._next()
        assert data is not None
        assert len(data) < FRAME_MAX
        got.append(app.WorkRequest.FromString(data).results)
        stream._receipt = stream._sent
    return got


@pytest.mark.parametrize(
    ("done", "replies", "want"),
    [
        (0, [1 << 20] * 3, [1, 1, 1]),
        (5, [1 << 20], [5, 1]),
        (5, [10, 10], [7]),
        (0, [900 << 10, 50 << 10, 900 << 10], [2, 1]),
        (32_768, [10], [32_768, 1]),
        (40_000, [900 << 10], [32_768, 7232, 1]),
        (0, [0] * 1000, [963, 37]),
    ],
)
def test_frames_of_replies(done: int, replies: list[int], want: list[int]) -> None:
    got = frames(done, replies)
    assert [len(frame.results) for frame in got] == want
    assert sum(len(result.reply) for frame in got for result in frame.results) == sum(replies)


# The caller's half.


def test_xxh64() -> None:
    for text, want in {
        "": 0xEF46DB3751D8E999,
        "a": 0xD24EC4F1A98C6E5B,
        "abc": 0x44BC2CF5AD770999,
        "message digest": 0x066ED728FCEEB3BE,
        "abcdefghijklmnopqrstuvwxyz": 0xCFE1F278FA89835C,
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789": 0xAAA46907D3047814,
        "1234567890" * 8: 0xE04A477F19EE145D,
    }.items():
        assert xxh64(text.encode()) == want, text


def test_the_path() -> None:
    event = Event("a")
    assert path_of(None) == []
    assert path_of(event) == [0xD24EC4F1A98C6E5B]
    event._call = Arrival("do", "", 0, (1, 2))
    assert path_of(Call._of(event)) == path_of(event) == [1, 2, 0xD24EC4F1A98C6E5B]


@pytest.fixture
def lane(ringfence_router: Router) -> Iterator[ringfence.Lane]:
    with ringfence.Lane(ringfence_router.endpoint) as lane:
        yield lane


def invoke(style: str, lane: ringfence.Lane, *arguments: Any, **options: Any) -> bytes:
    if style == "threads":
        return lane.invoke(*arguments, **options)
    return asyncio.run(lane.invoke_async(*arguments, **options))


def test_a_lane(ringfence_router: Router, lane: ringfence.Lane, style: str) -> None:
    start(ringfence_router, style, lambda call: f"{call.key_text} {call.id} {call.payload!r}".encode())
    assert invoke(style, lane, "k", "do", b"x", id="id-1") == b"k id-1 b'x'"
    assert invoke(style, lane, b"k", "do") == b"k  b''"
    with pytest.raises(CallError) as caught:
        invoke(style, lane, "k", "other")
    assert (caught.value.outcome, caught.value.code) == ("not_run", "no_handler")
    assert str(caught.value) == "the call has not run (no_handler): this worker has no handler for the method"


def test_a_lane_and_a_failure(ringfence_router: Router, lane: ringfence.Lane, style: str) -> None:
    start(ringfence_router, style, fail(CallFailure("no_stock", "none left")))
    with pytest.raises(CallError) as caught:
        invoke(style, lane, "k", "do")
    assert (caught.value.outcome, caught.value.code, caught.value.text) == ("failed", "no_stock", "none left")


def test_a_lane_and_a_timeout(ringfence_router: Router, lane: ringfence.Lane, style: str) -> None:
    begun = threading.Event()

    def body(call: Call) -> None:
        begun.set()
        while True:
            call.check()
            time.sleep(0.002)

    start(ringfence_router, "threads", body)
    timeout = 0.2
    while True:
        with pytest.raises(CallError) as caught:
            invoke(style, lane, "k", "do", timeout=timeout)
        if begun.is_set() or timeout > WAIT:
            break
        timeout *= 2  # on a busy machine a call may be over before its handler begins
    assert caught.value.outcome == "unknown"
    ringfence_router.lose("k")  # also if the router could not end it


def test_a_cycle(ringfence_router: Router, lane: ringfence.Lane, style: str) -> None:
    def plain(call: Call) -> bytes:
        try:
            return lane.invoke(call.key, "do", caller=call)
        except CallError as error:
            return error.code.encode()

    async def task(call: Call) -> bytes:
        try:
            return await lane.invoke_async(call.key, "do", caller=call)
        except CallError as error:
            return error.code.encode()

    handler: CallHandler = plain if style == "threads" else task
    ringfence_router.start(styled(style, lambda event: None), calls={"do": handler})
    assert lane.invoke("k", "do") == b"cycle"


def test_a_cancelled_task_takes_its_call_back(ringfence_router: Router, lane: ringfence.Lane) -> None:
    opened = threading.Event()
    start(ringfence_router, "threads", lambda call: opened.wait(WAIT) and None)

    async def cancel() -> None:
        task = asyncio.create_task(lane.invoke_async("k", "do"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    opened.set()


class LaneServer:
    """A router that answers each Invoke as the test says."""

    def __init__(self, answer: Callable[[pb.InvokeRequest, grpc.ServicerContext], pb.InvokeResponse]) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        method: Any = grpc.unary_unary_rpc_method_handler(answer, pb.InvokeRequest.FromString, pb.InvokeResponse.SerializeToString)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("ringfence.lane.v1.LaneService", {"Invoke": method})])
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> LaneServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "not_run"),
        (grpc.StatusCode.UNIMPLEMENTED, "not_run"),
        (grpc.StatusCode.UNAUTHENTICATED, "not_run"),
        (grpc.StatusCode.PERMISSION_DENIED, "not_run"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "not_run"),
        (grpc.StatusCode.UNAVAILABLE, "unknown"),
        (grpc.StatusCode.INTERNAL, "unknown"),
        (grpc.StatusCode.CANCELLED, "unknown"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "unknown"),
    ],
)
def test_statuses(code: grpc.StatusCode, outcome: str, style: str) -> None:
    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        context.abort(code, "as told")

    again = code == grpc.StatusCode.RESOURCE_EXHAUSTED  # until the call's time is over
    with LaneServer(answer) as server, ringfence.Lane(server.endpoint) as lane, pytest.raises(CallError, match="as told") as caught:
        invoke(style, lane, "k", "do", timeout=2 if again else WAIT)
    assert caught.value.outcome == outcome
    assert caught.value.code == ("overloaded" if again else "")


def test_a_call_in_a_crowd(style: str) -> None:
    seen: list[pb.InvokeRequest] = []

    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        seen.append(request)
        if len(seen) < 20:  # more often than gRPC itself would try
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls that have not sent their request yet")
        return pb.InvokeResponse(outcome=pb.OUTCOME_REPLIED, reply=b"r")

    with LaneServer(answer) as server, ringfence.Lane(server.endpoint) as lane:
        assert invoke(style, lane, "k", "do", timeout=WAIT) == b"r"
    assert len(seen) == 20
    assert seen[0].timeout_ms > seen[-1].timeout_ms > 1000, "its time is not longer for that"


def test_a_router_that_is_far(style: str) -> None:
    """An attempt to connect takes a few round trips, and on a busy machine longer."""

    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        return pb.InvokeResponse(outcome=pb.OUTCOME_REPLIED, reply=b"r")

    with LaneServer(answer) as server, Mute(server.endpoint, delay=0.25) as proxy, ringfence.Lane(proxy.endpoint) as lane:
        assert invoke(style, lane, "k", "do", timeout=WAIT) == b"r"


def test_a_dead_connection(style: str) -> None:
    """Nothing ends it: the first call over it ends by its deadline, the next one uses another."""

    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        return pb.InvokeResponse(outcome=pb.OUTCOME_REPLIED, reply=b"r")

    with LaneServer(answer) as server, Mute(server.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane:
        for _ in range(2):
            assert invoke(style, lane, "k", "do", timeout=WAIT) == b"r"
            proxy.mute()
            with pytest.raises(CallError) as caught:
                invoke(style, lane, "k", "do", timeout=0.2)
            assert caught.value.outcome == "unknown"
        assert invoke(style, lane, "k", "do", timeout=WAIT) == b"r"
        proxy.mute()
        with pytest.raises(ringfence.MaybeSent):
            lane.send("k", timeout=0.2)
        assert invoke(style, lane, "k", "do", timeout=WAIT) == b"r"
        assert proxy.count == 4


def test_a_timeout_shorter_than_connecting(style: str) -> None:
    """Calls replace the attempt to connect of those before them, but not before that has had its time."""

    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        return pb.InvokeResponse(outcome=pb.OUTCOME_REPLIED, reply=b"r")

    with LaneServer(answer) as server, Mute(server.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane:
        proxy.connecting = 2.5  # longer than a call waits for its answer
        until = time.monotonic() + 60
        while True:
            try:
                assert invoke(style, lane, "k", "do", timeout=0.1) == b"r"
                return
            except CallError:
                assert time.monotonic() < until, f"no call has reached the router over {proxy.count} connections"


@pytest.mark.parametrize(
    "bad", [{"key": "k\ud800"}, {"method": "do\udfff"}, {"payload": "\ud800"}, {"id": "order\ud800"}], ids=lambda bad: next(iter(bad))
)
def test_what_is_no_text_is_not_called(bad: dict[str, str], style: str) -> None:
    with ringfence.Lane("127.0.0.1:1") as lane:
        with pytest.raises(ArgumentError, match=f"^{next(iter(bad))}: half of a surrogate pair"):
            invoke(style, lane, **{"key": "k", "method": "do", **bad})
        if "key" in bad:
            with pytest.raises(ArgumentError, match=r"^key: half of a surrogate pair"):
                lane.reserve(bad["key"])


@pytest.mark.parametrize(
    ("key", "payload", "text"),
    [
        ("k", "é" * (PAYLOAD_MAX // 2) + "e", "a payload of 1048577 bytes: want at most 1048576"),
        ("k", bytes(3 * PAYLOAD_MAX), "a payload of 3145728 bytes: want at most 1048576"),
        ("k" * REQUEST_MAX, b"", "a request of 20971.. bytes: want at most 2097152"),
    ],
)
def test_what_is_too_large_is_not_called(key: str, payload: bytes | str, text: str, style: str) -> None:
    count = 0

    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        nonlocal count
        count += 1
        return pb.InvokeResponse(outcome=pb.OUTCOME_REPLIED, reply=b"r")

    with LaneServer(answer) as server, ringfence.Lane(server.endpoint) as lane:
        assert invoke(style, lane, "k", "do", bytes(PAYLOAD_MAX)) == b"r"
        with pytest.raises(CallError, match=text) as caught:
            invoke(style, lane, key, "do", payload, timeout=WAIT)
    assert (caught.value.outcome, caught.value.code, count) == ("not_run", "too_large", 1)


@pytest.mark.parametrize(
    ("outcome", "want"),
    [
        (pb.OUTCOME_FAILED, "failed"),
        (pb.OUTCOME_NOT_RUN, "not_run"),
        (pb.OUTCOME_UNKNOWN, "unknown"),
        (pb.OUTCOME_DONE_BEFORE, "done_before"),
        (pb.OUTCOME_UNSPECIFIED, "unknown"),
        (99, "unknown"),
    ],
)
def test_outcomes_of_a_router(outcome: Any, want: str) -> None:
    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        return pb.InvokeResponse(outcome=outcome, code="c", text="why", retry_after_ms=1500)

    with LaneServer(answer) as server, ringfence.Lane(server.endpoint) as lane, pytest.raises(CallError) as caught:
        lane.invoke("k", "do")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.outcome, error.code, error.text, error.retry_after) == (want, "c", "why", 1.5)


def test_what_a_lane_sends(tmp_path: pathlib.Path) -> None:
    seen: queue.SimpleQueue[tuple[pb.InvokeRequest, Any, tuple[float, float]]] = queue.SimpleQueue()

    def answer(request: pb.InvokeRequest, context: grpc.ServicerContext) -> pb.InvokeResponse:
        left = context.time_remaining()
        seen.put((request, dict(context.invocation_metadata()).get("authorization"), (left, left + time.monotonic())))
        return pb.InvokeResponse(outcome=pb.OUTCOME_REPLIED, reply=bytes(REPLY_MAX))

    token = tmp_path / "token"
    token.write_text("one\n")
    with LaneServer(answer) as server, ringfence.Lane(server.endpoint, token_file=str(token)) as lane:
        begun = time.monotonic()
        assert lane.invoke("é", "do", "ü", id="id-1", timeout=2.5, caller=Event("a")) == bytes(REPLY_MAX)
        request, authorization, (left, deadline) = seen.get(timeout=WAIT)
        assert (request.key, request.method, request.payload, request.id, request.timeout_ms) == ("é".encode(), "do", "ü".encode(), "id-1", 2500)
        assert list(request.path) == [0xD24EC4F1A98C6E5B]
        assert authorization == "Bearer one"
        assert deadline > begun + 3, "the router's own answer comes first"
        assert left < 4
        token.write_text("two")
        lane.invoke("k", "do")
        request, authorization, _ = seen.get(timeout=WAIT)
        assert authorization == "Bearer two"
        assert (request.id, request.timeout_ms, list(request.path)) == ("", 10_000, [])
        token.unlink()
        with pytest.raises(CallError, match="token file") as caught:
            lane.invoke("k", "do")
        assert caught.value.outcome == "not_run"
        for timeout in (0, -1, float("nan"), float("inf"), True, "1"):
            with pytest.raises(ArgumentError, match="timeout"):
                lane.invoke("k", "do", timeout=timeout)  # type: ignore[arg-type]


def test_no_router(style: str) -> None:
    with ringfence.Lane("127.0.0.1:1") as lane:
        for _ in range(2):
            with pytest.raises(CallError) as caught:
                invoke(style, lane, "k", "do")
            assert (caught.value.outcome, caught.value.code) == ("not_run", "unreachable")
    with pytest.raises(CallError, match="the lane was closed") as caught:
        invoke(style, lane, "k", "do")
    assert caught.value.outcome == "not_run"


FORKS = """
import os, signal, sys, threading, warnings
import ringfence

lane = ringfence.Lane(sys.argv[1])
lane.invoke("k", "do")

def calls():
    while True:
        try:
            lane.invoke("k", "do")
        except ringfence.CallError:
            pass

for _ in range(4):
    threading.Thread(target=calls, daemon=True).start()
warnings.simplefilter("ignore")  # Python itself warns of a fork with threads
child = os.fork()
if child == 0:
    signal.alarm(20)  # a request that does not end leaves no process behind
    for ask in (lambda: lane.invoke("k", "do", timeout=1), lambda: lane.send("k", timeout=1), lambda: lane.reserve("k")):
        try:
            ask()
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""


def test_a_lane_after_a_fork(ringfence_router: Router) -> None:
    """gRPC's threads are not in the child: with others under way in the parent, a request of the child never ends, not even by its timeout."""
    start(ringfence_router, "threads", lambda call: call.payload)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", FORKS, ringfence_router.endpoint]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=WAIT, check=True)
    assert ended.stdout.splitlines() == ["the lane was made before a fork: make another one in the child process"] * 3


def test_a_call_in_a_unit_test() -> None:
    call = Call("user-7", "charge", "4200", id="order-8", timeout=3)
    assert (call.key, call.method, call.payload, call.id) == (b"user-7", "charge", b"4200", "order-8")
    assert call.cause is None and not call.cancelled and call.lease_until is None
    call.check()


@pytest.mark.parametrize(
    ("key", "method", "options"),
    [
        ("", "do", {}),
        ("k" * 4097, "do", {}),
        ("k", "", {}),
        ("k", "m" * 65, {}),
        ("k", "do it", {}),
        ("k", "do", {"id": "i" * 129}),
        ("k", "do", {"timeout": 600.1}),
    ],
)
def test_the_router_in_memory_refuses_calls_as_routers_do(
    ringfence_router: Router, lane: ringfence.Lane, key: str, method: str, options: dict[str, Any]
) -> None:
    start(ringfence_router, "threads", lambda call: b"r")
    assert lane.invoke("k" * 4096, "do", id="i" * 128, timeout=600) == b"r"
    with pytest.raises(CallError) as caught:
        lane.invoke(key, method, **options)
    assert (caught.value.outcome, caught.value.code) == ("not_run", "")
