"""The tests of internal/ownership/inbox, ported: names and cases are the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ringfence.inbox import CANCELLED, DONE, NOT_STARTED, PINGS_REMEMBERED_MAX, Answer, Inbox, Item

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


class Work(Item):
    __slots__ = ()

    def __init__(self, id: int, partition: int) -> None:
        self.id, self.partition = id, partition

    @property
    def delivery_id(self) -> int:
        return self.id


Box = Inbox[Work, Work]


def give(box: Box, *works: Work) -> None:
    box.give(works, lambda works: works)


def waiting(box: Box) -> list[Work]:
    return [work for batch in box._batches for work in reversed(batch.left)]


def given(n: int) -> tuple[Box, list[Work]]:
    """An inbox with deliveries 1 … n of partitions 1 … n, no Pong yet."""
    box: Box = Inbox()
    works = [Work(i, i) for i in range(1, n + 1)]
    give(box, *works[: n // 2])  # in two frames
    give(box, *works[n // 2 :])
    return box, works


def ponged(box: Box, sent: int, now: int, remaining: int, *draining: int) -> list[Work]:
    """Takes a Ping sent at one instant and its Pong at another."""
    return box.pong(now, box.ping(sent), remaining, draining)


def kinds(box: Box) -> list[int]:
    return [DONE] * len(box.done) + [answer.kind for answer in box.answers]


def test_nothing_starts_before_the_pong() -> None:
    box, works = given(1)
    assert box.take(0) is None, "a delivery started without a Pong"
    ponged(box, 10 * SECOND, 11 * SECOND, SECOND)  # the answer took as long as it was worth
    assert box.take(11 * SECOND) is None, "a delivery started at its deadline"
    ponged(box, 11 * SECOND, 11 * SECOND, SECOND)
    assert box.take(12 * SECOND - 1) is works[0], "a delivery did not start before its deadline"


def test_deadline_counts_from_before_the_ping() -> None:
    box, works = given(1)
    ponged(box, 10 * SECOND, 13 * SECOND, 5 * SECOND)
    assert box.deadline(works[0]) == 15 * SECOND


def _long_ago(box: Box) -> None:
    k = box.k
    for _ in range(PINGS_REMEMBERED_MAX):
        box.ping(2 * SECOND)
    box.pong(2 * SECOND, k, HOUR)


@pytest.mark.parametrize(
    "pong",
    [
        pytest.param(lambda box: box.pong(2 * SECOND, box.ping(2 * SECOND), 0), id="nothing remains"),
        pytest.param(lambda box: box.pong(2 * SECOND, box.ping(2 * SECOND), -HOUR), id="less than nothing"),
        pytest.param(lambda box: box.pong(2 * SECOND, 77, HOUR), id="no such ping"),
        pytest.param(lambda box: box.pong(2 * SECOND, 0, HOUR), id="ping 0"),
        pytest.param(_long_ago, id="a ping of long ago"),
        pytest.param(lambda box: ponged(box, 2 * SECOND, 2 * SECOND, SECOND), id="an earlier deadline"),
        pytest.param(lambda box: ponged(box, 0, SECOND, SECOND, 99), id="of another delivery set"),
    ],
)
def test_pongs_that_move_nothing(pong: Callable[[Box], object]) -> None:
    box, _ = given(1)
    ponged(box, SECOND, SECOND, 4 * SECOND)
    pong(box)
    assert box.newest == 5 * SECOND


def test_the_last_eight_pings_are_remembered() -> None:
    box, _ = given(1)
    first = box.ping(SECOND)
    for _ in range(PINGS_REMEMBERED_MAX - 1):
        box.ping(2 * SECOND)
    box.pong(2 * SECOND, first, HOUR)
    assert box.newest == SECOND + HOUR


def test_passed_deadline_is_never_extended() -> None:
    box, works = given(2)
    ponged(box, 0, 0, SECOND)
    box.take(0)
    lost = ponged(box, SECOND, SECOND, 60 * SECOND)  # frozen since 0; no check ran meanwhile
    assert lost == works[:1]
    assert box.deadline(works[0]) == SECOND
    assert box.take(SECOND) is works[1], "the delivery that had not started could not start under the new Pong"
    assert box.check(2 * SECOND) == [], "a delivery was lost twice"


def test_revoke() -> None:
    box, works = given(3)
    ponged(box, 0, 0, 10 * SECOND)
    box.take(0)  # 1 runs
    box.take(0)  # 2 runs; 3 waits
    box.revoke({1, 3})
    assert box.answers == [Answer(3, NOT_STARTED)]

    ponged(box, 5 * SECOND, 5 * SECOND, 10 * SECOND)
    assert (box.deadline(works[0]), box.deadline(works[1])) == (10 * SECOND, 15 * SECOND)
    ponged(box, 6 * SECOND, 6 * SECOND, 10 * SECOND, 1)
    assert box.deadline(works[0]) == 16 * SECOND
    ponged(box, 7 * SECOND, 7 * SECOND, 10 * SECOND)
    assert box.check(16 * SECOND) == works[:1]
    ponged(box, 16 * SECOND, 16 * SECOND, 10 * SECOND, 1)
    assert box.deadline(works[0]) == 16 * SECOND, "Pong.draining moved a passed deadline"


def test_cut() -> None:
    """An overlong delivery is cancelled at once, and nothing revives it; a waiting delivery is never overlong."""
    box, works = given(4)
    ponged(box, 0, 0, 10 * SECOND)
    for _ in range(3):
        box.take(0)  # 1, 2 and 3 run; 4 waits
    box.revoke({2})
    assert box.cut({1, 2, 4}) == [works[1], works[0]]
    assert kinds(box) == [NOT_STARTED]
    ponged(box, 5 * SECOND, 5 * SECOND, 10 * SECOND, 1, 2)
    assert [box.deadline(work) for work in works[:3]] == [10 * SECOND, 10 * SECOND, 15 * SECOND]
    assert box.check(20 * SECOND) == works[2:3]
    assert box.started() == 3, "being cut does not end a handler"


def test_revoke_is_not_for_later_deliveries() -> None:  # the key came back
    box, _ = given(0)
    ponged(box, 0, 0, SECOND)
    box.revoke({1})
    work = Work(1, 1)
    give(box, work)
    assert box.take(0) is work


def test_frozen_application_starts_nothing_revoked() -> None:
    """The process was frozen for long with a delivery that has not started; then come the Revoke and a fresh Pong."""
    box, _ = given(1)
    ponged(box, 0, 0, SECOND)
    box.revoke({1})
    ponged(box, 40 * SECOND, 40 * SECOND, 60 * SECOND)
    assert box.take(40 * SECOND) is None
    assert kinds(box) == [NOT_STARTED]


def test_suspended_machine_starts_nothing() -> None:
    """The machine slept through the deadline; the clock has gone on."""
    box, _ = given(2)
    ponged(box, 0, 0, SECOND)
    running = box.take(0)
    assert box.take(HOUR) is None
    assert box.check(HOUR) == [running]


def test_broken_stream_keeps_the_last_deadline() -> None:
    box, works = given(2)
    ponged(box, 0, 0, 10 * SECOND)
    box.take(0)
    box.break_off()
    give(box, Work(3, 3))
    assert box.take(SECOND) is None, "a delivery of a broken stream started"
    assert box.deadline(works[0]) == 10 * SECOND
    assert box.check(10 * SECOND - 1) == []
    assert box.check(10 * SECOND) == works[:1]
    box.end(works[0])
    assert (kinds(box), box.started()) == ([], 0)


def test_suspend_and_drain() -> None:
    box, works = given(2)
    ponged(box, 0, 0, 10 * SECOND)
    box.suspend()
    assert not box.startable()
    assert box.take(0) is None, "a delivery started while suspended"
    box.resume()
    assert box.startable()
    box.take(0)
    box.drain()
    give(box, Work(9, 0))
    assert kinds(box) == [NOT_STARTED, NOT_STARTED]
    box.end(works[0])
    assert (box.started(), kinds(box)) == (0, [DONE, NOT_STARTED, NOT_STARTED])


def test_a_delivery_is_answered_once() -> None:
    box, works = given(1)
    ponged(box, 0, 0, SECOND)
    box.take(0)
    box.end(works[0], Answer(1, CANCELLED))
    box.end(works[0])
    assert box.answers == [Answer(1, CANCELLED)]
    assert box.done == []


def test_a_turn_ends_one_delivery_and_starts_the_next() -> None:
    box, works = given(3)
    assert box.turn(None, None, 0) is None
    ponged(box, 0, 0, SECOND)
    assert box.turn(None, None, 0) is works[0]
    assert box.turn(works[0], None, 0) is works[1]
    box.revoke({2})
    assert box.turn(works[1], Answer(2, CANCELLED), 0) is works[2]
    assert box.turn(works[2], None, SECOND) is None
    assert (box.done, box.answers) == ([1, 3], [Answer(2, CANCELLED)])


def test_deliveries_start_in_their_order() -> None:
    box, works = given(5)
    ponged(box, 0, 0, SECOND)
    box.revoke({2, 4})
    assert [box.take(0) for _ in range(4)] == [works[0], works[2], works[4], None]
    box.revoke()
    assert (box.waiting, len(box.frozen)) == (0, 3)


def test_sure_is_a_lower_bound_of_all_deadlines() -> None:
    box, _ = given(2)
    ponged(box, 0, 0, SECOND)
    box.take(0)
    box.take(0)
    assert box.sure() == SECOND
    box.revoke({1})
    ponged(box, SECOND // 2, SECOND // 2, SECOND)
    assert box.sure() <= SECOND, "the revoked delivery's deadline is earlier"


def claimed(n: int) -> tuple[Box, list[Work]]:
    """An inbox of which the loop has claimed deliveries 1 … n until the instant of a second, and has started the first."""
    box: Box = Inbox()
    works = [Work(i, i) for i in range(1, n + 1)]
    give(box, *works)
    ponged(box, 0, 0, SECOND)
    assert box.claim(0, n) is works[0]
    assert (box.claimed, box.waiting) == (works[:0:-1], 0)
    return box, works


def test_claimed_deliveries_start_in_their_order() -> None:
    box, works = claimed(3)
    give(box, Work(4, 4))
    assert box.claimed.pop() is works[1]
    assert box.claim(0, 9) is works[2], "what was claimed before comes first"
    assert (box.claim(0, 9) or works[0]).id == 4
    assert box.claim(0, 9) is None


def test_claimed_deliveries_are_taken_back() -> None:
    box, works = claimed(4)
    box.revoke({1, 3})
    assert (waiting(box), box.claimed, list(box.running), list(box.frozen), kinds(box)) == ([works[1], works[3]], [], [], [1], [NOT_STARTED])
    box.suspend()
    assert box.claim(0, 9) is None
    box.resume()
    assert box.claim(0, 9) is works[1]
    box.suspend()
    assert (waiting(box), box.claimed, list(box.running)) == ([works[3]], [], [2])
    box.resume()
    assert box.claim(0, 9) is works[3]

    box, works = claimed(3)
    assert box.cut({1, 2}) == works[:1], "a delivery that has not started was cancelled"
    assert (waiting(box), kinds(box)) == ([works[2]], [NOT_STARTED])

    box, works = claimed(3)
    assert box.check(SECOND) == works[:1], "a delivery that has not started was cancelled at the deadline"
    ponged(box, SECOND, SECOND, SECOND)
    assert box.claim(SECOND, 9) is works[1]
    assert box.claim(2 * SECOND, 9) is None, "a claimed delivery started at its deadline"
    assert (waiting(box), box.claimed) == ([works[2]], [])

    box, works = claimed(3)
    box.drain()
    assert (list(box.running), kinds(box)) == ([1], [NOT_STARTED, NOT_STARTED])

    box, works = claimed(3)
    box.ended.append(works[0])
    box.break_off()
    assert (box.held(), box.claimed, kinds(box)) == (0, [], [])


def test_what_the_loop_has_ended_is_a_success() -> None:
    laters: list[Callable[[Box], object]] = [
        lambda box: box.check(SECOND),
        lambda box: box.revoke(),
        lambda box: box.cut({1}),
        lambda box: box.claim(SECOND, 9),
        lambda box: box.settle(),
    ]
    for late in laters:
        box, works = claimed(1)
        box.ended.append(works[0])
        assert not late(box), "an ended delivery was cancelled"
        assert (box.done, box.held()) == ([1], 0)
    box, works = claimed(1)
    assert box.check(SECOND) == works, "it runs"
    box.ended.append(works[0])
    box.settle()
    assert box.done == [1], "success after a cancellation is a success"


def test_times_stand_beside_what_is_done() -> None:
    box, works = claimed(4)
    box.timed = True
    for work in works:
        work.started_ns, work.took_ns = 100 * work.id, work.id
    box.ended.append(works[0])
    box.settle()
    assert box.claim(0, 9) is works[1]
    box.end(works[1])
    assert box.claim(0, 9) is works[2]
    assert box.turn(works[2], None, 0) is None
    assert box.claim(0, 9) is works[3]
    box.revoke()
    box.ended.append(works[3])
    box.settle()
    assert (box.done, box.starts, box.tooks) == ([1, 2, 3, 4], [100, 200, 300, 400], [1, 2, 3, 4])
    box.break_off()
    assert (box.done, box.starts, box.tooks) == ([], [], [])


class Model:
    """Draws frames and clock steps, and checks rules 2 to 5 at each step. Half of the models claim deliveries as a loop does."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loops = self.random.random() < 0.5
        self.ran: set[Work] = set()
        self.box: Box = Inbox()
        self.now = 0
        self.all: list[Work] = []
        self.newest = 0
        self.revoked: set[Work] = set()
        self.lost: set[Work] = set()
        self.started = 0

    def open(self, work: Work) -> bool:
        return self.waits(work) or self.runs(work)

    def waits(self, work: Work) -> bool:
        return any(work is other for other in waiting(self.box))

    def runs(self, work: Work) -> bool:
        return any(work.id in of for of in (self.box.running, self.box.frozen, self.box.lost))

    def lose(self, works: list[Work]) -> None:
        for work in works:
            assert work not in self.lost, "lost twice"
            assert work in self.ran, "lost before it started"
            self.lost.add(work)

    def give(self) -> None:
        works = [Work(len(self.all) + 1 + i, self.random.randint(0, 3)) for i in range(self.random.randint(1, 3))]
        self.all += works
        give(self.box, *works)

    def take(self) -> None:
        if self.loops:
            if self.box.claimed and self.now < self.box.newest and self.random.random() < 0.7:
                self.begun(self.box.claimed.pop())
            else:
                self.begun(self.box.claim(self.now, self.random.randint(1, 4)))
            return
        self.begun(self.box.turn(None, None, self.now) if self.random.random() < 0.5 else self.box.take(self.now))

    def begun(self, work: Work | None) -> None:
        if work is not None:
            self.started += 1
            assert work not in self.ran, "started twice"
            self.ran.add(work)
            assert work not in self.revoked
            assert self.now < self.newest
            assert self.now < self.box.deadline(work)

    def pong(self) -> None:
        sent = self.now
        k = self.box.ping(sent)
        self.now += self.random.randint(0, 5)
        remaining = self.random.randint(-2, 20)
        before = {work: self.box.deadline(work) for work in self.all}
        listed = [work.id for work in self.all if work in self.revoked and self.random.random() < 0.5]
        self.lose(self.box.pong(self.now, k, remaining, listed))
        if remaining > 0:
            self.newest = max(self.newest, sent + remaining)
        for work in self.all:
            if not self.runs(work) or self.box.deadline(work) == before[work]:
                continue
            assert self.now < before[work], "a passed deadline moved"
            assert work not in self.revoked or work.id in listed, "a revoked delivery's deadline moved, though it was not listed"
            assert self.box.deadline(work) == sent + remaining

    def revoke(self) -> None:
        p = self.random.randint(0, 3)
        self.revoked.update(work for work in self.all if work.partition == p and self.open(work))
        self.box.revoke({p})
        assert not any(work.partition == p for work in waiting(self.box) + self.box.claimed), "a revoked delivery still waits"

    def cut(self) -> None:
        delivery_id = self.random.randint(1, 1 + len(self.all))
        cut = self.box.cut({delivery_id})
        self.lose(cut)
        self.revoked.update(cut)

    def check(self) -> None:
        self.lose(self.box.check(self.now))

    def end(self) -> None:
        for work in self.all:
            if self.runs(work) and work in self.ran and work not in self.box.ended:
                if self.loops:
                    self.box.ended.append(work)
                elif self.random.random() < 0.5:
                    self.box.end(work)
                else:
                    self.begun(self.box.turn(work, None, self.now))
                return

    def wait(self) -> None:
        self.now += self.random.randint(0, 30)

    def step(self) -> None:
        self.random.choice((self.give, self.take, self.pong, self.revoke, self.cut, self.check, self.end, self.wait))()
        assert self.box.waiting == len(waiting(self.box))
        accounted = self.box.held() + len(self.box.done) + len(self.box.answers)
        assert accounted == len(self.all), "a delivery is gone, or is counted twice"
        for work in self.lost:
            assert not self.runs(work) or work.id in self.box.lost, "a lost delivery was revived"
        for work in self.all:
            if self.runs(work) and work not in self.lost:
                assert self.box.sure() <= self.box.deadline(work)


def test_inbox_keeps_its_deadlines(request: pytest.FixtureRequest) -> None:
    """For any inputs in any order, the rules hold. ``pytest --inbox-seed=N`` replays one seed."""
    replay = request.config.getoption("--inbox-seed")
    first = random.SystemRandom().randrange(1 << 32)
    started = lost = 0
    for seed in [replay] if replay is not None else range(first, first + 300):
        model = Model(seed)
        try:
            for _ in range(100):
                model.step()
        except AssertionError as failure:
            raise AssertionError(f"{failure}; replay with: pytest --inbox-seed={seed}") from failure
        started += model.started
        lost += len(model.lost)
    assert replay is not None or (started > 100 and lost > 20), "the random inputs reach too little"
