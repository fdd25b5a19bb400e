"""State between the turns of a key."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import gc
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import ringfence
from ringfence import Event, Fence
from ringfence.app.v1 import app_pb2 as pb
from ringfence.event import RETURNED
from ringfence.options import check
from ringfence.runner import Runner
from ringfence.stream import Stream
from ringfence.testing import Outcome, Router

WAIT = 30.0
GENERATION = 7


class Cart:
    """A state."""

    n = 0


def runner_of(**options: Any) -> Runner:
    runner = Runner(check("127.0.0.1:1", options))
    runner.pool = _NoPool()
    return runner


class _NoPool:
    def wanted(self) -> bool:
        return False

    def wake(self) -> None: ...

    def lost(self, event: Event) -> None: ...

    def cancel(self, event: Event) -> None: ...

    def retire(self) -> None: ...


def turn_of(stream: Stream, key: str = "k", *, turn: int = 1, generation: int = 1, token: int = 1, of: type[Event] = Event) -> Event:
    """An event that a router has delivered."""
    event = of(key, fence=Fence(token, turn))
    event.id, event.partition, event._stream, event._generation = turn, ord(key[0]), stream, generation
    return event


def ask(event: Event, value: Any = None, name: str = "") -> tuple[Any, bool]:
    """Returns the state, and whether it was loaded."""
    loaded = False

    def load() -> Any:
        nonlocal loaded
        loaded = True
        return Cart() if value is None else value

    return event.state(load, name), loaded


def loads(event: Event) -> bool:
    return ask(event)[1]


def ended(event: Event, done: bool = True) -> None:
    assert event._stream is not None
    event._stream.runner.states.ended(event, done)


class _Turn:
    """What the model knows of a turn."""

    def __init__(self, event: Event, may: Any) -> None:
        self.event = event
        self.may = may  # what the turn before has left for it
        self.has: Any = None  # what it has asked for
        self.values: list[Cart] = []  # all that it has asked for: several if some were dropped
        self.wrote = False  # before it has asked
        self.lost = False

    def place(self) -> tuple[object, int, int]:
        return self.event._stream, self.event.fence.token, self.generation

    @property
    def stream(self) -> Stream:
        assert self.event._stream is not None
        return self.event._stream

    generation = 0


class _Model:
    """Any schedule of turns, also of handlers that have lost their keys, continue and write: what a turn gets, and what the database has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.most = self.random.randint(1, 3)
        self.runner = runner_of(state_max=self.most)
        self.states = self.runner.states
        self.streams = [Stream(self.runner), Stream(self.runner)]
        self.runner._streams += self.streams
        self.running: list[_Turn] = []
        self.left: dict[bytes, tuple[Any, object]] = {}  # what the last turn of a key has left, and where
        self.rows: dict[bytes, int] = {}  # the database: the number of the last write of each key
        self.count = self.hits = self.writes = 0

    def newest(self, key: bytes) -> _Turn | None:
        return next((turn for turn in reversed(self.running) if turn.event.key == key), None)

    def begin(self) -> None:
        key = self.random.choice("abc")
        before = self.newest(key.encode())
        if before is not None:
            if not before.lost and self.random.random() < 0.7:
                return
            before.lost = True
        self.count += 1
        stream = self.streams[self.random.random() < 0.2]
        generation = self.random.choice((0, 1, 1, 1, 1, 1, 2))
        event = turn_of(stream, key, turn=self.count, generation=generation, token=1 + self.count // 20)
        turn = _Turn(event, None)
        turn.generation = generation
        value, place = self.left.pop(event.key, (None, None))
        if place == turn.place() and generation and not stream.over:
            turn.may = value
        self.running.append(turn)
        if self.states.kept:  # as the pools do
            self.states.begun(event)

    def ask(self) -> None:
        if not self.running:
            return
        turn = self.random.choice(self.running)
        if turn.wrote:
            return
        fresh = Cart()
        fresh.n = self.rows.get(turn.event.key, 0)
        value, loaded = ask(turn.event, fresh)
        if not loaded:
            self.hits += 1
            assert value is turn.has or value is turn.may, "it got what the turn before has not left here"
            assert turn.values or value.n == fresh.n, "it got what the database does not have"
        turn.has = value
        turn.values.append(value)

    def write(self) -> None:
        if not self.running:
            return
        lost = [turn for turn in self.running if turn.lost]
        turn = self.random.choice(lost if lost and self.random.random() < 0.5 else self.running)
        self.writes += 1
        self.rows[turn.event.key] = self.writes
        if turn.values:
            self.random.choice(turn.values).n = self.writes
        else:
            turn.wrote = True

    def notice(self) -> None:
        """Notices that handlers have lost their keys."""
        for turn in self.running:
            if turn.lost and self.random.random() < 0.5:
                self.lose(turn)

    def lose(self, turn: _Turn) -> None:
        if turn.event._cause is not None:
            return
        turn.stream.inbox.lost[turn.event.id] = turn.event
        self.runner.cancel([turn.event], ringfence.KeyLost)

    def end(self) -> None:
        if not self.running:
            return
        at = self.random.randrange(len(self.running))
        if self.running[at].lost and self.random.random() < 0.7:
            return
        turn = self.running.pop(at)
        for other in self.running:  # the check of deadlines takes less time than a turn: the router waits longer for the deadline of a handler
            if other.lost and other.event.key == turn.event.key:
                self.lose(other)
        done = not turn.lost and self.random.random() < 0.8
        ended(turn.event, done)
        turn.stream.inbox.end(turn.event)
        newest = self.newest(turn.event.key)
        if not done:
            self.left.pop(turn.event.key, None)
            if newest is not None and newest.event.fence > turn.event.fence:  # this handler may have written after that one had loaded
                newest.has = newest.may = None
        elif turn.has is not None:
            self.left[turn.event.key] = turn.has, turn.place()

    def revoke(self) -> None:
        stream, partitions = self.random.choice(self.streams), {ord(self.random.choice("ab"))}
        self.states.forget(stream, partitions)
        self.taken_back(lambda turn: turn.stream is stream and turn.event.partition in partitions)
        for key, (_, place) in list(self.left.items()):
            if key[0] in partitions and place[0] is stream:  # type: ignore[index]
                del self.left[key]

    def reconnect(self) -> None:
        at = self.random.randrange(2)
        old = self.streams[at]
        old.end()
        self.taken_back(lambda turn: turn.stream is old)
        self.streams[at] = Stream(old.runner)
        self.runner._streams.append(self.streams[at])

    def taken_back(self, hit: Callable[[_Turn], bool]) -> None:
        for turn in self.running:
            if hit(turn):
                turn.may = turn.has = None

    def check(self) -> None:
        assert len(self.states.kept) <= self.most
        assert all(kept.user is not None or not kept.stream.over for kept in self.states.kept.values()), "it keeps a stream that has ended"


def test_a_turn_gets_what_the_turn_before_has_left() -> None:
    hits = 0
    for seed in range(150):
        model = _Model(seed)
        for step in range(150):
            try:
                steps = model.begin, model.ask, model.write, model.notice, model.end, model.revoke, model.reconnect
                model.random.choices(steps, (10, 16, 8, 2, 9, 1, 0.3))[0]()
                model.check()
            except AssertionError as failure:
                raise AssertionError(f"seed {seed}, step {step}: {failure}") from failure
        hits += model.hits
    assert hits > 500, "the test has tried nothing"


def test_a_state_is_kept_and_each_doubt_ends_it() -> None:
    stream = Stream(runner_of())
    for n, (generation, token, asks, done, want) in enumerate(
        [
            (1, 1, True, True, True),
            (1, 1, True, True, False),
            (1, 1, True, False, False),
            (1, 1, True, True, True),
            (1, 1, False, True, False),
            (1, 1, True, True, True),
            (2, 1, True, True, True),
            (2, 1, True, True, False),
            (2, 2, True, True, True),
            (2, 2, True, True, False),
            (0, 2, True, True, True),
            (0, 2, True, True, True),
        ]
    ):
        event = turn_of(stream, turn=n + 1, generation=generation, token=token)
        if asks:
            value, loaded = ask(event)
            assert loaded == want, f"turn {n}"
            if generation:
                assert ask(event) == (value, False), "a handler that asks twice gets two states"
        ended(event, done)


def test_a_handler_that_continues_leaves_and_takes_nothing() -> None:
    stream = Stream(runner_of())
    lost, second = turn_of(stream, turn=1), turn_of(stream, turn=2)
    ask(lost)
    own, loaded = ask(second)
    assert loaded, "the next turn got the state of a handler that still runs"
    assert loads(lost), "it got the state of the next turn"
    assert ask(second) == (own, False), "it took the state of the next turn"


@pytest.mark.parametrize("during", ["turn", "load"])
def test_a_handler_that_continues_and_ends_during_the_next_turn(during: str) -> None:
    """It may have written after that turn had loaded."""
    stream = Stream(runner_of())
    lost, second = turn_of(stream, turn=1), turn_of(stream, turn=2)

    def load() -> Cart:
        if during == "load":
            ended(lost, done=False)
        return Cart()

    second.state(load)
    if during == "turn":
        ended(lost, done=False)
    ended(second)
    third, fourth = turn_of(stream, turn=3), turn_of(stream, turn=4)
    assert loads(third)
    ended(third)
    assert not loads(fourth)


@pytest.mark.parametrize("ends", [False, True], ids=["same stream", "next stream"])
@pytest.mark.parametrize("single", [False, True], ids=["deadline", "took too long"])
def test_a_handler_that_continues_for_further_turns(ends: bool, single: bool) -> None:
    """No turn gets or leaves a state while a handler of its key runs that has lost it."""
    runner = runner_of()
    stream, following = Stream(runner), Stream(runner)
    runner._streams += [stream, following]
    lost = turn_of(stream, turn=1)
    stream.inbox.running[lost.id] = lost
    if ends:
        stream.end()
        stream = following

    def turn(number: int) -> bool:
        event = turn_of(stream, turn=number)
        loaded = loads(event)
        ended(event)
        return loaded

    second = turn_of(stream, turn=2)
    ask(second)
    if single:
        assert lost._stream is not None
        lost._stream.handle(pb.WorkResponse(revoke=pb.Revoke(delivery_ids=[lost.id], timed_out=True)).SerializeToString())
    else:
        assert lost.cancelled, "its deadline has not passed"
    ended(second)
    assert [turn(number) for number in (3, 4, 5)] == [True, True, True], "the handler may have written since the turn before had loaded"
    sixth = turn_of(stream, turn=6)
    ask(sixth)
    ended(lost, done=False)
    runner.returned(lost, None)
    ended(sixth)
    assert [turn(number) for number in (7, 8)] == [True, False]


@pytest.mark.parametrize("beside", [False, True], ids=["another key took its place", "beside a lost handler"])
def test_a_state_that_is_loaded_twice(beside: bool) -> None:
    """A handler whose state was dropped or not kept may still change that, and not what it has loaded since."""
    stream = Stream(runner_of(state_max=1))
    stream.runner._streams.append(stream)
    lost, second = turn_of(stream, turn=1), turn_of(stream, turn=2)
    if beside:
        stream.inbox.lost[lost.id] = lost
    ask(second)
    if beside:
        stream.inbox.end(lost)
    else:
        ask(turn_of(stream, "other"))  # there is room for one key
    ask(second)
    ended(second)
    assert loads(turn_of(stream, turn=3))


def test_what_a_handler_has_left_behind() -> None:
    stream = Stream(runner_of())
    first, second = turn_of(stream, turn=1), turn_of(stream, turn=2)
    own, _ = ask(first)
    ended(first)
    first._cause = RETURNED
    assert loads(first), "it got what is for the next turn"
    assert ask(second) == (own, False), "the next turn has lost the state"


@pytest.mark.parametrize("cause", [RETURNED, ringfence.KeyLost("lost")], ids=["returned", "cancelled"])
def test_a_load_that_ends_after_its_handler(cause: ringfence.Cancelled) -> None:
    """As in a task that the handler has left behind. Nobody would end the turn, so its event and its stream would be kept."""
    stream = Stream(runner_of())
    event = turn_of(stream)
    value = Cart()

    def load() -> Cart:
        ended(event, done=cause is RETURNED)
        event._cause = cause
        return value

    assert event.state(load) is value
    assert not stream.runner.states.kept


def test_a_handler_that_ends_after_the_next_turn() -> None:
    stream = Stream(runner_of())
    lost, second = turn_of(stream, turn=1), turn_of(stream, turn=2)
    ask(lost)
    ask(second)
    ended(second)
    assert loads(lost), "it got what the next turn had left"
    ended(lost, done=False)
    assert loads(turn_of(stream, turn=3)), "what the two have left is not in one order"


@pytest.mark.parametrize(
    ("revoke", "want"),
    [
        pytest.param(pb.Revoke(all=True), True, id="all partitions"),
        pytest.param(pb.Revoke(partitions=[3, ord("k")]), True, id="its partition"),
        pytest.param(pb.Revoke(partitions=[3]), False, id="another partition"),
        pytest.param(pb.Revoke(delivery_ids=[1, 2]), False, id="single deliveries"),
    ],
)
@pytest.mark.parametrize("runs", [False, True])
def test_a_revoke(revoke: pb.Revoke, want: bool, runs: bool) -> None:
    stream = Stream(runner_of())
    first = turn_of(stream, turn=1)
    ask(first)
    if not runs:
        ended(first)
    stream.handle(pb.WorkResponse(revoke=revoke).SerializeToString())
    if runs:
        ended(first)
    assert loads(turn_of(stream, turn=3)) == want


def test_the_end_of_a_stream() -> None:
    runner = runner_of()
    stream, other = Stream(runner), Stream(runner)
    idle, running, of_other = turn_of(stream, "idle"), turn_of(stream, "running"), turn_of(other, "other")
    for event in (idle, running, of_other):
        ask(event)
    ended(idle)
    ended(of_other)
    stream.end()
    ended(running)
    late = turn_of(stream, "late")
    ask(late)
    ended(late)
    assert list(runner.states.kept) == [b"other"], "states of a stream that has ended keep it in memory"
    assert loads(turn_of(other, "idle", turn=2))


def test_a_state_keeps_no_event() -> None:
    class Seen(Event):
        __slots__ = ("__weakref__",)

    stream = Stream(runner_of())
    event = turn_of(stream, of=Seen)
    ask(event)
    ended(event)
    seen = weakref.ref(event)
    del event
    gc.collect()
    assert seen() is None, "its frame is kept with it"
    assert len(stream.runner.states.kept) == 1


def test_the_states_used_last_are_kept() -> None:
    stream = Stream(runner_of(state_max=2))

    def turn(key: str, number: int) -> bool:
        event = turn_of(stream, key, turn=number)
        loaded = loads(event)
        ended(event)
        return loaded

    assert [turn(key, n) for n, key in enumerate("abacab")] == [True, True, False, True, False, True]
    assert list(stream.runner.states.kept) == [b"a", b"b"]
    stream = Stream(runner_of(state_max=0))
    assert [turn("a", n) for n in range(2)] == [True, True]
    assert not stream.runner.states.kept


def test_names() -> None:
    stream = Stream(runner_of())
    first = turn_of(stream, turn=1)
    cart, total = ask(first, name="cart")[0], ask(first, [1], name="total")[0]
    assert ask(first, name="cart") == (cart, False)
    ended(first)
    second = turn_of(stream, turn=2)
    assert ask(second, name="total") == (total, False)
    ended(second)
    third = turn_of(stream, turn=3)
    assert ask(third, name="total") == (total, False)
    assert loads(third), "the second turn has not asked for it"
    assert ask(third, name="cart")[1], "the second turn has not asked for it"


def test_falsy_values_are_kept_but_none() -> None:
    stream = Stream(runner_of())
    first = turn_of(stream, turn=1)
    assert first.state(list) == []
    assert first.state(lambda: None, "none") is None
    ended(first)
    second = turn_of(stream, turn=2)
    assert second.state(lambda: [1]) == []
    assert second.state(lambda: 5, "none") == 5, "None was kept"


class Status(enum.Enum):
    """A state that a handler could only replace."""

    OPEN = 1


@pytest.mark.parametrize(
    "value",
    [5, 1.5, True, decimal.Decimal("1.5"), "text", b"bytes", (1, 2), frozenset(), Status.OPEN, datetime.date(2026, 1, 2), datetime.timedelta(1)],
    ids=repr,
)
def test_a_value_that_cannot_be_changed_is_not_kept(value: Any) -> None:
    stream = Stream(runner_of())
    first = turn_of(stream, turn=1)
    assert ask(first, value) == (value, True)
    ended(first)
    assert loads(turn_of(stream, turn=2)), "it would be outdated after a write of the first turn"


def test_a_load_that_fails() -> None:
    stream = Stream(runner_of())
    event = turn_of(stream)
    failure = ValueError("no database")

    def load() -> Cart:
        raise failure

    with pytest.raises(ValueError, match="no database") as caught:
        event.state(load)
    assert caught.value is failure

    async def load_async() -> Cart:
        raise failure

    with pytest.raises(ValueError, match="no database") as caught:
        asyncio.run(event.state_async(load_async))
    assert caught.value is failure
    ended(event)
    assert not stream.runner.states.kept


def test_a_coroutine_function_needs_state_async() -> None:
    async def load() -> Cart:
        return Cart()

    for event in (Event("k"), turn_of(Stream(runner_of()))):
        with pytest.raises(TypeError, match="state_async"):
            event.state(load)  # type: ignore[unused-coroutine]


def test_two_loads_of_one_handler() -> None:
    """Each gets what it has loaded, and the later one counts."""
    stream = Stream(runner_of())
    first = turn_of(stream)

    async def both() -> tuple[list[int], list[int]]:
        begun = asyncio.Event()

        async def slow() -> list[int]:
            await begun.wait()
            return [1]

        async def fast() -> list[int]:
            begun.set()
            return [2]

        first_value, second_value = await asyncio.gather(first.state_async(slow), first.state_async(fast))
        return first_value, second_value

    assert asyncio.run(both()) == ([1], [2])
    assert ask(first) == ([1], False)
    ended(first)
    assert ask(turn_of(stream, turn=2)) == ([1], False)


def test_without_a_router() -> None:
    for delivery in (
        Event("k"),
        ringfence.Call("k", "charge"),
        ringfence.Firing("report", ringfence.Event("k").publish_time),
    ):
        assert (delivery.state(lambda: 1), delivery.state(lambda: 2)) == (1, 2)

        async def load() -> int:
            return 3

        assert asyncio.run(delivery.state_async(load)) == 3


@pytest.mark.parametrize("most", [None, 0])
def test_the_router_in_memory(most: int | None) -> None:
    """A state is kept while one worker has all turns of the key, as at a router."""
    count = 0

    def handle(event: Event) -> None:
        def load() -> Cart:
            nonlocal count
            count += 1
            return Cart()

        event.state(load)

    with Router() as router:

        def turn(key: str = "k") -> bool:
            before = count
            assert router.deliver(key).outcome().kind == "done"
            return count > before

        if most == 0:
            router.start(handle, state_max=most)
            assert [turn(), turn()] == [True, True]
            return
        worker = router.start(handle)
        assert [turn(), turn(), turn("other"), turn()] == [True, False, True, False]
        changes: list[Callable[[], None]] = [lambda: router.lose("k"), router.expire, router.disconnect]
        for change in changes:
            change()
            assert [turn(), turn()] == [True, False]
        worker.stop()
        worker.join()
        router.start(handle)
        assert [turn(), turn()] == [True, False]


@pytest.mark.parametrize(("options", "want"), [({}, True), ({"state_max": 1}, True), ({"state_max": 0}, False)])
def test_the_capability(options: dict[str, Any], want: bool) -> None:
    hello = pb.WorkRequest.FromString(next(Stream(runner_of(**options)).requests())).hello
    assert ("state" in hello.capabilities) == want


@pytest.mark.parametrize("most", [-1, True, 1.5, None, "9"])
def test_bad_options(most: object) -> None:
    with pytest.raises(ringfence.ArgumentError, match=r"state_max = .*, want a number of keys, at least 0"):
        ringfence.Worker(lambda event: None, state_max=most)  # type: ignore[arg-type]


def test_a_turn_that_is_passed_over() -> None:
    """Its handler has not asked, may have written, and continues while the next turn begins."""
    stream = Stream(runner_of())
    first, lost, third = (turn_of(stream, turn=n) for n in (1, 2, 3))
    states = stream.runner.states
    ask(first)
    ended(first)
    states.begun(lost)
    states.begun(third)
    assert loads(third)
    assert loads(lost)
    ended(third)
    assert not loads(turn_of(stream, turn=4))


# With a worker.


@pytest.fixture(params=["threads", "async"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def router(ringfence_router: Router, monkeypatch: pytest.MonkeyPatch) -> Router:
    """A router that gives each delivery one generation, as if its worker had every turn."""
    wire = Router._wire

    def with_generation(self: Router, *arguments: Any) -> pb.Delivery:
        delivery = wire(self, *arguments)
        delivery.generation = GENERATION
        return delivery

    monkeypatch.setattr(Router, "_wire", with_generation)
    return ringfence_router


class Visits:
    """Handlers of both styles that add a number to the state of their key, if the payload has no other instruction."""

    def __init__(self, style: str) -> None:
        self.style = style
        self.seen: queue.SimpleQueue[list[int]] = queue.SimpleQueue()

    def handle(self, of: Event | ringfence.Call, ids: list[int]) -> None:
        ids.append(int(of.payload[:1]))
        self.seen.put(list(ids))
        if b"fail" in of.payload:
            raise ValueError("told to fail")

    def plain(self, of: Any) -> None:
        if of.payload != b"skip":
            self.handle(of, of.state(list))

    async def task(self, of: Any) -> None:
        async def load() -> list[int]:
            await asyncio.sleep(0)
            return []

        if of.payload != b"skip":
            self.handle(of, await of.state_async(load))

    @property
    def handler(self) -> Any:
        return self.plain if self.style == "threads" else self.task


def test_turns_of_a_worker(router: Router, style: str) -> None:
    visits = Visits(style)
    worker = router.start(visits.handler, calls={"visit": visits.handler})
    kept = worker._runner.states.kept

    def turn(payload: str, key: str = "k", kind: str = "done", call: bool = False) -> list[int] | None:
        delivery = router.call(key, "visit", payload) if call else router.deliver(key, payload)
        assert delivery.outcome().kind == kind
        return None if payload == "skip" else visits.seen.get(timeout=WAIT)

    assert turn("1") == [1]
    assert turn("2") == [1, 2]
    assert turn("3", key="other") == [3]
    assert turn("4", call=True) == [1, 2, 4], "a call is a turn as an event is"
    assert turn("5 fail", kind="retry") == [1, 2, 4, 5]
    assert b"k" not in kept, "it keeps the event in memory"
    assert turn("6") == [6], "the turn before has failed"
    turn("skip")
    assert b"k" not in kept, "it keeps the place of another key"
    assert turn("7") == [7], "the turn before has not asked"
    turn("skip", call=True)
    assert turn("8") == [8], "the call before has not asked"
    router.lose("k")
    assert turn("9") == [9]
    router.disconnect()
    assert turn("1") == [1], "it was left on another stream"
    assert list(kept) == [b"k"], "states of a stream that has ended keep it in memory"


def test_a_delivery_without_a_fence(router: Router, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the router fails its own delivery, and no thread or task of the pool."""
    wire = router._wire

    def without_token(*arguments: Any) -> pb.Delivery:
        delivery = wire(*arguments)
        if delivery.payload == b"2":
            delivery.token = 99  # which the frame does not have
        return delivery

    visits = Visits(style)
    router.start(visits.handler, max_in_flight=1)
    monkeypatch.setattr(router, "_wire", without_token)
    assert [router.deliver("k", payload).outcome().kind for payload in ("1", "2", "3")] == ["done", "retry", "done"]
    assert [visits.seen.get(timeout=WAIT) for _ in range(2)] == [[1], [3]]


def test_firings(router: Router, style: str) -> None:
    seen: list[int] = []

    def fire(firing: ringfence.Firing) -> None:
        runs = firing.state(list)
        runs.append(0)
        seen.append(len(runs))

    async def fire_async(firing: ringfence.Firing) -> None:
        async def load() -> list[int]:
            return []

        runs = await firing.state_async(load)
        runs.append(0)
        seen.append(len(runs))

    visits = Visits(style)
    of_schedule: Any = fire if style == "threads" else fire_async
    router.start(visits.handler, schedules=[ringfence.Schedule("report", ringfence.every(60), of_schedule)])
    for _ in range(3):
        assert router.fire("report").outcome() == Outcome("done")
    assert seen == [1, 2, 3]


def test_a_handler_that_was_cancelled_and_returns(router: Router, style: str) -> None:
    """Its lease has ended, and the token is the same: as when the owner has lost its broker for a moment."""
    inside: queue.SimpleQueue[Event] = queue.SimpleQueue()
    returns = threading.Event()
    seen: list[bool] = []

    def plain(event: Event) -> None:
        seen.append(ask(event)[1])
        inside.put(event)
        returns.wait(WAIT)

    async def task(event: Event) -> None:
        seen.append(ask(event)[1])
        inside.put(event)
        while not returns.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass

    router.start(plain if style == "threads" else task)
    delivery = router.deliver("k")
    event = inside.get(timeout=WAIT)
    router.expire()
    end = time.monotonic() + WAIT
    while event.cause is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    returns.set()
    assert delivery.outcome() == Outcome("done")
    assert [router.deliver("k").outcome() for _ in range(2)] == [Outcome("done")] * 2
    assert seen == [True, True, False]


def test_a_handler_that_continues_and_has_not_asked(style: str, router: Router) -> None:
    """The router takes its event back for its handler.timeout, and delivers the next one of the key when the deadline has passed."""
    inside: queue.SimpleQueue[Event] = queue.SimpleQueue()
    returns = threading.Event()
    seen: list[bool] = []

    def plain(event: Event) -> None:
        if event.payload == b"continue":
            inside.put(event)
            returns.wait(WAIT)
        else:
            seen.append(ask(event)[1])

    async def task(event: Event) -> None:
        if event.payload == b"continue":
            inside.put(event)
            while not returns.is_set():
                try:
                    await asyncio.sleep(0.005)
                except asyncio.CancelledError:
                    pass
        else:
            seen.append(ask(event)[1])

    router.start(plain if style == "threads" else task)
    assert router.deliver("k").outcome() == Outcome("done")
    continues = router.deliver("k", "continue")
    inside.get(timeout=WAIT)
    router.expire()
    with router._lock:
        router._boxes[b"k"].running = None  # as a router does when the deadline of a delivery has passed
    assert router.deliver("k").outcome() == Outcome("done")
    returns.set()
    assert continues.outcome() == Outcome("done")
    assert seen == [True, True]


def test_the_clock_is_asked_at_the_end(router: Router, style: str) -> None:
    """The deadline passes between two checks of the watch, while the handler returns."""
    inside, passed, returned = threading.Event(), threading.Event(), threading.Event()
    seen: list[bool] = []

    def plain(event: Event) -> None:
        seen.append(ask(event)[1])
        inside.set()
        passed.wait(WAIT)
        returned.set()

    async def task(event: Event) -> None:
        plain(event)

    worker = router.start(plain if style == "threads" else task)
    delivery = router.deliver("k")
    assert inside.wait(WAIT)
    with worker._runner.lock:  # the watch can check nothing now
        router.expire()
        passed.set()
        assert returned.wait(WAIT)
        time.sleep(0.05)  # a pool that does not ask has kept the state by now
    delivery.outcome()
    assert router.deliver("k").outcome() == Outcome("done")
    assert seen == [True, True]


def test_a_handler_that_returns_late_was_not_cancelled(
    router: Router, style: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is not kept, and the log does not say that it was cancelled."""
    seen: list[bool] = []

    def plain(event: Event) -> None:
        seen.append(ask(event)[1])
        if len(seen) == 1:
            router.expire()

    async def task(event: Event) -> None:
        plain(event)

    worker = router.start(plain if style == "threads" else task)
    with monkeypatch.context() as without_watch:
        without_watch.setattr(worker._runner, "_check", lambda tick: 1)
        assert router.deliver("k").outcome() == Outcome("done")
    assert "handler cancelled" not in caplog.text
    assert router.deliver("k").outcome() == Outcome("done")
    assert seen == [True, True]
