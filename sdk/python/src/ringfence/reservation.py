"""Holding a key without a handler: reservations.

A reservation is one thread that steps a :class:`Permission`: it takes what the router says, renews, compares the deadline with the clock, and
comes back on another stream when one breaks. Callers of both styles talk to that thread.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from ringfence.clock import RAW
from ringfence.errors import ArgumentError, KeyLost, NotReserved, SessionError
from ringfence.event import Fence
from ringfence.lane.v1 import lane_pb2 as pb
from ringfence.runner import CHECK_EVERY
from ringfence.sending import CALL_PAUSE_MAX, is_crowded
from ringfence.sending import PAUSE_MIN as CROWD_PAUSE_MIN

if TYPE_CHECKING:
    from ringfence.options import Settings

METHOD = "/ringfence.lane.v1.LaneService/Reserve"
RENEW_EVERY, RENEW_LEAST = 0.5, 0.02
"""Seconds between two renewals: a third of what the last answer gave, within these bounds, so that one may fail also with short leases."""
RENEW_COVERED_EVERY = 10.0
"""Seconds between two renewals of a reservation with a ttl, at most: a sixth of the ttl."""
COVER_MIN, COVER_MAX = 0.004, 0.05
"""Seconds between two renewals while the control log does not have the reservation: doubled from the first to the second value."""
GRACE = 5.0
"""Seconds beyond the wait for a key: so long for a connection with room for the Ask, and so long for the router's answer."""
REDIAL_LEAST = 1.0
"""Seconds that the next stream of a reservation has at least until its Ask is sent. Then it gets another connection: with a ttl after a third of
what is left of the permission, if that is longer, and after GRACE at most."""
BEGIN_MAX = 10.0
"""Seconds from a grant until there is permission to begin, at least."""
RELEASE_MAX = 0.5
"""Seconds that the router's last frame is waited for when the wait for a key is given up."""
PAUSE_MIN, PAUSE_MAX = 0.02, 0.5
"""Seconds before the next stream when one breaks: doubled from the first to the second value."""
UNHEARD_MAX = 2
"""Renewals of a covered reservation in a row without any frame: when the next one is due, the connection is given up, and half of the ttl is
left. A live one has no time for that: it is lost, and then the connection is given up."""
RENEWALS_MAX = 64
"""Renewals without an answer that are remembered."""

_ID_BYTES = 16
_TTL_MS_MAX = 2**32 - 1
_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT: "",
    grpc.StatusCode.UNIMPLEMENTED: "",
    grpc.StatusCode.UNAUTHENTICATED: "",
    grpc.StatusCode.PERMISSION_DENIED: "",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "overloaded",
}  # all others: unreachable


class Permission:
    """How long a holder may go on. It reads no clock: instants are nanoseconds, and come from outside."""

    def __init__(self, ttl: float = 0.0) -> None:
        """ttl is in seconds; 0 is none."""
        self.until: int | None = None
        """The deadline; None before there is any permission."""
        self.every = RENEW_EVERY
        """Seconds until the next renewal."""
        self._ttl = ttl
        self._covered = False
        self._asked = 0
        self._renewals: dict[int, int] = {}
        self._k = 0

    def ask(self, now: int) -> None:
        """Notes when the Ask of the present stream is sent; call it before."""
        self._asked = now

    def renew(self, now: int) -> int:
        """Notes when a Renew is sent, and returns its number; call it before."""
        self._k += 1
        if len(self._renewals) < RENEWALS_MAX:
            self._renewals[self._k] = now
        return self._k

    def granted(self, remaining: int, now: int) -> None:
        """Takes the permission of a Granted on the present stream. With half of it gone the holder renews before it begins."""
        if self._asked + remaining - now > remaining / 2:
            self._extend(self._asked, remaining, now)
        self._renew_live(now)  # at a next owner the permission of a covered reservation is that of a live one at first

    def renewed(self, k: int, remaining: int, now: int, covered: bool = False) -> None:
        """Takes the permission of a Renewed."""
        sent = self._renewals.get(k)
        self._renewals = {number: at for number, at in self._renewals.items() if number > k}
        extended = sent is not None and self._extend(sent, remaining, now)
        if covered and self._ttl > 0 and not self.overdue(now):
            self._covered = True
            self.every = max(RENEW_LEAST, min(RENEW_COVERED_EVERY, self._ttl / 6))
        elif extended:
            self._renew_live(now)

    def _extend(self, sent: int, remaining: int, now: int) -> bool:
        if remaining <= 0 or self.overdue(now):  # a passed deadline is never extended
            return False
        until = sent + remaining
        if now >= until or (self.until is not None and until <= self.until):
            return False
        self.until = until
        return True

    def _renew_live(self, now: int) -> None:
        if self.until is not None:
            self.every = max(RENEW_LEAST, min(RENEW_EVERY, (self.until - now) / 3e9))

    @property
    def may_begin(self) -> bool:
        """Whether there is permission, or was; with a ttl only once the control log has the reservation."""
        return self.until is not None and (self._ttl == 0 or self._covered)

    def overdue(self, now: int) -> bool:
        """Whether there was permission, and it has passed."""
        return self.until is not None and now >= self.until


class _Link:
    """One stream of a reservation. Its frames go into the holder's queue, with the link itself; None is its end."""

    def __init__(self, call: Callable[..., Any], metadata: Any, ask: pb.Ask, into: queue.SimpleQueue[Any]) -> None:
        self.failure: grpc.RpcError | None = None
        self.begun = time.monotonic()
        self.sent: float | None = None
        """When gRPC had sent the Ask, by time.monotonic: there was a connection, with room for it."""
        self._frames: queue.SimpleQueue[pb.ReserveRequest | None] = queue.SimpleQueue()
        self._frames.put(pb.ReserveRequest(ask=ask))
        self._call = call(self._requests(), metadata=metadata)  # it returns at once, also without a connection
        self._into = into
        threading.Thread(target=self._read, name="ringfence-reservation-reader", daemon=True).start()

    def _requests(self) -> Iterator[pb.ReserveRequest]:
        while (frame := self._frames.get()) is not None:
            yield frame
            if self.sent is None:  # gRPC asks for the next one when it has sent this one
                self.sent = time.monotonic()

    def _read(self) -> None:
        try:
            for frame in self._call:
                self._into.put((self, frame))
        except grpc.RpcError as failure:
            self.failure = failure
        self._into.put((self, None))

    def send(self, frame: pb.ReserveRequest) -> None:
        self._frames.put(frame)

    def end(self) -> None:
        self._call.cancel()
        self._frames.put(None)


class Holder:
    """The thread that gets and keeps one reservation."""

    def __init__(
        self,
        settings: Settings,
        call: Callable[..., Any],
        silent: Callable[[float], None],
        key: bytes,
        wait: float,
        ttl: float,
        path: list[int],
        *,
        begun: Callable[[NotReserved | None], None],
        lost: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        """silent is called with an instant of time.monotonic since which nothing was heard.

        begun is called once, with None or why there is no reservation; lost at most once after that; ended last, by the thread."""
        self.fence = Fence(0, 0)
        self.cause: str | None = None
        """Why it is lost; None before."""
        self._settings = settings
        self._clock = settings.clock
        self._stream, self._silent = call, silent
        self._wait = wait
        self._begun, self._on_lost, self._ended = begun, lost, ended
        ttl_ms = min(math.ceil(ttl * 1000), _TTL_MS_MAX)
        self._ask = pb.Ask(key=key, id=secrets.token_bytes(_ID_BYTES), wait_ms=round(wait * 1000), path=path, raw_clock=RAW, ttl_ms=ttl_ms)
        self._permission = Permission(ttl)
        # No lock guards these: the handler of a signal may release in the middle of a call of its own thread, and then waits for the holder's.
        self._released = False
        self._told = False  # the holder's thread will see the release
        self._unheard_since: float | None = None  # when the first request since the newest frame was sent, by time.monotonic
        self._lost_once = threading.Lock()  # taken by the call that tells the loss
        self._link: _Link | None = None  # the newest
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()  # (link, frame), (link, None), or None: release
        threading.Thread(target=self._run, name="ringfence-reservation", daemon=True).start()

    def release(self) -> None:
        """Ends the reservation, or the wait for it. It does not block."""
        if self._told:
            return
        self._released = True
        self._news.put(None)  # a second one changes nothing
        self._told = True

    def overdue(self) -> bool:
        """Whether the permission has passed, by the clock."""
        return self._permission.overdue(self._clock.now())

    def lose(self, cause: str) -> None:
        """Tells the application that the key is lost, unless it has released it."""
        if self.cause is not None or self._released:
            return
        self.cause = cause
        if self._lost_once.acquire(blocking=False):
            self._on_lost()

    def expire(self) -> None:
        """Ends a reservation whose permission has passed. The next one gets another connection if this one is dead."""
        self._give_up_silent()
        self.lose("its permission has passed")

    def _give_up_silent(self) -> None:
        """Replaces the connection if a request had no answer, and nothing else was heard on it since."""
        if (since := self._unheard_since) is not None:
            self._silent(since)

    def _note_sent(self) -> None:
        if self._unheard_since is None:
            self._unheard_since = time.monotonic()

    @property
    def released(self) -> bool:
        return self._released

    def seconds_left(self) -> float:
        until = self._permission.until
        return 0.0 if until is None else max(0.0, (until - self._clock.now()) / 1e9)

    def _run(self) -> None:
        try:
            if self._get():
                self._begun(None)
                self._keep()
        except NotReserved as failure:
            self._begun(failure)
        except Exception as failure:  # of this SDK: nobody may wait for a thread that has ended, nor go on
            self.lose(repr(failure))
            self._begun(NotReserved("", repr(failure)))
        finally:
            if self._link is not None:
                self._link.end()
            self._ended()

    def _get(self) -> bool:
        """Asks until the router takes the ask in, and waits for the grant. Returns False if it was released before."""
        left, pause = _Ticks(self._clock, self._wait + GRACE), CROWD_PAUSE_MIN
        before: NotReserved | None = None  # of the last ask that was not taken in
        self._connecting = True
        while True:
            self._link = self._open()
            try:
                return self._await(self._link, left)
            except NotReserved as failure:
                self._note_connected(self._link, left)
                # If it has read nothing, too many calls of its callers are just beginning.
                crowded = is_crowded(self._link.failure)  # as it may have become since the time was up
                if not crowded or left.seconds() <= pause:
                    if before is not None and (crowded or self._link.failure is None) and failure.code == "unreachable":
                        raise before from None  # the time was up while an ask was under way
                    raise
                before = failure
            self._link.end()
            try:
                self._next(pause * random.uniform(0.5, 1))
                return False  # a stream that has ended has no other news than the release
            except queue.Empty:
                pause = min(2 * pause, CALL_PAUSE_MAX)
            self._ask.wait_ms = min(self._ask.wait_ms, max(0, round((left.seconds() - GRACE) * 1000)))

    def _note_connected(self, link: _Link, left: _Ticks) -> bool:
        """Adds the time until the first Ask was sent to what is left, once, up to GRACE. Returns whether it did."""
        if not self._connecting or link.sent is None:
            return False
        self._connecting = False
        left.extend(min(GRACE, link.sent - link.begun))
        return True

    def _open(self) -> _Link:
        """Opens a stream. Raises NotReserved if that cannot even be tried."""
        try:
            metadata = self._settings.metadata()
        except SessionError as failure:
            raise NotReserved("", str(failure)) from failure
        self._permission.ask(self._clock.now())
        self._unheard_since = time.monotonic()
        try:
            return _Link(self._stream, metadata, self._ask, self._news)
        except ValueError as failure:  # gRPC's word for a channel that is closed
            raise NotReserved("", "the lane was closed") from failure

    def _renew(self, link: _Link) -> None:
        k = self._permission.renew(self._clock.now())
        self._note_sent()
        link.send(pb.ReserveRequest(renew=pb.Renew(k=k)))

    def _next(self, seconds: float) -> Any:
        """Returns the next of the news; it raises queue.Empty when the time is up."""
        return self._news.get(timeout=min(max(seconds, 0.001), threading.TIMEOUT_MAX))

    def _await(self, link: _Link, left: _Ticks) -> bool:
        """Waits so long for the grant, and then for permission to begin. Returns False if it was released before."""
        granted, asked = False, time.monotonic()
        renewal = _Ticks(self._clock, math.inf)
        pause, pause_max = (COVER_MIN, COVER_MAX) if self._ask.ttl_ms else (RENEW_EVERY, RENEW_EVERY)
        while True:
            try:
                news = self._next(min(left.seconds(), renewal.seconds()))
            except queue.Empty:
                if left.seconds() <= 0:
                    if not granted and self._note_connected(link, left):
                        continue
                    link.send(pb.ReserveRequest(release=pb.Release()))
                    if not granted:
                        self._silent(asked)
                    text = "no connection to the router, or no room on it, in time" if link.sent is None else "the router has not answered in time"
                    raise NotReserved("unreachable", text) from None
                if renewal.seconds() <= 0:
                    pause = min(2 * pause, pause_max)
                    renewal = _Ticks(self._clock, pause)
                    self._renew(link)
                continue
            if news is None:
                self._say_release(link)
                return False
            _, frame = news
            self._unheard_since = None
            if frame is None:
                raise _refused(link.failure)
            if frame.HasField("over"):
                raise NotReserved(frame.over.code, frame.over.text, frame.over.retry_after_ms / 1000)
            self._extend(frame)
            if self._permission.may_begin:
                return True
            if frame.HasField("granted") and not granted:  # it took long until the grant, or the control log does not have it yet
                granted = True
                left, renewal = _Ticks(self._clock, max(left.seconds(), BEGIN_MAX)), _Ticks(self._clock, pause)
                self._renew(link)

    def _extend(self, frame: pb.ReserveResponse) -> None:
        now = self._clock.now()
        if frame.HasField("granted"):
            self._permission.granted(frame.granted.remaining_ns, now)
            # A former owner that does not know yet that it is one answers with its own fence, and no permission.
            self.fence = max(self.fence, Fence(frame.granted.token, frame.granted.turn))
        elif frame.HasField("renewed"):
            self._permission.renewed(frame.renewed.k, frame.renewed.remaining_ns, now, frame.renewed.covered)

    def _keep(self) -> None:
        """Renews the reservation until it is lost, or its release was told. A release is told on another stream if one breaks, until the permission
        has passed: then the key is free without it."""
        assert self._link is not None
        link = self._link
        releasing = False
        renewal = _Ticks(self._clock, self._permission.every)
        redial: _Ticks | None = None
        slow: _Ticks | None = None  # until the Ask of the present stream must be sent
        pause = 0.0
        answered = True  # the owner has granted it on the present stream; before, it may be waited for in silence
        unheard = 0  # renewals since the newest frame
        while True:
            try:
                news = self._next(min(CHECK_EVERY, max(renewal.seconds(), RENEW_LEAST)))
            except queue.Empty:
                news = ()
            if self.overdue():
                self.expire()
                return
            if news is None:
                if releasing:
                    continue
                releasing = True
                self._note_sent()
                link.send(pb.ReserveRequest(release=pb.Release()))
            elif news and news[0] is link:
                frame = news[1]
                unheard, self._unheard_since = 0, None
                answered = answered or (frame is not None and frame.HasField("granted"))
                if frame is None:  # the stream broke; the reservation goes on until its deadline
                    pause = min(max(2 * pause, PAUSE_MIN), PAUSE_MAX)
                    redial = _Ticks(self._clock, pause)
                elif frame.HasField("over"):
                    self.lose(frame.over.text or frame.over.code)
                    return
                elif releasing:
                    if frame.HasField("granted"):  # the owner has answered on a new stream: before, the router would not have told it
                        link.send(pb.ReserveRequest(release=pb.Release()))
                else:
                    pause = 0.0
                    self._extend(frame)
                    renewal = _Ticks(self._clock, self._permission.every)
                    if frame.HasField("granted"):
                        self._renew(link)
            if redial is not None and redial.seconds() <= 0:
                redial = None
                self._ask.resume = True
                # The owner of a covered reservation may have died: the next one is waited for as long as the permission lasts.
                self._ask.wait_ms = round(self.seconds_left() * 1000) if self._ask.ttl_ms else 0
                try:
                    link.end()
                    link = self._link = self._open()
                    answered, unheard = False, 0
                    slow = _Ticks(self._clock, max(REDIAL_LEAST, min(GRACE, self.seconds_left() / 3)))
                except NotReserved as failure:
                    if releasing and not isinstance(failure.__cause__, SessionError):  # the lane was closed; a token may come back
                        return
                    pause = min(2 * pause, PAUSE_MAX)
                    redial = _Ticks(self._clock, pause)
            if slow is not None and slow.seconds() <= 0:
                slow = None
                if link.sent is None and redial is None:  # another attempt may meet a router that answers
                    self._silent(link.begun)
                    link.end()  # its end is the next of the news
                    continue
            if redial is None and not releasing and renewal.seconds() <= 0:
                renewal = _Ticks(self._clock, self._permission.every)
                if self._ask.ttl_ms and answered and unheard >= UNHEARD_MAX:
                    unheard = 0
                    self._give_up_silent()
                    link.end()  # its end is the next of the news
                    continue
                unheard += 1
                self._renew(link)

    def _say_release(self, link: _Link) -> None:
        """Releases, and waits for the router's last frame."""
        link.send(pb.ReserveRequest(release=pb.Release()))
        left = _Ticks(self._clock, RELEASE_MAX)
        while left.seconds() > 0:
            try:
                news = self._next(left.seconds())
            except queue.Empty:
                return
            if news is not None and news[0] is link and (news[1] is None or news[1].HasField("over")):
                return


class _Ticks:
    """A span of time that begins now."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self._clock = clock
        self._end = math.inf if math.isinf(seconds) else clock.now() + seconds * 1e9

    def extend(self, seconds: float) -> None:
        self._end += seconds * 1e9

    def seconds(self) -> float:
        """Returns how many are left."""
        return float((self._end - self._clock.now()) / 1e9)


def _refused(failure: grpc.RpcError | None) -> NotReserved:
    """Returns the error for an ask that the router has not answered."""
    if failure is None:
        return NotReserved("unreachable", "the router ended the stream")
    code, text = failure.code(), failure.details() or ""
    return NotReserved(_REFUSALS.get(code, "unreachable"), text or code.name)


def check_seconds(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise ArgumentError(f"{name} = {seconds!r}, want a number of seconds of at least 0")


class _Held:
    """What reservations of both styles have."""

    _holder: Holder

    def __init__(self, key: bytes) -> None:
        self.key = key

    @property
    def fence(self) -> Fence:
        """Is greater than that of any earlier delivery, call or reservation of the key.

        That of a reservation with a ttl grows when the key has another owner; the earlier one is as good."""
        return self._holder.fence

    @property
    def lease_until(self) -> datetime.datetime:
        """When the reservation ends if it is renewed no more."""
        return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self._holder.seconds_left())

    @property
    def is_lost(self) -> bool:
        """Whether the key is lost. It reads the clock itself."""
        if self._holder.cause is None and self._holder.overdue():
            self._holder.expire()
        return self._holder.cause is not None

    def check(self) -> None:
        """Raises KeyLost if the key is lost, or was released: stop at once, and write nothing. It reads the clock itself: call it before a write."""
        if self._holder.released:
            raise KeyLost("the reservation was released")
        if self.is_lost:
            raise KeyLost(f"the reservation is lost: {self._holder.cause}")


class Reservation(_Held):
    """A key that this process holds: no handler of the key runs, and nobody else holds it, until :meth:`release` or until it is lost.

    All methods may be called from any thread.
    """

    def __init__(self, key: bytes, start: Callable[..., Holder]) -> None:
        super().__init__(key)
        self.lost: threading.Event = threading.Event()
        """Set when the key is lost: at most 50 ms after the last permission has passed, or when the router says so."""
        self._over = threading.Event()
        begun: queue.SimpleQueue[NotReserved | None] = queue.SimpleQueue()
        self._holder = start(begun=begun.put, lost=self.lost.set, ended=self._over.set)
        try:
            failure = begun.get()
        except BaseException:  # KeyboardInterrupt
            self._holder.release()
            raise
        if failure is not None:
            raise failure

    def release(self) -> None:
        """Ends the reservation, and waits until its owner knows, at most as long as it would last without a renewal: if the connection is broken,
        it is made again for that. Further calls do nothing but wait."""
        self._holder.release()
        self._over.wait()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Over:
    """The end of a reservation, which coroutines of any loop wait for: the loop that began may be closed by then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the others
        self._is = False
        self._waiting: list[asyncio.Future[None]] = []

    def set(self) -> None:
        with self._lock:
            self._is = True
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            try:
                future.get_loop().call_soon_threadsafe(self._wake, future)
            except RuntimeError:  # the loop was closed: nobody waits
                pass

    @staticmethod
    def _wake(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._is:
                return
            self._waiting.append(future)
        await future


class AsyncReservation(_Held):
    """Is :class:`Reservation` for coroutines.

    :meth:`Lane.reserve_async` returns it, to be awaited or used with ``async with``, also one after the other.
    """

    def __init__(self, key: bytes, start: Callable[..., Holder]) -> None:
        super().__init__(key)
        self._start = start
        self._begun = False
        self.lost: asyncio.Event = asyncio.Event()
        """Set when the key is lost: at most 50 ms after the last permission has passed, or when the router says so."""
        self._over = _Over()

    def __await__(self) -> Generator[Any, None, AsyncReservation]:
        return self._begin().__await__()

    async def __aenter__(self) -> AsyncReservation:
        return await self._begin()

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def _begin(self) -> AsyncReservation:
        """Asks for the key, unless the reservation has begun before: one that was awaited may be used with ``async with`` as well."""
        if self._begun:
            return self
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[NotReserved | None] = loop.create_future()

        def tell(function: Callable[..., Any], *arguments: Any) -> None:
            try:
                loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:  # the loop was closed: nobody waits
                pass

        def answer(failure: NotReserved | None) -> None:
            if not begun.done():
                begun.set_result(failure)

        self._holder = self._start(begun=lambda failure: tell(answer, failure), lost=lambda: tell(self.lost.set), ended=self._over.set)
        try:
            failure = await begun
        except asyncio.CancelledError:
            self._holder.release()
            raise
        if failure is not None:
            raise failure
        self._begun = True
        return self

    async def release(self) -> None:
        """Ends the reservation, and waits until its owner knows, at most as long as it would last without a renewal: if the connection is broken,
        it is made again for that. Further calls do nothing but wait. It may be called in another event loop than the one that began."""
        self._holder.release()
        await self._over.wait()
