"""Sessions with routers that refuse, choose another version, send what is new, or are reached by TLS or a Unix socket."""

from __future__ import annotations

import pathlib
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

import ringfence
from ringfence import errors
from ringfence.app.v1 import app_pb2 as pb
from ringfence.options import check
from ringfence.runner import Runner
from ringfence.stream import Stream
from ringfence.testing import Outcome, Router

WAIT = 30.0

Work = Callable[[Iterator[pb.WorkRequest], grpc.ServicerContext], Iterator[bytes]]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.002)


class Server:
    """A gRPC server whose method Work is the test's."""

    def __init__(self, work: Work, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        method: grpc.RpcMethodHandler[pb.WorkRequest, bytes] = grpc.stream_stream_rpc_method_handler(work, pb.WorkRequest.FromString, None)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("ringfence.app.v1.AppService", {"Work": method})])
        self.port = self._server.add_secure_port(address, credentials) if credentials else self._server.add_insecure_port(address)
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def welcome(**fields: Any) -> bytes:
    return pb.WorkResponse(welcome=pb.Welcome(version=1, **fields)).SerializeToString()


def aborts(code: grpc.StatusCode, welcomes: bool = False) -> Work:
    def work(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        if welcomes:
            yield welcome()
        context.abort(code, "as told")

    return work


def other_version(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield pb.WorkResponse(welcome=pb.Welcome(version=2)).SerializeToString()
    for _ in requests:
        pass


def go_away(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield welcome()
    yield pb.WorkResponse(go_away=pb.GoAway(reason="it stops", retry_after_ms=10)).SerializeToString()
    context.abort(grpc.StatusCode.UNAVAILABLE, "bye")


def nonsense(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield welcome()
    yield b"\xff\xff\xff"
    for _ in requests:
        pass


def receipt_of_nothing(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield welcome()
    yield pb.WorkResponse(receipt=7).SerializeToString()
    for _ in requests:
        pass


def no_number(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield welcome()
    yield pb.WorkResponse(deliveries=pb.Deliveries(deliveries=[pb.Delivery(delivery_id=1)])).SerializeToString()
    for _ in requests:
        pass


@pytest.mark.parametrize(
    ("work", "want"),
    [
        pytest.param(aborts(grpc.StatusCode.UNAVAILABLE), errors.Unreachable, id="unavailable"),
        pytest.param(aborts(grpc.StatusCode.UNAUTHENTICATED), errors.Unauthenticated, id="unauthenticated"),
        pytest.param(aborts(grpc.StatusCode.FAILED_PRECONDITION), errors.VersionMismatch, id="failed precondition"),
        pytest.param(aborts(grpc.StatusCode.RESOURCE_EXHAUSTED), errors.TooManyWorkers, id="resource exhausted"),
        pytest.param(aborts(grpc.StatusCode.INVALID_ARGUMENT), errors.Refused, id="refused"),
        pytest.param(aborts(grpc.StatusCode.INVALID_ARGUMENT, welcomes=True), errors.Broken, id="broken"),
        pytest.param(other_version, errors.VersionMismatch, id="another version"),
        pytest.param(go_away, errors.GoAway, id="go away"),
        pytest.param(nonsense, errors.Broken, id="a frame that cannot be decoded"),
        pytest.param(no_number, errors.Broken, id="deliveries without a number"),
        pytest.param(receipt_of_nothing, errors.Broken, id="a receipt for a frame that was not sent"),
    ],
)
def test_the_end_of_a_session_is_reported(work: Work, want: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    with Server(work) as server, ringfence.Worker(lambda event: None, server.endpoint, hooks=ringfence.Hooks(disconnected=ends.put)):
        first, second = ends.get(timeout=WAIT), ends.get(timeout=WAIT)
    assert (type(first), type(second)) == (want, want), "it dials again"
    assert f"{want.__name__}: " in caplog.text


def test_a_go_away_keeps_the_worker_away_for_a_minute_at_most(caplog: pytest.LogCaptureFixture) -> None:
    def work(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield welcome()
        yield pb.WorkResponse(go_away=pb.GoAway(reason="for ever", retry_after_ms=(1 << 32) - 1)).SerializeToString()
        context.abort(grpc.StatusCode.UNAVAILABLE, "bye")

    with Server(work) as server, ringfence.Worker(lambda event: None, server.endpoint):
        until(lambda: "dialing again in" in caplog.text)
    assert "dialing again in 60.00 s" in caplog.text


def test_sessions_that_do_not_last_are_further_and_further_apart(caplog: pytest.LogCaptureFixture) -> None:
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    work = aborts(grpc.StatusCode.UNAVAILABLE, welcomes=True)
    with Server(work) as server, ringfence.Worker(lambda event: None, server.endpoint, hooks=ringfence.Hooks(disconnected=ends.put)):
        for _ in range(6):
            ends.get(timeout=WAIT)
    pauses = [float(text.split()[0]) for text in caplog.text.split("dialing again in ")[1:]]
    assert pauses[4] >= 0.4, pauses


def test_no_router_and_no_token(tmp_path: pathlib.Path) -> None:
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    hooks = ringfence.Hooks(disconnected=ends.put)
    with ringfence.Worker(lambda event: None, f"unix:{tmp_path}/none.sock", hooks=hooks):
        assert isinstance(ends.get(timeout=WAIT), errors.Unreachable)
    with ringfence.Worker(lambda event: None, f"unix:{tmp_path}/none.sock", hooks=hooks, token_file=str(tmp_path / "none")):
        while not isinstance(ends.get(timeout=WAIT), errors.Unauthenticated):
            pass


def test_files_without_a_name_end_no_worker_in_silence() -> None:
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    hooks = ringfence.Hooks(disconnected=ends.put)
    tls = ringfence.TLS(ca_file=None, cert_file="", key_file="")  # type: ignore[arg-type]
    with ringfence.Worker(lambda event: None, "127.0.0.1:1", hooks=hooks, tls=tls):
        assert "TypeError" in str(ends.get(timeout=WAIT))
    with ringfence.Worker(lambda event: None, "127.0.0.1:1", hooks=hooks, token_file="a\0b"):
        while not isinstance(ends.get(timeout=WAIT), errors.Unauthenticated):
            pass


def test_hello_and_token(tmp_path: pathlib.Path) -> None:
    seen: queue.SimpleQueue[tuple[pb.WorkRequest, object]] = queue.SimpleQueue()

    def work(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        seen.put((next(requests), dict(context.invocation_metadata()).get("authorization")))
        context.abort(grpc.StatusCode.UNAVAILABLE, "once more")
        yield b""

    token = tmp_path / "token"
    token.write_text("first\n")
    with Server(work) as server, ringfence.Worker(lambda event: None, server.endpoint, token_file=str(token), name="me", max_in_flight=77):
        request, authorization = seen.get(timeout=WAIT)
        hello = request.hello
        assert (hello.worker, hello.max_in_flight, hello.version_min, hello.version_max) == ("me", 77, 1, 1)
        assert hello.sdk.startswith("ringfence-python/")
        assert "conformant" in hello.capabilities
        assert authorization == "Bearer first"
        token.write_text("second")
        while seen.get(timeout=WAIT)[1] != "Bearer second":
            pass


def test_a_unix_socket(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    address = f"unix:{tmp_path}/app.sock"
    with Server(ringfence_router._work, address), ringfence.Worker(lambda event: None, address):
        assert ringfence_router.deliver("k").outcome() == Outcome("done")


def openssl(folder: pathlib.Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_mutual_tls(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(tmp_path, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    for name in ("router", "app"):
        openssl(tmp_path, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (tmp_path / "extensions").write_text(f"subjectAltName=DNS:{name}")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extensions")
        openssl(tmp_path, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    read = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    credentials = grpc.ssl_server_credentials([(read["router.key"], read["router.pem"])], read["ca.pem"], require_client_auth=True)
    tls = ringfence.TLS(str(tmp_path / "ca.pem"), str(tmp_path / "app.pem"), str(tmp_path / "app.key"), server_name="router")
    with Server(ringfence_router._work, credentials=credentials) as server:
        with ringfence.Worker(lambda event: None, server.endpoint, tls=tls):
            assert ringfence_router.deliver("k").outcome() == Outcome("done")
        ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        with ringfence.Worker(lambda event: None, server.endpoint, hooks=ringfence.Hooks(disconnected=ends.put)):
            assert isinstance(ends.get(timeout=WAIT), errors.Unreachable), "without TLS there is no session"
        missing = ringfence.TLS(str(tmp_path / "none.pem"), tls.cert_file, tls.key_file)
        with ringfence.Worker(lambda event: None, server.endpoint, tls=missing, hooks=ringfence.Hooks(disconnected=ends.put)):
            while "none.pem" not in str(ends.get(timeout=WAIT)):
                pass


def test_frames_are_full_and_results_wait_for_their_receipt(ringfence_router: Router) -> None:
    """At most one Results frame is without a receipt, and their numbers have no gap."""
    frames: list[pb.WorkRequest] = []
    outstanding: list[int] = []
    handled = threading.Semaphore(0)

    def work(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        assert next(requests).HasField("hello")
        k = next(requests).ping.k
        yield welcome()
        yield pb.WorkResponse(pong=pb.Pong(k=k, remaining_ns=60_000_000_000)).SerializeToString()
        for number in range(1, 4):
            deliveries = [pb.Delivery(delivery_id=number * 1000 + i, key=b"k") for i in range(100)]
            yield pb.WorkResponse(deliveries=pb.Deliveries(number=number, deliveries=deliveries)).SerializeToString()
        answered = results = 0
        for request in requests:
            frames.append(request)
            if request.HasField("results"):
                outstanding.append(request.results.number)
                answered += len(request.results.results)
                while results < 300 and handled.acquire(timeout=WAIT):  # meanwhile the worker collects
                    results += 1
                yield pb.WorkResponse(receipt=request.results.number).SerializeToString()
                if answered == 300:
                    return

    done = threading.Event()
    hooks = ringfence.Hooks(disconnected=lambda error: done.set())
    with Server(work) as server, ringfence.Worker(lambda event: handled.release(), server.endpoint, hooks=hooks):
        done.wait(WAIT)
    first = outstanding[: outstanding.index(max(outstanding)) + 1]
    assert first == list(range(1, len(first) + 1))
    assert len(first) <= 10, "results are not collected"
    receipts = [request.receipt for request in frames if request.receipt]
    assert receipts == sorted(receipts)
    assert receipts[-1] == 3


def test_reports_of_progress_leave_room_for_those_of_others() -> None:
    """One handler reports in a loop before the sender gets its turn, and another once."""
    stream = Stream(Runner(check("127.0.0.1:1", {"max_in_flight": 2})))
    loops, reports = ringfence.Event("loops"), ringfence.Event("reports")
    loops.id, reports.id = 1, 2
    for event in [loops] * 100 + [reports] + [loops] * 100:
        stream.progress(event)
    frame, _ = stream._next()
    assert frame is not None
    assert sorted(pb.WorkRequest.FromString(frame).progress.delivery_ids) == [1, 2]
    assert stream._next() == (None, False), "a report was sent twice"
    stream.progress(loops)
    frame, _ = stream._next()
    assert frame is not None
    assert list(pb.WorkRequest.FromString(frame).progress.delivery_ids) == [1]


def test_a_result_after_a_receipt_waits_for_no_ping() -> None:
    first, second = threading.Event(), threading.Event()
    results: queue.SimpleQueue[list[int]] = queue.SimpleQueue()

    def handle(event: ringfence.Event) -> None:
        assert (first if event.key == b"a" else second).wait(WAIT)

    def work(requests: Iterator[pb.WorkRequest], context: grpc.ServicerContext) -> Iterator[bytes]:
        assert next(requests).HasField("hello")
        k = next(requests).ping.k
        yield welcome(limits=pb.Limits(ping_interval_ms=3_600_000))
        yield pb.WorkResponse(pong=pb.Pong(k=k, remaining_ns=3_600_000_000_000)).SerializeToString()
        deliveries = [pb.Delivery(delivery_id=1, key=b"a"), pb.Delivery(delivery_id=2, key=b"b")]
        yield pb.WorkResponse(deliveries=pb.Deliveries(number=1, deliveries=deliveries)).SerializeToString()
        for request in requests:
            if request.HasField("results"):
                results.put([result.delivery_id for result in request.results.results])
                until(lambda: stream().quiet)  # the sender waits for the receipt
                yield pb.WorkResponse(receipt=request.results.number).SerializeToString()

    with Server(work) as server, ringfence.Worker(handle, server.endpoint) as worker:

        def stream() -> Any:
            return worker._runner.live

        first.set()
        assert results.get(timeout=WAIT) == [1]
        until(lambda: stream()._receipt == 1)
        second.set()
        assert results.get(timeout=WAIT) == [2]
