"""The application's side of the stream to a Ringfence router, in one small file.

It keeps the rules that make handlers exclusive (docs/exclusivity.md, A4):

- a deadline comes from a Pong, counts from the sending of its Ping, by a clock that
  goes on while the machine sleeps and that NTP cannot slew, and is never moved once it
  has passed;
- a delivery starts only while the newest deadline lies ahead;
- what was revoked is not started, and what runs of it gets no more time, unless a
  Pong lists it as draining.

Python cannot stop a thread from outside: a handler that takes long calls
Event.check(), which raises KeyLost when the time is over, before each write.
"""
import os
import queue
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from ringfence.app.v1 import app_pb2 as pb
from ringfence.app.v1 import app_pb2_grpc

DONE, RETRY, REJECT = pb.RESULT_KIND_DONE, pb.RESULT_KIND_RETRY, pb.RESULT_KIND_REJECT
NOT_STARTED, CANCELLED = pb.RESULT_KIND_NOT_STARTED, pb.RESULT_KIND_CANCELLED


class Reject(Exception):
    """The event will never succeed: to the dead letter topic."""


class RetryAfter(Exception):
    """The event failed, and is to be tried again after this many seconds."""

    def __init__(self, seconds, reason=""):
        super().__init__(reason)
        self.seconds = seconds


class KeyLost(Exception):
    """Another process may work on the key now: write nothing."""


# Linux has a clock that NTP cannot slew, and one that goes on while the machine sleeps.
RAW_CLOCK = hasattr(time, "CLOCK_MONOTONIC_RAW") and hasattr(time, "CLOCK_BOOTTIME")
CAPABILITIES = ["conformant"] + (["raw_clock"] if RAW_CLOCK else [])  # without it the router gives shorter deadlines

asleep, asleep_lock = 0, threading.Lock()


def now():
    """Seconds on a clock that NTP cannot slew and that goes on while the machine sleeps: the
    hardware counter plus the time asleep, which is CLOCK_BOOTTIME less CLOCK_MONOTONIC."""
    global asleep
    if not RAW_CLOCK:
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    # MONOTONIC is read last: an interruption makes this too small, never too great.
    measured = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    if measured - asleep > 1_000_000:  # less than a millisecond is the time between the two readings
        with asleep_lock:
            asleep = max(asleep, measured)
    return (raw + asleep) / 1e9


def boot_ns():
    """Nanoseconds of the clock by which the router asks when handlers ran."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Event:
    """One event. key and payload are bytes."""

    def __init__(self, d, frame, stream):
        self.stream = stream
        self.id, self.partition, self.key, self.payload = d.delivery_id, d.partition, d.key, d.payload
        self.attempt, self.topic = d.attempt, frame.topics[d.topic]
        self.fencing_token, self.turn = frame.tokens[d.token], d.turn
        # For the database: sorts as text, see docs/sinks.md.
        self.fence = f"{self.fencing_token:019d}.{self.turn:020d}"
        self.message_id = (d.ledger_id, d.entry_id, d.topic_partition, d.batch_index)
        self.properties = {frame.names[p.name]: p.value for p in d.properties}
        self.started = self.revoked = False
        self.deadline = 0.0

    def check(self):
        if now() >= self.deadline:
            raise KeyLost

    def progress(self):
        """Reports that the work goes on: handler.timeout starts anew."""
        self.stream.requests.put(pb.WorkRequest(progress=pb.Progress(delivery_ids=[self.id])))


SILENCE_MAX = 10  # seconds without a frame, after which the router is gone


class Stream:
    """One stream to the router. The lock guards everything but the queue of requests."""

    def __init__(self, handler, pool, max_in_flight):
        self.handler, self.pool = handler, pool
        self.lock = threading.Lock()
        self.requests = queue.SimpleQueue()  # WorkRequest, or None at the end
        self.events, self.pings = {}, {}  # by delivery id; k -> when it was sent
        self.deadline, self.interval = 0.0, 0.2
        self.receipt = self.results = self.received = self.k = 0  # received: the router's receipt
        self.over = threading.Event()
        self.draining = self.suspended = self.intervals = False
        self.silence, self.away, self.reason_max = 0.0, 0.0, 500
        hello = pb.Hello(max_in_flight=max_in_flight, sdk="ringfence-python-example/1", capabilities=CAPABILITIES)
        self.requests.put(pb.WorkRequest(hello=hello))

    def ping(self, cancel):
        while True:
            with self.lock:
                self.k += 1
                self.pings[self.k] = now()  # before it is sent
                self.pings.pop(self.k - 8, None)  # the router answers only the newest ones
                self.requests.put(pb.WorkRequest(receipt=self.receipt, ping=pb.Ping(k=self.k)))
                self.silence += self.interval  # counted in turns, so that time asleep is none
                if self.silence > SILENCE_MAX:
                    cancel()
            if self.over.wait(self.interval):
                return

    def read(self, responses):
        for response in responses:  # in order: a Revoke counts before any later Pong
            with self.lock:
                self.silence, self.received = 0.0, max(self.received, response.receipt)
                getattr(self, "on_" + (response.WhichOneof("frame") or "receipt"))(response)
                self.end_if_drained()

    def on_receipt(self, _):
        pass

    def on_suspend(self, _):
        self.suspended = True

    def on_resume(self, _):
        self.suspended = False
        self.start()

    def on_welcome(self, response):
        if response.welcome.version != 1:
            raise ConnectionError(f"the router speaks version {response.welcome.version}")
        self.intervals = "intervals" in response.welcome.capabilities
        limits = response.welcome.limits
        self.interval, self.reason_max = limits.ping_interval_ms / 1000, limits.reason_max_bytes

    def on_go_away(self, response):
        self.away = response.go_away.retry_after_ms / 1000

    def on_deliveries(self, response):
        frame = response.deliveries
        self.receipt = frame.number
        for d in frame.deliveries:
            self.events[d.delivery_id] = e = Event(d, frame, self)
            if self.draining:  # Drain and this frame have crossed
                self.answer(e, NOT_STARTED)
        self.requests.put(pb.WorkRequest(receipt=self.receipt))
        self.start()

    def on_pong(self, response):
        pong, at = response.pong, now()
        sent = self.pings.pop(pong.k, None)
        if sent is None or pong.remaining_ns <= 0:
            return
        deadline, draining = sent + pong.remaining_ns / 1e9, set(pong.draining)
        self.deadline = max(self.deadline, deadline)
        for e in self.events.values():
            if e.started and at < e.deadline and (not e.revoked or e.id in draining):
                e.deadline = max(e.deadline, deadline)
        self.start()

    def on_revoke(self, response):
        revoke = response.revoke
        partitions, ids = set(revoke.partitions), set(revoke.delivery_ids)
        for e in list(self.events.values()):
            if revoke.all or e.partition in partitions or e.id in ids:
                e.revoked = True
                if not e.started:
                    self.answer(e, NOT_STARTED)
                elif e.id in ids:
                    e.deadline = 0.0  # it took too long: check raises at once

    def start(self):
        if self.suspended or now() >= self.deadline:
            return  # Resume or the next Pong lets them start
        for e in self.events.values():
            if not e.started:
                e.started, e.deadline = True, self.deadline
                self.pool.submit(self.work, e)

    def work(self, e):
        with self.lock:
            if e.id not in self.events:
                return
            if e.revoked or self.draining or self.over.is_set() or now() >= e.deadline:  # it has waited for a thread
                self.answer(e, NOT_STARTED)
                return
        kind, reason, after, began = DONE, "", 0, boot_ns()
        try:
            self.handler(e)
        except Reject as err:
            kind, reason = REJECT, str(err)
        except KeyLost:
            kind = CANCELLED
        except RetryAfter as err:
            kind, reason, after = RETRY, str(err), int(err.seconds * 1000)
        except BaseException as err:  # any failure of the handler, and an attempt to exit: it is tried again
            kind, reason = (RETRY, repr(err)) if now() < e.deadline else (CANCELLED, "")
        ended = boot_ns()
        with self.lock:
            self.answer(e, kind, reason, after, (began, ended - began) if self.intervals else (0, 0))

    def answer(self, e, kind, reason="", after=0, ran=(0, 0)):
        if self.events.pop(e.id, None) is None:
            return
        self.results += 1
        reason = reason.encode()[:self.reason_max].decode(errors="ignore")
        result = pb.Result(delivery_id=e.id, kind=kind, reason=reason, after_ms=after, started_ns=ran[0], took_ns=ran[1])
        self.requests.put(pb.WorkRequest(receipt=self.receipt, results=pb.Results(number=self.results, results=[result])))
        self.end_if_drained()

    def drain(self):
        """Asks for no more; what runs is finished. The lock is held."""
        if not self.draining:
            self.draining = True
            self.requests.put(pb.WorkRequest(receipt=self.receipt, drain=pb.Drain(reason="the application stops")))
            for e in [e for e in self.events.values() if not e.started]:
                self.answer(e, NOT_STARTED)
            self.end_if_drained()

    def end_if_drained(self):
        if self.draining and not self.events and self.received == self.results:
            self.requests.put(None)


def credentials():
    """What the router asks its workers for if it has app.token_file; read at each connection."""
    path = os.environ.get("RINGFENCE_APP_TOKEN_FILE")
    if not path:
        return []
    with open(path) as file:
        return [("authorization", "Bearer " + file.read().strip())]


def run(handler, endpoint=None, max_in_flight=16):
    """Calls handler(event) for every event, until SIGTERM or SIGINT; connects again whenever
    the stream breaks. Handlers of different keys run at once, of one key never."""
    endpoint = endpoint or os.environ.get("RINGFENCE_APP_ENDPOINT", "127.0.0.1:16650")
    stopping, current = threading.Event(), []

    def stop(*_):
        stopping.set()
        for s in current:
            threading.Thread(target=lambda: s.lock.acquire() and (s.drain(), s.lock.release())).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    pause = 0.05
    with ThreadPoolExecutor(max_in_flight) as pool:
        while not stopping.is_set():
            stream = Stream(handler, pool, max_in_flight)
            current[:] = [stream]
            with grpc.insecure_channel(endpoint, options=[("grpc.max_receive_message_length", 66 << 20)]) as channel:
                pinging = threading.Thread()
                try:
                    responses = app_pb2_grpc.AppServiceStub(channel).Work(iter(stream.requests.get, None), metadata=credentials())
                    pinging = threading.Thread(target=stream.ping, args=[responses.cancel])
                    pinging.start()
                    stream.read(responses)
                    pause = 0.05
                except (grpc.RpcError, OSError) as err:
                    if not stopping.is_set():
                        print(f"no stream to the router: {err.code() if isinstance(err, grpc.RpcError) else err}", flush=True)
                finally:
                    stream.over.set()
                    stream.requests.put(None)
                    if pinging.ident:  # it was started
                        pinging.join()
            if not stopping.wait(max(stream.away, pause * random.uniform(0.5, 1.5))):
                pause = min(2 * pause, 2)
