"""What becomes of a handler's return or exception, and the wrappers around handlers."""

from __future__ import annotations

import functools
import inspect
import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, cast, overload

from ringfence.call import NO_HANDLER, NoHandler, code_of
from ringfence.errors import GROUP, CallFailure, DrainTimeout, Reject, RetryAfter
from ringfence.event import Event
from ringfence.inbox import CANCELLED, DONE, NOT_STARTED, REJECT, RETRY, Answer
from ringfence.options import Result, ResultKind

if TYPE_CHECKING:
    from ringfence.options import Settings

PlainHandler = Callable[[Event], None]
AsyncHandler = Callable[[Event], Awaitable[None]]
Handler = Union[PlainHandler, AsyncHandler]
"""A function that handles one event. Returning means done; raising means retry, or what Reject and RetryAfter say."""

V = TypeVar("V")

_AFTER_MS_MAX = (1 << 63) - 1
_LOOKS_MAX = 100  # causes may form a circle
KINDS: dict[int, ResultKind] = {RETRY: "retry", REJECT: "reject", CANCELLED: "cancelled", NOT_STARTED: "not_started"}


def is_async(handler: Handler) -> bool:
    """Reports whether a handler is to run on an event loop."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))


def refuse_generator(name: str, handler: object) -> None:
    """Raises TypeError if a handler is a generator function: a call of one runs nothing, and would count as success."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for function in (handler, getattr(type(handler), "__call__", None)):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} = {handler!r} is a generator function, which a call does not run: remove the yield")


def check_returned(value: object) -> None:
    """Raises TypeError if what a handler has returned is a generator or a coroutine, which has run nothing."""
    if isinstance(value, (Generator, AsyncGenerator)):
        raise TypeError("the handler returned a generator, which has run nothing: remove the yield, or loop over it")
    if inspect.iscoroutine(value):
        value.close()  # so that Python does not warn of it as well
        raise TypeError("the handler returned a coroutine, which has run nothing: await it")


def check_returned_plain(value: object) -> None:
    """Is :func:`check_returned` for a plain function, which must return no awaitable either."""
    if inspect.isawaitable(value):
        close = getattr(value, "close", None)
        if close is not None:
            close()  # a coroutine that nobody awaits, so that Python does not warn of it as well
        raise TypeError("the handler returned an awaitable: pass a coroutine function (async def), not a function that calls one")
    check_returned(value)


def verdict_of(error: BaseException) -> Reject | RetryAfter | CallFailure | None:
    """Returns the first exception that tells the router something: of an exception, what it was raised from, and the members of a group.

    An asyncio.TaskGroup raises what its tasks raise as a group.
    """
    left = [error]
    for _ in range(_LOOKS_MAX):
        if not left:
            break
        one = left.pop()
        if isinstance(one, (Reject, RetryAfter, CallFailure)):
            return one
        if one.__cause__ is not None:
            left.append(one.__cause__)
        if isinstance(one, GROUP):
            left.extend(reversed(one.exceptions))
    return None


def kind_of(event: Event, error: BaseException) -> int:
    """Returns the kind of answer for what a handler raised. After a cancellation it is no failure, nor is an event that the handler of a
    stopping worker gives back."""
    if event._cause is not None:
        return CANCELLED
    if isinstance(error, NoHandler):
        return NOT_STARTED
    if isinstance(error, DrainTimeout) and event._stream is not None and event._stream.runner.stopping():
        return CANCELLED
    return REJECT if isinstance(verdict_of(error), Reject) else RETRY


def text_of(error: BaseException) -> str:
    """Returns the reason for an exception of a handler."""
    try:
        if not isinstance(error, (Reject, RetryAfter, CallFailure, NoHandler)):
            text = str(error)
            return f"{type(error).__name__}: {text}" if text else type(error).__name__
        text = str(error)
        if text:
            return text
        return text_of(error.__cause__) if error.__cause__ is not None else type(error).__name__
    except Exception as second:  # its __str__ raises
        return f"{type(error).__name__}, whose text cannot be had: {type(second).__name__}"


def answer_of(settings: Settings, event: Event, error: BaseException) -> Answer:
    """Returns the answer for what a handler raised, and logs what nobody expects. It does not raise: the key would be held for ever."""
    try:
        return _answer_of(settings, event, error)
    except Exception:  # a class of the application that has not what its base has
        settings.log.exception("what the handler raised cannot be read: message %s, attempt %d", event.message_id, event.attempt)
        return Answer(event.id, RETRY, reason=type(error).__name__)


def _answer_of(settings: Settings, event: Event, error: BaseException) -> Answer:
    kind = kind_of(event, error)
    if kind == CANCELLED:
        return Answer(event.id, CANCELLED)
    verdict = verdict_of(error)
    told = error if verdict is None else verdict
    if event._call is not None:
        if kind == NOT_STARTED:
            return Answer(event.id, NOT_STARTED, reason=text_of(error), code=NO_HANDLER)
        if verdict is None:
            settings.log.failed(f"method {event.method}", error)
        return Answer(event.id, kind, reason=text_of(told), code=code_of(told))
    after_ms = 0
    if isinstance(told, RetryAfter):
        after_ms = _milliseconds(told.delay)
    elif kind == RETRY:
        settings.log.failed(f"message {event.message_id}, attempt {event.attempt}", error)
    return Answer(event.id, kind, after_ms, text_of(told))


def _milliseconds(seconds: float) -> int:
    """Returns a delay as the answer has it. The attribute of an exception may hold any number, and a product be infinite."""
    milliseconds = seconds * 1000
    if milliseconds >= _AFTER_MS_MAX:
        return _AFTER_MS_MAX
    return math.ceil(milliseconds) if milliseconds > 0 else 0  # 0 for what is no number, too


def reply_of(event: Event) -> Answer | None:
    """Returns the answer for a call whose handler has returned, None for an event: it is done."""
    if event._call is None or not event._reply:
        return None
    return Answer(event.id, DONE, reply=event._reply)


def with_hooks(settings: Settings, handler: Handler) -> Handler:
    """Puts the hooks of the settings around a handler."""
    hooks = settings.hooks
    if hooks.started is None and hooks.finished is None:
        return handler

    def call(hook: Callable[..., object] | None, *arguments: object) -> None:
        if hook is not None:
            try:
                hook(*arguments)
            except Exception:
                settings.log.exception("a hook failed")

    def finished(event: Event, begun: float, error: BaseException | None) -> None:
        kind: ResultKind = "done" if error is None else KINDS[kind_of(event, error)]
        call(hooks.finished, event, Result(kind, error, time.perf_counter() - begun))

    if is_async(handler):
        inner = cast(AsyncHandler, handler)

        async def hooked_async(event: Event) -> None:
            begun = time.perf_counter()
            call(hooks.started, event)
            try:
                await inner(event)
            except BaseException as error:
                finished(event, begun, error)
                raise
            finished(event, begun, None)

        return hooked_async

    def hooked(event: Event) -> None:
        begun = time.perf_counter()
        call(hooks.started, event)
        try:
            value = cast(PlainHandler, handler)(event)
        except BaseException as error:
            finished(event, begun, error)
            raise
        finished(event, begun, None)
        return value

    return hooked


@overload
def json_handler(handler: Callable[[Event, Any], Awaitable[None]], /) -> AsyncHandler: ...
@overload
def json_handler(handler: Callable[[Event, Any], None], /) -> PlainHandler: ...
@overload
def json_handler(*, decode: Callable[[Any], V]) -> _JSONDecorator[V]: ...
def json_handler(handler: Callable[[Event, Any], Any] | None = None, /, *, decode: Callable[[Any], Any] | None = None) -> Any:
    """Makes a handler of a function that takes an event and its payload, decoded as JSON.

    An event whose payload does not decode is rejected. ``decode`` turns the JSON value into one of yours, and raises if it
    cannot::

        @ringfence.json_handler(decode=lambda value: Order(**value))
        def handle(event: ringfence.Event, order: Order) -> None: ...
    """
    make = _JSONDecorator(decode)
    return make if handler is None else make(handler)


class _JSONDecorator(Generic[V]):
    def __init__(self, decode: Callable[[Any], V] | None) -> None:
        self._decode = decode

    def _value(self, event: Event) -> V:
        try:
            value = json.loads(event.payload)
            return cast(V, value) if self._decode is None else self._decode(value)
        except Exception as error:  # whatever decode raises, trying again would not help
            raise Reject(f"decode JSON: {text_of(error)}") from error

    @overload
    def __call__(self, handler: Callable[[Event, V], Awaitable[None]], /) -> AsyncHandler: ...
    @overload
    def __call__(self, handler: Callable[[Event, V], None], /) -> PlainHandler: ...
    def __call__(self, handler: Callable[[Event, V], Any], /) -> Any:
        refuse_generator("handler", handler)
        if inspect.iscoroutinefunction(handler):

            @functools.wraps(handler)
            async def handle_async(event: Event) -> None:
                await handler(event, self._value(event))

            return handle_async

        @functools.wraps(handler)
        def handle(event: Event) -> Any:
            return handler(event, self._value(event))

        return handle
