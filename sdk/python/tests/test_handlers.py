from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import pickle
from typing import Any, cast

import pytest

from ringfence import Call, CallFailure, Event, Reject, RetryAfter, json_handler
from ringfence.errors import GROUP, KeyLost
from ringfence.handlers import answer_of, is_async, kind_of, text_of
from ringfence.inbox import CANCELLED, REJECT, RETRY, Answer
from ringfence.options import check


@dataclasses.dataclass
class Order:
    cents: int


def test_retry_after() -> None:
    assert RetryAfter(1.5, "busy").delay == 1.5
    assert RetryAfter(datetime.timedelta(minutes=1)).delay == 60
    assert RetryAfter(-1).delay == 0
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            RetryAfter(bad)


class Busy(RetryAfter):
    """One of the application's, with a constructor of its own."""

    def __init__(self) -> None:
        super().__init__(2, "busy")


@pytest.mark.parametrize(
    "error", [Reject("never"), RetryAfter(1.5, "busy"), RetryAfter(3), Busy(), CallFailure("no_stock", "none left"), KeyLost("lost")]
)
def test_exceptions_come_from_other_processes(error: BaseException) -> None:
    """As from a pool of processes in which a handler computes: one that cannot be made again breaks the pool."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_texts() -> None:
    assert text_of(Reject("not JSON")) == "not JSON"
    assert text_of(RetryAfter(1, "busy")) == "busy"
    assert text_of(ValueError("bad")) == "ValueError: bad"
    assert text_of(ValueError()) == "ValueError"
    assert text_of(Reject()) == "Reject"
    try:
        raise Reject from ValueError("bad")
    except Reject as error:
        assert text_of(error) == "ValueError: bad"
    assert "Unspeakable" in text_of(Unspeakable())


def later(delay: float) -> RetryAfter:
    """An exception whose delay was set, and not checked."""
    error = RetryAfter(1)
    error.delay = delay
    return error


class Undelayed(RetryAfter):
    def __init__(self) -> None:
        """Makes an exception without a delay."""


@pytest.mark.parametrize(
    ("error", "kind", "after_ms"),
    [
        (ValueError("x"), RETRY, 0),
        (SystemExit(1), RETRY, 0),
        (Reject("x"), REJECT, 0),
        (RetryAfter(0.0001), RETRY, 1),
        (RetryAfter(4.321), RETRY, 4321),
        (RetryAfter(1e300), RETRY, (1 << 63) - 1),
        (RetryAfter(1.7e308), RETRY, (1 << 63) - 1),  # infinitely many milliseconds
        (later(float("inf")), RETRY, (1 << 63) - 1),
        (later(float("nan")), RETRY, 0),
        (later(-1), RETRY, 0),
        (Undelayed(), RETRY, 0),
        (KeyLost("of its own"), RETRY, 0),
    ],
)
def test_answers(error: BaseException, kind: int, after_ms: int) -> None:
    event = Event("k")
    answer = answer_of(check(None, {}), event, error)
    assert (answer.kind, answer.after_ms) == (kind, after_ms)
    event._cause = KeyLost()
    assert answer_of(check(None, {}), event, error).kind == CANCELLED, "after a cancellation nothing is a failure"


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def circle() -> BaseException:
    one = ValueError("x")
    return caused(one, caused(ValueError("y"), one))


@pytest.mark.skipif(not GROUP, reason="groups of exceptions came with Python 3.11")
def test_verdicts_are_found_in_groups_and_causes() -> None:
    def group(*errors: BaseException) -> BaseException:
        return cast(BaseException, GROUP("unhandled errors in a TaskGroup", errors))

    for error, want in (
        (group(ValueError("x"), Reject("no")), Answer(0, REJECT, 0, "no")),
        (group(group(RetryAfter(2, "later"))), Answer(0, RETRY, 2000, "later")),
        (caused(ValueError("x"), Reject("no")), Answer(0, REJECT, 0, "no")),
        (caused(RetryAfter(2, "later"), Reject("no")), Answer(0, RETRY, 2000, "later")),  # the outermost one counts
        (group(ValueError("x")), Answer(0, RETRY, 0, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)")),
        (circle(), Answer(0, RETRY, 0, "ValueError: x")),
    ):
        assert answer_of(check(None, {}), Event("k"), error) == want
    call = Call("k", "do")._event
    assert answer_of(check(None, {}), call, group(CallFailure("no_stock", "sold out"))) == Answer(0, RETRY, 0, "sold out", code="no_stock")


def test_what_a_task_group_raises() -> None:
    async def rejects() -> None:
        raise Reject("no")

    async def handle(event: Event) -> None:
        async with asyncio.TaskGroup() as tasks:  # type: ignore[attr-defined, unused-ignore]  # since Python 3.11
            tasks.create_task(rejects())

    if not GROUP:
        pytest.skip("asyncio.TaskGroup came with Python 3.11")
    with pytest.raises(GROUP) as raised:
        asyncio.run(handle(Event("k")))
    assert kind_of(Event("k"), raised.value) == REJECT


def test_json() -> None:
    seen: list[Any] = []

    @json_handler
    def handle(event: Event, value: Any) -> None:
        seen.append(value)

    @json_handler(decode=lambda value: Order(**value))
    def handle_order(event: Event, order: Order) -> None:
        seen.append(order)

    handle(Event("k", '{"a": 1}'))
    handle_order(Event("k", '{"cents": 3}'))
    assert seen == [{"a": 1}, Order(3)]
    for handler, payload in ((handle, b"gibberish"), (handle, b"\xff"), (handle_order, b'{"euros": 3}'), (handle_order, b"[]")):
        with pytest.raises(Reject, match="decode JSON"):
            handler(Event("k", payload))
    assert len(seen) == 2


def test_json_of_a_coroutine_function() -> None:
    seen: list[Any] = []

    @json_handler
    async def handle(event: Event, value: Any) -> None:
        seen.append(value)

    @json_handler(decode=lambda value: Order(**value))
    async def handle_order(event: Event, order: Order) -> None:
        seen.append(order)

    async def both() -> None:
        await handle(Event("k", "[1]"))
        await handle_order(Event("k", '{"cents": 3}'))
        with pytest.raises(Reject):
            await handle(Event("k", "["))

    asyncio.run(both())
    assert seen == [[1], Order(3)]
    assert is_async(handle)
    assert is_async(handle_order)


def test_is_async() -> None:
    class Plain:
        def __call__(self, event: Event) -> None: ...

    class Async:
        async def __call__(self, event: Event) -> None: ...

    async def handle(event: Event, more: int = 0) -> None: ...

    assert is_async(handle)
    assert is_async(functools.partial(handle, more=1))
    assert is_async(Async())
    assert not is_async(Plain())
    assert not is_async(lambda event: None)
