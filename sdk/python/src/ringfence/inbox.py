"""The rules that keep a key exclusive, as a pure machine: rules 1 to 7 of docs/sdk-protocol.md.

An :class:`Inbox` tracks the deliveries of a worker on one stream, and their deadlines. It has no threads, and time is an
argument, in nanoseconds of one clock. It is not safe for concurrent use: the SDK calls it under a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

DONE = 1
RETRY = 2
REJECT = 3
NOT_STARTED = 4
CANCELLED = 5

PINGS_REMEMBERED_MAX = 8
"""The Pings that may still be answered: a router answers only the newest one that it has read."""

PREPARED_MAX = 32
"""Deliveries that get their running forms together, before they start."""

NEVER = -(1 << 63)
"""A deadline in the past, before the first Pong."""


class Waiting(Protocol):
    """A delivery that has not started, as its frame has it."""

    @property
    def delivery_id(self) -> int: ...
    @property
    def partition(self) -> int: ...


class Item:
    """The inbox's part of a delivery that has started. ``id`` and ``partition`` are those of the delivery, and never change."""

    __slots__ = ("deadline", "id", "partition", "started_ns", "took_ns")

    id: int
    partition: int
    deadline: int  # of this delivery alone: set when it is frozen or lost
    started_ns: int  # when its handler ran, as in an Answer: set if the inbox is timed, before it is ended
    took_ns: int

    @property
    def delivery_id(self) -> int:
        """``id``, for a delivery that was claimed and waits again."""
        return self.id


class Answer(NamedTuple):
    """The answer to one delivery. The times are nanoseconds, 0 if the handler did not run or the router did not ask."""

    delivery_id: int
    kind: int
    after_ms: int = 0
    reason: str = ""
    started_ns: int = 0
    took_ns: int = 0
    reply: bytes = b""
    code: str = ""


W = TypeVar("W", bound=Waiting)
T = TypeVar("T", bound=Item)


def _same(items: list[T]) -> list[T]:
    return items


class _Batch(Generic[W, T]):
    """The waiting deliveries of one frame, the first one last."""

    __slots__ = ("left", "start")

    def __init__(self, left: list[W], start: Callable[[list[W]], list[T]]) -> None:
        self.left, self.start = left, start


class Inbox(Generic[W, T]):
    """The deliveries of one stream. Waiting ones are of a type W, and become a T when they start.

    A deadline belongs to one delivery. Deliveries that are not revoked share the newest deadline; a Revoke freezes a copy of
    it. A delivery is in one of four states: waiting, running, frozen (it runs and was revoked) or lost (it runs and was
    cancelled for good: its deadline has passed, or it took too long).

    One thread, that of an event loop, may use three attributes without the lock, as its handlers need less time than a lock:
    ``newest``, ``claimed`` and ``ended``. It reads the clock, compares it with ``newest``, and only then starts what it pops from
    ``claimed``; when a handler has returned, it appends its delivery to ``ended``. Each is one step of the interpreter. What is in
    ``claimed`` is among the running ones, but has not started: a method that must know takes it back first.
    """

    __slots__ = (
        "_batches",
        "_pings",
        "answers",
        "broken",
        "claimed",
        "done",
        "draining",
        "ended",
        "frozen",
        "k",
        "lost",
        "newest",
        "running",
        "starts",
        "suspended",
        "timed",
        "tooks",
        "waiting",
    )

    def __init__(self) -> None:
        self.claimed: list[T] = []  # by the loop's thread, which starts them without the lock: the first one last
        self.ended: list[T] = []  # by the loop's thread: their handlers have succeeded
        self.done: list[int] = []  # ids on their way to the router: answered DONE, and nothing else to say
        self.timed = False  # the router asks when handlers ran
        self.starts: list[int] = []  # if timed: started_ns of each delivery in done
        self.tooks: list[int] = []  # if timed: took_ns of each delivery in done
        self.answers: list[Answer] = []  # the other answers on their way to the router
        self.waiting = 0  # how many deliveries wait
        self._batches: deque[_Batch[W, T]] = deque()  # none is empty
        self.running: dict[int, T] = {}
        self.frozen: dict[int, T] = {}
        self.lost: dict[int, T] = {}
        self.newest = NEVER  # the deadline of deliveries that are not revoked
        self.k = 0  # number of the newest Ping
        self._pings: dict[int, int] = {}  # k: the instant before it was sent
        self.suspended = False  # the router lets nothing start
        self.draining = False  # we let nothing start
        self.broken = False  # the stream has ended: deadlines stay, answers have nowhere to go

    def give(self, items: Iterable[W], start: Callable[[list[W]], list[T]]) -> None:
        """Adds deliveries to the waiting ones. ``start`` makes the running forms of some of them, when they start."""
        if self.broken:
            return
        if self.draining:
            self._refuse(items)
            return
        left = list(items)
        if left:
            left.reverse()
            self._batches.append(_Batch(left, start))
            self.waiting += len(left)

    def take(self, now: int) -> T | None:
        """Returns the next delivery to start, None if there is none or none may start.

        A delivery starts only while the deadline of the newest Pong lies ahead. ``now`` must have been read right before.
        """
        return self.turn(None, None, now)

    def turn(self, ended: T | None, answer: Answer | None, now: int) -> T | None:
        """Is :meth:`end`, if a delivery has ended, and then :meth:`take`: one call for each event instead of two."""
        if ended is not None:
            if answer is None and not self.broken and not self.timed and self.running.pop(ended.id, None) is not None:
                self.done.append(ended.id)
            else:
                self.end(ended, answer)
        if not self.waiting or now >= self.newest or self.suspended or self.broken:
            return None
        batch = self._batches[0]
        if batch.start is not _same:
            batch = self._prepare(batch)
        item: T = batch.left.pop()  # type: ignore[assignment]  # prepared
        self.waiting -= 1
        if not batch.left:
            self._batches.popleft()
        self.running[item.id] = item
        return item

    def _prepare(self, batch: _Batch[W, T]) -> _Batch[W, T]:
        """Makes the running forms of the first deliveries, which go on waiting, and returns their batch: one by one they cost twice as much."""
        items = batch.start(batch.left[-PREPARED_MAX:])
        del batch.left[-PREPARED_MAX:]
        if not batch.left:
            self._batches.popleft()
        prepared: _Batch[W, T] = _Batch(items, _same)  # type: ignore[arg-type]  # an Item has what a waiting delivery has
        self._batches.appendleft(prepared)
        return prepared

    def claim(self, now: int, most: int) -> T | None:
        """Is :meth:`take`, and claims up to ``most`` - 1 deliveries that follow. For the loop's thread alone."""
        self.settle()
        if now >= self.newest or self.suspended or self.broken:
            self._unclaim()
            return None
        if not self.claimed:
            if not self.waiting:
                return None
            batch = self._batches[0]
            running = self.running
            items = batch.start(batch.left[-most:])
            del batch.left[-most:]
            if not batch.left:
                self._batches.popleft()
            self.waiting -= len(items)
            for item in items:
                running[item.id] = item
            self.claimed.extend(items)
        return self.claimed.pop()

    def _unclaim(self) -> None:
        """Lets deliveries that were claimed and have not started wait again. What the loop's thread pops meanwhile has started."""
        items: list[T] = []
        while self.claimed:
            try:
                items.append(self.claimed.pop())
            except IndexError:  # the loop's thread was faster
                break
        if items:
            for item in items:
                del self.running[item.id]
            items.reverse()
            self._batches.appendleft(_Batch(items, _same))  # type: ignore[arg-type]  # as in _prepare
            self.waiting += len(items)

    def settle(self) -> None:
        """Answers what the loop's thread has put into ``ended``."""
        count = len(self.ended)
        if count:
            items = self.ended[:count]
            del self.ended[:count]  # more may have been appended
            if self.frozen or self.lost or self.broken:
                for item in items:
                    self.end(item)
                return
            running, ids = self.running, [item.id for item in items]
            for delivery_id in ids:
                del running[delivery_id]
            self.done += ids
            if self.timed:
                self.starts += [item.started_ns for item in items]
                self.tooks += [item.took_ns for item in items]

    def startable(self) -> bool:
        """Reports whether :meth:`take` would return a delivery, judged without the clock."""
        return self.waiting > 0 and not self.suspended and not self.broken

    def end(self, item: T, answer: Answer | None = None) -> None:
        """Answers a delivery whose handler has returned; None stands for DONE."""
        if self.running.pop(item.id, None) is None and self.frozen.pop(item.id, None) is None and self.lost.pop(item.id, None) is None:
            return  # answered before
        if self.broken:
            return  # only an answer on the same stream counts
        if answer is not None:
            self.answers.append(answer)
            return
        self.done.append(item.id)
        if self.timed:
            self.starts.append(item.started_ns)
            self.tooks.append(item.took_ns)

    def _refuse(self, items: Iterable[W]) -> None:
        self.answers.extend(Answer(item.delivery_id, NOT_STARTED) for item in items)

    def _refuse_all(self) -> None:
        for batch in self._batches:
            self._refuse(reversed(batch.left))
        self._batches.clear()
        self.waiting = 0

    def ping(self, now: int) -> int:
        """Notes a Ping that is sent after ``now``, and returns its number."""
        self.k += 1
        self._pings[self.k] = now
        self._pings.pop(self.k - PINGS_REMEMBERED_MAX, None)
        return self.k

    def pong(self, now: int, k: int, remaining: int, draining: Collection[int] = ()) -> list[T]:
        """Takes a Pong in, and returns the deliveries whose deadline had passed before it came.

        A deadline that has passed is never extended.
        """
        lost = self.check(now)
        sent = self._pings.get(k)
        if sent is None or remaining <= 0:
            return lost
        # The router computed remaining after it had received the Ping, so counting from before its sending is early enough.
        deadline = sent + remaining
        self.newest = max(self.newest, deadline)
        for delivery_id in draining:
            item = self.frozen.get(delivery_id)
            if item is not None:
                item.deadline = max(item.deadline, deadline)
        return lost

    def revoke(self, partitions: Container[int] | None = None) -> None:
        """Takes the deliveries of these partitions back, or all of them.

        Those that have not started are answered; started ones keep their deadlines.
        """
        if partitions is None:
            self._take_back(lambda delivery_id, partition: True)
        else:
            self._take_back(lambda delivery_id, partition: partition in partitions)

    def cut(self, delivery_ids: Container[int]) -> list[T]:
        """Takes single deliveries back that took too long, and returns those that run: their handlers must be cancelled.

        Those that have not started are answered. Deadlines stay where they are.
        """
        self._take_back(lambda delivery_id, partition: delivery_id in delivery_ids)
        return self._lose([item for item in self.frozen.values() if item.id in delivery_ids], self.frozen)

    def _take_back(self, hit: Callable[[int, int], bool]) -> None:
        self.settle()
        self._unclaim()
        for batch in self._batches:
            hits = [hit(item.delivery_id, item.partition) for item in batch.left]
            if any(hits):
                self._refuse(item for item, is_hit in zip(batch.left, hits, strict=True) if is_hit)
                batch.left = [item for item, is_hit in zip(batch.left, hits, strict=True) if not is_hit]
        self._batches = deque(batch for batch in self._batches if batch.left)
        self.waiting = sum(len(batch.left) for batch in self._batches)
        for item in [item for item in self.running.values() if hit(item.id, item.partition)]:
            del self.running[item.id]
            item.deadline = self.newest
            self.frozen[item.id] = item

    def check(self, now: int) -> list[T]:
        """Returns the running deliveries whose deadline has passed. Their handlers must be cancelled.

        These deliveries stay lost, whatever follows.
        """
        self.settle()
        lost: list[T] = []
        if self.running and now >= self.newest:
            self._unclaim()
            lost = list(self.running.values())
            for item in lost:
                item.deadline = self.newest
            self._lose(lost, self.running)
        if self.frozen:
            lost += self._lose([item for item in self.frozen.values() if now >= item.deadline], self.frozen)
        return lost

    def _lose(self, items: list[T], of: dict[int, T]) -> list[T]:
        for item in items:
            del of[item.id]
            self.lost[item.id] = item
        return items

    def sure(self) -> int:
        """Returns an instant before which no running handler's deadline passes. The greatest one returned so far counts."""
        return NEVER if self.frozen or self.lost else self.newest

    def deadline(self, item: T) -> int:
        """Returns until when a delivery may run."""
        if item.id in self.frozen or item.id in self.lost:
            return item.deadline
        return self.newest

    def suspend(self) -> None:
        """Lets nothing start until :meth:`resume`."""
        self._unclaim()
        self.suspended = True

    def resume(self) -> None:
        """Ends a :meth:`suspend`."""
        self.suspended = False

    def drain(self) -> None:
        """Starts no more deliveries: waiting ones, and those that still arrive, are answered as not started."""
        self._unclaim()
        self.draining = True
        self._refuse_all()

    def break_off(self) -> None:
        """Records the end of the stream.

        Running deliveries keep their last deadline; waiting ones are dropped, since their answers could not be sent.
        """
        self.settle()
        self._unclaim()
        self.broken = True
        self._batches.clear()
        self.waiting = 0
        self.done, self.starts, self.tooks, self.answers = [], [], [], []

    def started(self) -> int:
        """Returns how many handlers run."""
        return len(self.running) + len(self.frozen) + len(self.lost)

    def held(self) -> int:
        """Returns how many deliveries have no answer: those that wait and those that run."""
        return self.waiting + self.started()
