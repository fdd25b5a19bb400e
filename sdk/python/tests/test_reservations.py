"""Reservations: the permission of a holder, and both styles against a router that answers as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import pickle
import queue
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from itertools import pairwise
from typing import Any

import grpc
import pytest
from mute import Mute

import ringfence
from ringfence import ArgumentError, Event, Fence, KeyLost, NotReserved
from ringfence.clock import RAW, LeaseClock, system_clock
from ringfence.lane.v1 import lane_pb2 as pb
from ringfence.reservation import GRACE, RENEWALS_MAX, Holder, Permission
from ringfence.sending import REQUEST_MAX

WAIT = 30.0
LEASE = 1.5  # seconds of the routers here
LONG = 3.0  # of reservations that are renewed, which may be late, too
LATE = 5.0  # seconds that a busy machine may be late
SECOND = 1_000_000_000


# The permission, which needs no clock.


def test_permission_counts_from_the_ask() -> None:
    p = Permission()
    p.ask(100)
    p.granted(50, 120)
    assert p.until == 150
    assert not p.overdue(149)
    assert p.overdue(150)


def test_a_grant_after_a_long_wait_gives_none() -> None:
    for remaining in (0, -5, 50, 1800):
        p = Permission()
        p.ask(100)
        p.granted(remaining, 1000)
        assert p.until is None
        k = p.renew(1001)
        p.renewed(k, 50, 1010)
        assert p.until == 1051


def test_renewals_extend_from_their_sending() -> None:
    p = Permission()
    p.ask(0)
    p.granted(100, 1)
    first, second = p.renew(10), p.renew(20)
    p.renewed(second, 100, 50)
    assert p.until == 120
    p.renewed(first, 1000, 51)  # older: it was answered with the second
    p.renewed(99, 1000, 52)  # never sent
    p.renewed(second, 1000, 53)  # twice
    assert p.until == 120
    p.renewed(p.renew(60), 0, 61)
    p.renewed(p.renew(62), 10, 63)  # less than before
    assert p.until == 120


def test_short_leases_are_renewed_more_often() -> None:
    for remaining, every in ((1.76, 0.5), (0.6, 0.2), (0.03, 0.02)):
        p = Permission()
        p.granted(int(remaining * SECOND), 0)
        assert p.every == pytest.approx(every)


def test_a_ttl_begins_when_the_log_has_it() -> None:
    p = Permission(ttl=30)
    p.ask(0)
    p.granted(int(1.76 * SECOND), 0)
    assert not p.may_begin
    p.renewed(p.renew(0), int(1.76 * SECOND), 0)
    assert not p.may_begin
    assert p.every == 0.5
    p.renewed(p.renew(0), 30 * SECOND, 0, covered=True)
    assert p.may_begin
    assert p.every == 5
    p.granted(int(1.76 * SECOND), SECOND)  # at the next owner it is live at first
    p.renewed(p.renew(SECOND), int(1.76 * SECOND), SECOND)
    assert (p.until, p.every) == (30 * SECOND, 0.5)
    p.renewed(p.renew(2 * SECOND), 30 * SECOND, 2 * SECOND, covered=True)
    assert (p.until, p.every) == (32 * SECOND, 5)


def test_long_ttls_are_renewed_every_ten_seconds() -> None:
    for ttl, every in ((5, 5 / 6), (60, 10), (300, 10)):
        p = Permission(ttl)
        p.renewed(p.renew(0), ttl * SECOND, 0, covered=True)
        assert p.every == pytest.approx(every)


def test_what_is_covered_too_late_does_not_begin() -> None:
    p = Permission(ttl=30)
    p.ask(0)
    p.granted(SECOND, 0)
    p.renewed(p.renew(0), 30 * SECOND, SECOND, covered=True)
    assert not p.may_begin


def test_a_passed_deadline_is_never_extended() -> None:
    p = Permission()
    p.ask(0)
    p.granted(100, 1)
    k = p.renew(90)
    p.renewed(k, 100, 100)
    assert p.until == 100
    p.ask(101)
    p.granted(1000, 102)
    assert p.until == 100


def test_a_bound_on_renewals() -> None:
    p = Permission()
    p.ask(0)
    p.granted(10_000, 0)
    for at in range(RENEWALS_MAX + 1):
        p.renew(at)
    p.renewed(RENEWALS_MAX + 1, 1 << 60, 100)
    assert p.until == 10_000


def test_permission_at_random() -> None:
    """Whatever comes, there is no more permission than the router has given, counted from before it was asked."""
    for seed in range(300):
        rng = random.Random(seed)
        p, now, owner, lost, covered = (
            Permission(ttl := rng.choice([0, 30])),
            0,
            0,
            False,
            False,
        )  # owner: until when the router has promised, at most
        p.ask(now)
        asked, sent = now, dict[int, int]()
        for _ in range(60):
            now += rng.choice([0, 1, 5, 30])
            lost = lost or p.overdue(now)
            before = p.until
            match rng.randrange(4):
                case 0:
                    sent[p.renew(now)] = now
                case 1:
                    asked = now
                    p.ask(now)
                case 2:
                    remaining = rng.randrange(-5, 60)
                    owner = max(owner, asked + remaining)
                    p.granted(remaining, now)
                case 3:
                    k, remaining, says = rng.randrange(1, 40), rng.randrange(-5, 60), rng.random() < 0.2
                    if k in sent:
                        owner = max(owner, sent[k] + remaining)
                    covered = covered or says
                    p.renewed(k, remaining, now, says)
            assert p.until is None or p.until <= owner, seed
            assert not p.may_begin or (p.until is not None and (covered or ttl == 0)), seed
            assert before is None or (p.until is not None and p.until >= before), seed
            assert not lost or p.until == before, seed
            assert p.every >= 0.02, seed


# Both styles, and a router.


class Stream:
    """The router's end of one stream of Reserve."""

    def __init__(self, number: int, requests: Iterator[pb.ReserveRequest], context: grpc.ServicerContext) -> None:
        self.number, self.requests, self.context = number, requests, context
        self.ask = next(requests).ask
        self.token = dict(context.invocation_metadata()).get("authorization")

    def granted(self, seconds: float = LEASE, token: int = 7) -> pb.ReserveResponse:
        return pb.ReserveResponse(granted=pb.Granted(token=token, turn=8, remaining_ns=int(seconds * SECOND)))

    def renewed(self, k: int, seconds: float = LEASE, covered: bool = False) -> pb.ReserveResponse:
        return pb.ReserveResponse(renewed=pb.Renewed(k=k, remaining_ns=int(seconds * SECOND), covered=covered))

    def over(self, code: str, text: str = "as told") -> pb.ReserveResponse:
        return pb.ReserveResponse(over=pb.Over(code=code, text=text, retry_after_ms=1500))

    def keep(self, seconds: float = LEASE) -> Iterator[pb.ReserveResponse]:
        """Answers each renewal, until the holder releases or goes."""
        for request in self.requests:
            if request.HasField("release"):
                yield self.over("released", "")
                return
            yield self.renewed(request.renew.k, seconds)

    def silence(self) -> Iterator[pb.ReserveResponse]:
        for _ in self.requests:
            pass
        yield from ()

    def fail(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> Iterator[pb.ReserveResponse]:
        self.context.abort(code, "as told")
        yield from ()


Serve = Callable[[Stream], Iterator[pb.ReserveResponse]]


class Lender:
    """A router that answers each stream of Reserve as the test says, and a lane to it."""

    def __init__(self, serve: Serve, **options: Any) -> None:
        self.streams: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        self.released = threading.Event()
        self._count = 0
        self._serve = serve
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        method: Any = grpc.stream_stream_rpc_method_handler(self._reserve, pb.ReserveRequest.FromString, pb.ReserveResponse.SerializeToString)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("ringfence.lane.v1.LaneService", {"Reserve": method})])
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.lane = ringfence.Lane(self.endpoint, **options)
        self._server.start()

    def _reserve(self, requests: Iterator[pb.ReserveRequest], context: grpc.ServicerContext) -> Iterator[pb.ReserveResponse]:
        def seen() -> Iterator[pb.ReserveRequest]:
            for request in requests:
                if request.HasField("release"):
                    self.released.set()
                yield request

        self._count += 1
        stream = Stream(self._count, seen(), context)
        self.streams.put(stream)
        yield from self._serve(stream)

    def __enter__(self) -> Lender:
        return self

    def __exit__(self, *_: object) -> None:
        self.lane.close()
        self.stop()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture(params=["threads", "async"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Held:
    """A reservation of either style, for a test that waits with coroutines."""

    def __init__(self, of: ringfence.Reservation | ringfence.AsyncReservation) -> None:
        self.of = of

    async def lost(self, within: float) -> bool:
        if isinstance(self.of, ringfence.Reservation):
            return await asyncio.to_thread(self.of.lost.wait, within)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.of.lost.wait(), within)
        return self.of.lost.is_set()


@contextlib.asynccontextmanager
async def reserve(style: str, lane: ringfence.Lane, **options: Any) -> AsyncIterator[Held]:
    if style == "async":
        async with lane.reserve_async("user-1", **options) as r:
            yield Held(r)
    else:
        held = await asyncio.to_thread(lane.reserve, "user-1", **options)
        try:
            yield Held(held)
        finally:
            await asyncio.to_thread(held.release)


async def next_one(style: str, lane: ringfence.Lane) -> None:
    """Reserves after a dead connection."""
    async with reserve(style, lane, wait=WAIT):
        pass


async def lost_after(held: Held, begun: float, want: float) -> None:
    assert await held.lost(WAIT)
    took = time.monotonic() - begun
    assert want - 0.01 <= took <= want + LATE
    assert held.of.is_lost
    with pytest.raises(KeyLost):
        held.of.check()


def test_it_is_held_until_its_release(style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted(LONG)
        yield from s.keep(LONG)

    async def main() -> None:
        with Lender(serve) as router:
            async with reserve(style, router.lane, wait=30, caller=Event("a")) as held:
                ask = router.streams.get(timeout=WAIT).ask
                assert (ask.key, len(ask.id), ask.wait_ms, ask.resume, ask.raw_clock) == (b"user-1", 16, 30_000, False, RAW)
                assert list(ask.path) == [0xD24EC4F1A98C6E5B]
                assert (held.of.fence, held.of.key) == (Fence(7, 8), b"user-1")
                assert not await held.lost(LONG + 1)
                held.of.check()
                assert 0 < held.of.lease_until.timestamp() - time.time() <= LONG
                assert not router.released.is_set()
            assert router.released.is_set()
            assert not held.of.is_lost
            with pytest.raises(KeyLost, match="released"):
                held.of.check()

    asyncio.run(main())


def test_an_awaited_one_is_released_at_the_end_of_its_block() -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted(LONG)
        yield from s.keep(LONG)

    async def main() -> None:
        with Lender(serve) as router:
            r = await router.lane.reserve_async("user-1")
            async with r as same:
                assert same is r
                r.check()
                assert not router.released.is_set()
            assert router.released.is_set()
            assert router.streams.qsize() == 1, "it has asked for a second reservation"

    asyncio.run(main())


def test_a_grant_after_a_long_wait_is_renewed_first(style: str) -> None:
    answered: list[float] = []

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted(0)
        request = next(s.requests)
        time.sleep(0.2)
        answered.append(time.monotonic())
        yield s.renewed(request.renew.k, LONG)
        yield from s.keep(LONG)

    async def main() -> None:
        with Lender(serve) as router:
            async with reserve(style, router.lane) as held:
                assert answered, "it began without permission"
                held.of.check()

    asyncio.run(main())


def test_without_an_answer_it_is_lost_at_the_deadline(style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        time.sleep(0.3)  # which does not add to the permission
        yield s.granted()
        yield from s.silence()

    async def main() -> None:
        with Lender(serve) as router:
            begun = time.monotonic()
            async with reserve(style, router.lane, wait=WAIT) as held:
                await lost_after(held, begun, LEASE)

    asyncio.run(main())


def test_it_is_lost_at_once_when_it_is_over(style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted(3600)
        time.sleep(0.2)
        yield s.over("lost", "its owner is gone")

    async def main() -> None:
        with Lender(serve) as router:
            begun = time.monotonic()
            async with reserve(style, router.lane) as held:
                await lost_after(held, begun, 0.2)
                with pytest.raises(KeyLost, match="its owner is gone"):
                    held.of.check()

    asyncio.run(main())


def test_it_outlasts_a_broken_stream(style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        if s.number == 1:
            yield s.granted(LONG)
            time.sleep(0.2)
            yield from s.fail()
        elif s.number < 4:
            yield from s.fail()  # routers that are still starting
        else:
            yield s.granted(LONG)
            yield from s.keep(LONG)

    async def main() -> None:
        with Lender(serve) as router:
            async with reserve(style, router.lane) as held:
                assert not await held.lost(LONG + 1)
                held.of.check()
            asks = [router.streams.get(timeout=WAIT).ask for _ in range(4)]
            assert [ask.resume for ask in asks] == [False, True, True, True]
            assert {ask.id for ask in asks} == {asks[0].id}
            assert router.released.is_set()

    asyncio.run(main())


def test_a_ttl_outlasts_the_owner_of_the_key(style: str) -> None:
    """It begins when the log has it, is renewed seldom then, and goes on at the next owner, which is waited for as long as it lasts."""
    begun, covered = threading.Event(), threading.Event()
    seldom: list[int] = []

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        if s.number == 1:
            yield s.granted()
            for _ in range(5):
                yield s.renewed(next(s.requests).renew.k)
            assert not begun.wait(0.1), "it began before the log had it"
            covered.set()
            for _ in range(2):
                request = next(s.requests)
                seldom.append(request.renew.k)
                yield s.renewed(request.renew.k, 12, covered=True)
            assert begun.wait(WAIT)
            yield from s.fail()  # its owner is killed
        elif s.number == 2:
            yield s.granted(0, token=6)  # a former owner that does not know yet that it is one
            yield from s.fail()
        else:
            time.sleep(LEASE + 0.5)
            yield s.granted(token=9)
            yield s.renewed(next(s.requests).renew.k)
            for request in s.requests:
                yield s.over("released", "") if request.HasField("release") else s.renewed(request.renew.k, 12, covered=True)

    async def main() -> None:
        with Lender(serve) as router:
            async with reserve(style, router.lane, wait=30, ttl=12) as held:
                assert covered.is_set()
                begun.set()
                assert held.of.fence == Fence(7, 8)
                left = held.of.lease_until.timestamp() - time.time()
                assert LEASE < left <= 12
                until = time.monotonic() + WAIT
                while held.of.fence == Fence(7, 8):
                    assert time.monotonic() < until
                    await asyncio.sleep(0.01)
                assert held.of.fence == Fence(9, 8)
                assert not await held.lost(1)
                held.of.check()
            assert router.released.is_set()
            asks = [router.streams.get(timeout=WAIT).ask for _ in range(3)]
            assert [(ask.ttl_ms, ask.resume) for ask in asks] == [(12_000, False), (12_000, True), (12_000, True)]
            assert asks[0].wait_ms == 30_000
            assert 12_000 >= asks[1].wait_ms > asks[2].wait_ms > 1000

    asyncio.run(main())


def test_a_ttl_outlasts_a_dead_connection(style: str) -> None:
    """Nothing ends it. There is time to renew by another one."""
    ttl = 6.0

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted()
        for request in s.requests:
            if request.HasField("release"):
                yield s.over("released", "")
                return
            yield s.renewed(request.renew.k, ttl, covered=True)

    async def check() -> None:
        with Lender(serve) as router, Mute(router.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane:
            async with reserve(style, lane, ttl=ttl) as held:
                proxy.mute()
                assert not await held.lost(ttl + 0.5)
                assert not router.streams.get(timeout=WAIT).ask.resume
                assert router.streams.get(timeout=WAIT).ask.resume
            assert router.released.is_set()
            proxy.mute()
            with pytest.raises(NotReserved, match="unreachable"):
                await asyncio.to_thread(lane.reserve, "user-1")
            await next_one(style, lane)

    asyncio.run(check())


@pytest.mark.parametrize("released", [False, True])
def test_the_next_one_after_a_live_one_on_a_dead_connection(style: str, released: bool) -> None:
    """Without a ttl it is lost at its deadline, or its release is given up then. The next one gets another connection, at once."""

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted()
        for request in s.requests:
            if request.HasField("release"):
                yield s.over("released", "")
                return
            yield s.renewed(request.renew.k)

    async def check() -> None:
        with Lender(serve) as router, Mute(router.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane:
            async with reserve(style, lane) as held:
                proxy.mute()
                if not released:
                    assert await held.lost(WAIT)
            await next_one(style, lane)

    asyncio.run(check())


def test_a_ttl_is_renewed_seldom() -> None:
    renewals: list[float] = []

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted()
        for request in s.requests:
            if request.HasField("release"):
                yield s.over("released", "")
                return
            renewals.append(time.monotonic())
            yield s.renewed(request.renew.k, 30, covered=True)

    with Lender(serve) as router, router.lane.reserve("k", ttl=9) as r:
        covered = len(renewals)  # and one on its way at most; until then there is one each few milliseconds
        until = time.monotonic() + WAIT
        while len(renewals) < covered + 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        pauses = [b - a for a, b in pairwise(renewals[covered:])]
        assert max(pauses) > 1, f"pauses of {pauses}, want 1.5 s"
        r.check()


@pytest.mark.parametrize("sent", [False, True])
def test_a_release_is_told_on_the_next_stream(sent: bool, style: str) -> None:
    """Whether the stream breaks before the release or on it, the next one tells the owner, after that has answered there."""
    broken = threading.Event()
    told: list[int] = []

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        if s.number == 1:
            yield s.granted(60)
            if sent:
                next(request for request in s.requests if request.HasField("release"))
            broken.set()
            yield from s.fail()
        elif s.number == 2:
            yield from s.fail()
        else:
            time.sleep(0.2)  # until the owner answers
            router.released.clear()
            yield s.granted(60)
            for frame in s.keep(60):
                if frame.HasField("over"):
                    told.append(s.number)
                yield frame

    async def main() -> None:
        async with reserve(style, router.lane) as held:
            if not sent:
                assert await asyncio.to_thread(broken.wait, WAIT)
        assert told == [3]
        assert not held.of.is_lost
        asks = [router.streams.get(timeout=WAIT).ask for _ in range(3)]
        assert [ask.resume for ask in asks] == [False, True, True]

    with Lender(serve) as router:
        asyncio.run(main())


def test_a_release_is_told_when_the_token_is_back(tmp_path: pathlib.Path) -> None:
    """The token file is being replaced when the stream breaks."""
    token = tmp_path / "token"
    token.write_text("one")
    broken = threading.Event()
    told: list[int] = []

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted(60)
        if s.number == 1:
            assert broken.wait(WAIT)
            yield from s.fail()
        for frame in s.keep(60):
            if frame.HasField("over"):
                told.append(s.number)
            yield frame

    with Lender(serve, token_file=str(token)) as router:
        held = router.lane.reserve("user-1")
        token.unlink()
        broken.set()
        releasing = threading.Thread(target=held.release)
        releasing.start()
        releasing.join(0.3)
        assert releasing.is_alive(), "the release was told to nobody"
        token.write_text("two")
        releasing.join(WAIT)
        assert told == [2]


def granting(s: Stream) -> Iterator[pb.ReserveResponse]:
    yield s.granted(60)
    yield from s.keep(60)


def test_a_signal_handler_may_release_while_a_release_begins() -> None:
    """The handler of a signal runs in the main thread, between any two instructions of it: here between any two lines of the release."""

    def main(r: ringfence.Reservation, line: int) -> None:
        lines: list[int] = []

        def interrupt(frame: Any, what: str, _: object) -> Any:
            if what == "line":
                lines.append(frame.f_lineno)
                if len(lines) == line:
                    sys.settrace(None)
                    r.release()
            return interrupt

        sys.settrace(lambda frame, _what, _arg: interrupt if frame.f_code is Holder.release.__code__ else None)
        try:
            r.release()
        finally:
            sys.settrace(None)

    for line in range(1, 6):
        with Lender(granting) as router:
            r = router.lane.reserve("k")
            thread = threading.Thread(target=main, args=(r, line), daemon=True)
            thread.start()
            thread.join(2 * LATE)
            assert not thread.is_alive(), f"interrupted before line {line} it waits for itself"
            assert router.released.is_set()
            assert not r.is_lost


@pytest.mark.parametrize("ended", [False, True])
def test_a_release_from_another_loop_returns(ended: bool) -> None:
    """Whether the loop in which the reservation began still runs or was closed."""
    with Lender(granting) as router:
        begun: queue.SimpleQueue[ringfence.AsyncReservation] = queue.SimpleQueue()
        stay = threading.Event()

        async def first() -> None:
            begun.put(await router.lane.reserve_async("k"))
            while not ended and not stay.is_set():
                await asyncio.sleep(0.01)

        thread = threading.Thread(target=lambda: asyncio.run(first()), daemon=True)
        thread.start()
        r = begun.get(timeout=WAIT)
        if ended:
            thread.join(WAIT)

        async def second() -> None:
            until = time.monotonic() + LATE
            await asyncio.wait_for(asyncio.gather(r.release(), r.release()), 2 * LATE)
            await asyncio.wait_for(r.release(), 2 * LATE)
            assert time.monotonic() < until, "nothing but the end of the wait has woken this loop"

        asyncio.run(second())
        assert router.released.is_set()
        stay.set()
        thread.join(WAIT)


def test_a_release_that_cannot_be_told_ends_with_the_permission(style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        if s.number == 1:
            yield s.granted()
        yield from s.fail()

    async def main() -> None:
        with Lender(serve) as router:
            begun = time.monotonic()
            async with reserve(style, router.lane) as held:
                pass
            assert LEASE / 2 <= time.monotonic() - begun <= LEASE + LATE
            assert not held.of.is_lost

    asyncio.run(main())


def test_no_way_back_ends_it_at_the_deadline(style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted()
        yield from s.silence()

    async def main() -> None:
        with Lender(serve) as router:
            begun = time.monotonic()
            async with reserve(style, router.lane) as held:
                await asyncio.to_thread(router.stop)
                await lost_after(held, begun, LEASE)

    asyncio.run(main())


class Thawing(LeaseClock):
    """The system's clock, and what the process was frozen for."""

    def __init__(self) -> None:
        self.frozen, self._system = 0, system_clock()

    def now(self) -> int:
        return self._system.now() + self.frozen


def test_check_asks_the_clock(style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted(60)
        yield from s.keep(3600)

    async def main() -> None:
        with Lender(serve) as router:
            clock = Thawing()
            router.lane._settings = dataclasses.replace(router.lane._settings, clock=clock)
            async with reserve(style, router.lane) as held:
                held.of.check()
                clock.frozen = 7200 * SECOND
                with pytest.raises(KeyLost):
                    held.of.check()
                assert await held.lost(WAIT)

    asyncio.run(main())


@pytest.mark.parametrize("code", ["timeout", "overloaded", "cycle", "parked", "unreachable", "not_exclusive", "not_covered"])
def test_refusals(code: str, style: str) -> None:
    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.over(code)

    async def main() -> None:
        with Lender(serve) as router, pytest.raises(NotReserved) as caught:
            async with reserve(style, router.lane):
                pass
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.code, error.text, error.retry_after) == (code, "as told", 1.5)
        assert str(error) == f"the key is not reserved ({code}): as told"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, ""),
        (grpc.StatusCode.UNIMPLEMENTED, ""),
        (grpc.StatusCode.UNAUTHENTICATED, ""),
        (grpc.StatusCode.PERMISSION_DENIED, ""),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded"),
        (grpc.StatusCode.UNAVAILABLE, "unreachable"),
    ],
)
def test_statuses(status: grpc.StatusCode, code: str) -> None:
    with Lender(lambda s: s.fail(status)) as router, pytest.raises(NotReserved) as caught:
        router.lane.reserve("k")
    assert (caught.value.code, caught.value.text) == (code, "as told")


def test_a_reservation_in_a_crowd(style: str) -> None:
    asked: list[pb.Ask] = []

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        asked.append(s.ask)
        if s.number < 20:  # more often than gRPC itself would try
            yield from s.fail(grpc.StatusCode.RESOURCE_EXHAUSTED)
        yield s.granted()
        yield from s.keep()

    async def main() -> None:
        with Lender(serve) as router:
            async with reserve(style, router.lane, wait=WAIT) as r:
                r.of.check()

    asyncio.run(main())
    assert len(asked) == 20
    assert len({ask.id for ask in asked}) == 1
    assert WAIT * 1000 == asked[0].wait_ms > asked[-1].wait_ms > 0, "the wait is not longer for that"


def test_a_release_in_a_crowd() -> None:
    tried = threading.Event()

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        tried.set()
        yield from s.fail(grpc.StatusCode.RESOURCE_EXHAUSTED)

    async def main() -> None:
        with Lender(serve) as router:
            task = asyncio.ensure_future(router.lane.reserve_async("k", wait=WAIT)._begin())
            assert await asyncio.to_thread(tried.wait, WAIT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            begun = time.monotonic()
            while any(thread.name == "ringfence-reservation" for thread in threading.enumerate()):
                assert time.monotonic() - begun < LATE, "it asks on"
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_no_router_and_a_closed_lane(style: str) -> None:
    async def main() -> None:
        lane = ringfence.Lane("127.0.0.1:1")
        for code, text in (("unreachable", "the key is not reserved"), ("", "the lane was closed")):
            with pytest.raises(NotReserved, match=text) as caught:
                async with reserve(style, lane):
                    pass
            assert caught.value.code == code
            lane.close()

    asyncio.run(main())


@pytest.mark.parametrize("reserve", [ringfence.Lane.reserve, ringfence.Lane.reserve_async])
def test_what_is_too_large_is_not_asked_for(reserve: Callable[..., Any]) -> None:
    """gRPC would refuse it with the status of a router that has taken nothing in, and it would be asked for until the wait is over."""
    with ringfence.Lane("127.0.0.1:1") as lane, pytest.raises(NotReserved, match="want at most 2097152") as caught:
        reserve(lane, "k" * REQUEST_MAX, wait=WAIT)
    assert caught.value.code == "too_large"


def test_a_router_that_does_not_answer() -> None:
    with Lender(lambda s: s.silence()) as router, pytest.raises(NotReserved) as caught:
        router.lane.reserve("k", wait=0.1)
    assert caught.value.code == "unreachable"


def renewing(ttl: float) -> Serve:
    """Grants, and answers renewals with the ttl, until the holder releases or goes."""

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted()
        for request in s.requests:
            if request.HasField("release"):
                yield s.over("released", "")
                return
            yield s.renewed(request.renew.k, ttl, covered=True)

    return serve


def test_a_connection_that_takes_long(style: str) -> None:
    """A key that is free is reserved without a wait. The connection has a bound of its own, after which the next one is another."""

    async def check() -> None:
        with Lender(renewing(LONG)) as router, Mute(router.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane:
            proxy.connecting = 1.5
            async with reserve(style, lane) as held:
                held.of.check()
        with Lender(renewing(LONG)) as router, Mute(router.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane:
            proxy.mute_next = 1
            begun = time.monotonic()
            with pytest.raises(NotReserved) as caught:
                async with reserve(style, lane):
                    pass
            assert caught.value.code == "unreachable"
            assert time.monotonic() - begun < GRACE + LATE
            await next_one(style, lane)

    asyncio.run(check())


def test_a_ttl_outlasts_connections_that_are_never_made() -> None:
    ttl = 9.0  # two attempts to connect with gRPC's own bound take longer
    with Lender(renewing(ttl)) as router, Mute(router.endpoint) as proxy, ringfence.Lane(proxy.endpoint) as lane, lane.reserve("k", ttl=ttl) as r:
        proxy.mute_next = 2
        proxy.cut()
        assert not router.streams.get(timeout=WAIT).ask.resume
        assert router.streams.get(timeout=WAIT).ask.resume
        r.check()


def test_a_cancelled_task_waits_no_longer() -> None:
    async def main() -> None:
        with Lender(lambda s: s.keep()) as router:
            task = asyncio.ensure_future(router.lane.reserve_async("k", wait=60)._begin())
            await asyncio.to_thread(router.streams.get, True, WAIT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(router.released.wait, WAIT)

    asyncio.run(main())


def test_the_token_of_each_stream(tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")

    def serve(s: Stream) -> Iterator[pb.ReserveResponse]:
        yield s.granted(LONG)
        if s.number == 1:
            token.write_text("two")
            yield from s.fail()
        yield from s.keep(LONG)

    with Lender(serve, token_file=str(token)) as router:
        with router.lane.reserve("k"):
            assert [router.streams.get(timeout=WAIT).token for _ in range(2)] == ["Bearer one", "Bearer two"]
        token.unlink()
        with pytest.raises(NotReserved, match="token file"):
            router.lane.reserve("k")


def test_bad_waits_and_ttls() -> None:
    with ringfence.Lane("127.0.0.1:1") as lane:
        for bad in (-1, float("nan"), float("inf"), True, "1"):
            with pytest.raises(ArgumentError, match="wait"):
                lane.reserve("k", wait=bad)  # type: ignore[arg-type]
            with pytest.raises(ArgumentError, match="ttl"):
                lane.reserve("k", ttl=bad)  # type: ignore[arg-type]


def test_no_ttl_is_too_small_or_too_large_to_be_asked_for() -> None:
    """The router says what it allows: none may become another one, or none at all, on the way."""
    with Lender(lambda s: s.fail(grpc.StatusCode.INVALID_ARGUMENT)) as router:
        for ttl, want in ((0.0001, 1), (4.9995, 5000), (1e9, 2**32 - 1)):
            with pytest.raises(NotReserved):
                router.lane.reserve("k", ttl=ttl)
            assert router.streams.get(timeout=WAIT).ask.ttl_ms == want
