"""What runs handlers: threads for plain functions, tasks of an event loop for coroutine functions.

In both, a thread or task that has ended one handler takes the next event under the same acquisition of the lock. Only one of them is
being woken at a time, and that one wakes the next before it starts its handler. So handlers that wait spread over as many threads or
tasks as there are events, and handlers that return at once run in a few of them, without a switch for each event.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, cast

from ringfence.clock import boot_ns
from ringfence.errors import Cancelled
from ringfence.event import Event
from ringfence.handlers import AsyncHandler, PlainHandler, answer_of
from ringfence.inbox import DONE, Answer

if TYPE_CHECKING:
    from ringfence.runner import Runner

RETURNED = Cancelled("the handler has returned")
"""The cause of events whose handler has returned: for a thread of the handler's that goes on and asks."""

SLICE_NS = 1_000_000
"""Nanoseconds for which handlers that do not wait run one after the other before other tasks of the loop get their turn."""

THREAD_PAUSE = 1.0  # seconds before a thread is tried again when the system refuses one


class ThreadPool:
    """Runs plain functions in threads, which are started as they are needed and reused."""

    def __init__(self, runner: Runner, handler: PlainHandler) -> None:
        self._runner = runner
        self._handler = handler
        self._context = contextvars.copy_context()
        self._work: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Guarded by the runner's lock.
        self._size = 0
        self._parked = 0
        self._late = 0  # handlers that were cancelled and have not returned: they do not count
        self._waking = False

    def wanted(self) -> bool:
        live = self._runner.live
        if self._waking or live is None or not live.inbox.startable():
            return False
        if not self._parked and self._size - self._late >= self._runner.settings.threads:
            return False
        self._waking = True
        return True

    def wake(self) -> None:
        with self._runner.lock:
            start = not self._parked
            if start:
                self._size += 1
            else:
                self._parked -= 1
        if not start:
            self._work.put(None)
            return
        try:
            threading.Thread(target=self._run, name="ringfence-handler", daemon=True).start()
        except RuntimeError as error:  # the system's limit of threads
            with self._runner.lock:
                self._size -= 1
                self._waking = False
                size = self._size
            self._runner.settings.log.error("cannot start a thread for handlers: %s; %d run: lower the option threads", error, size)
            if not size:
                timer = threading.Timer(THREAD_PAUSE, self._wake_if_wanted)
                timer.daemon = True
                timer.start()

    def _wake_if_wanted(self) -> None:
        with self._runner.lock:
            wanted = self.wanted()
        if wanted:
            self.wake()

    def lost(self, event: Event) -> None:
        self._late += 1

    def cancel(self, event: Event) -> None:
        """Nothing can stop a thread from outside: its handler asks by :meth:`Event.check`."""

    def retire(self) -> None:
        with self._runner.lock:
            parked, self._parked = self._parked, 0
        for _ in range(parked):
            self._work.put(None)

    def _run(self) -> None:
        """One thread of the pool."""
        runner, handler, context = self._runner, self._handler, self._context
        fast, work, threads = runner.settings.clock.fast, self._work, runner.settings.threads
        acquire, release, copy = runner.lock.acquire, runner.lock.release, context.copy
        event: Event | None = None
        answer: Answer | None = None
        woken = True
        while True:
            now = fast()  # before each start: the machine may have been asleep
            acquire()  # 80 ns less than a with statement
            try:
                live = runner.live
                if event is not None:
                    if event._cause is None:
                        event._cause = RETURNED
                    else:
                        self._late -= 1
                    if event._stream is not live:
                        runner.returned(event, answer)
                        event = None
                if woken:
                    self._waking = woken = False
                surplus = self._size > threads and self._size - self._late > threads  # its handler was late, and another thread is in its place
                if live is None:
                    event = None
                elif surplus:
                    if event is not None:
                        live.inbox.end(event, answer)
                        event = None
                    live.tell()
                else:
                    event = live.inbox.turn(event, answer, now)
                    if not live.quiet:
                        live.tell()
                if event is None:
                    if surplus or runner.retired:
                        self._size -= 1
                        return
                    self._parked += 1
                wake = event is not None and not self._waking and self.wanted()
            finally:
                release()
            if event is None:
                work.get()
                woken = True
                continue
            if wake:
                self.wake()
            began = boot_ns() if live.intervals else 0  # type: ignore[union-attr]
            answer = None
            try:
                value = copy().run(handler, event)  # its context variables are its own
            except BaseException as error:  # also an attempt to exit
                answer = answer_of(runner.settings, event, error)
            else:
                if value is not None and inspect.isawaitable(value):
                    _close(value)
                    answer = answer_of(runner.settings, event, TypeError(_AWAITABLE))
            if began:
                answer = _timed(event, answer, began)


_AWAITABLE = "the handler returned an awaitable: pass a coroutine function (async def), not a function that calls one"


class LoopPool:
    """Runs coroutine functions in tasks of an event loop.

    A task runs one handler after the other, each in a copy of the context in which the worker was made. Its handler's first part,
    up to where it waits, costs no switch of tasks. A task that was cancelled ends with its handler.
    """

    def __init__(self, runner: Runner, handler: AsyncHandler, loop: asyncio.AbstractEventLoop) -> None:
        self._runner = runner
        self._handler = handler
        self._loop = loop
        self._context = contextvars.copy_context()
        self._scheduled = False  # guarded by the runner's lock
        # Used by the loop's thread alone.
        self._parked: list[asyncio.Future[None]] = []
        self._waking = 0
        self._tasks: set[asyncio.Task[None]] = set()  # keeps them alive
        self._waiting: dict[Event, asyncio.Task[Any]] = {}  # the tasks of handlers that wait

    def wanted(self) -> bool:
        live = self._runner.live
        if self._scheduled or live is None or not live.inbox.startable():
            return False
        self._scheduled = True
        return True

    def wake(self) -> None:
        self._call(self._on_wake)

    def lost(self, event: Event) -> None:
        pass

    def cancel(self, event: Event) -> None:
        self._call(self._on_cancel, event)

    def retire(self) -> None:
        self._call(self._on_retire)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self._runner.settings.log.error("the event loop was closed before the worker had ended: await ringfence.serve to its end")
            self._runner.stop()

    def _on_wake(self) -> None:
        with self._runner.lock:
            self._scheduled = False
        self._spread(1)

    def _spread(self, tasks: int) -> None:
        """Wakes or starts tasks until as many are being woken, but not more than there are events."""
        live = self._runner.live
        if live is None:
            return
        tasks = min(tasks, live.inbox.waiting)
        while self._waking < tasks:
            self._waking += 1
            if self._parked:
                self._parked.pop().set_result(None)
            else:
                task = self._loop.create_task(self._run())
                self._tasks.add(task)
                task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._runner.settings.log.error("a task for handlers failed", exc_info=task.exception())

    def _on_cancel(self, event: Event) -> None:
        task = self._waiting.get(event)
        if task is not None:  # else the handler has returned
            task.cancel(msg=event._cause)

    def _on_retire(self) -> None:
        self._waking += len(self._parked)
        for parked in self._parked:
            if not parked.done():
                parked.set_result(None)
        self._parked.clear()

    async def _run(self) -> None:
        """One task of the pool."""
        runner, handler, context = self._runner, cast(Callable[[Event], Coroutine[Any, Any, None]], self._handler), self._context
        fast, acquire, release, copy = runner.settings.clock.fast, runner.lock.acquire, runner.lock.release, context.copy
        event: Event | None = None
        answer: Answer | None = None
        ending = False  # the task was cancelled, and must not run another handler
        woken = True
        turn = fast()
        while True:
            now = fast()  # before each start: the machine may have been asleep
            yields = now - turn > SLICE_NS
            acquire()  # 80 ns less than a with statement
            try:
                live = runner.live
                if event is not None:
                    if event._cause is None:
                        event._cause = RETURNED
                    if event._stream is not live:
                        runner.returned(event, answer)
                        event = None
                if live is None:
                    event = None
                elif yields or ending:
                    if event is not None:
                        live.inbox.end(event, answer)
                        event = None
                    live.tell()
                else:
                    event = live.inbox.turn(event, answer, now)
                    if not live.quiet:
                        live.tell()
            finally:
                release()
            if woken:
                self._waking -= 1
            if ending:
                self._spread(1)
                return
            if yields:
                woken = False
                await asyncio.sleep(0)
                turn = fast()
                continue
            if event is None:
                if runner.retired:
                    return
                parked = self._loop.create_future()
                self._parked.append(parked)
                try:
                    await parked
                except asyncio.CancelledError:  # the application cancels all tasks of its loop
                    if parked in self._parked:
                        self._parked.remove(parked)
                    else:
                        self._waking -= 1
                    raise
                woken = True
                turn = fast()
                continue
            if live is not None and live.inbox.waiting:
                self._spread(2 if woken else 1)
            woken = False
            began = boot_ns() if live.intervals else 0  # type: ignore[union-attr]
            answer = None
            own = copy()  # its context variables are its own
            try:
                handling = handler(event)
                waits = own.run(handling.send, None)
            except StopIteration:
                pass
            except BaseException as error:
                answer = self._answer(event, error)
            else:
                task = asyncio.current_task(self._loop)
                assert task is not None
                self._waiting[event] = task
                try:
                    await _Rest(event, handling, own, waits)
                except BaseException as error:
                    answer = self._answer(event, error)
                    ending = isinstance(error, asyncio.CancelledError)
                finally:
                    del self._waiting[event]
                ending = ending or event._cause is not None
                turn = fast()
            if began:
                answer = _timed(event, answer, began)

    def _answer(self, event: Event, error: BaseException) -> Answer:
        """Returns the answer for what a handler raised. Raises KeyboardInterrupt again, which is meant for the loop."""
        answer = answer_of(self._runner.settings, event, error)
        if isinstance(error, KeyboardInterrupt):
            with self._runner.lock:
                if event._cause is None:
                    event._cause = RETURNED
                self._runner.returned(event, answer)
            raise error
        return answer


class _Rest:
    """The part of a handler after it has waited for the first time, in its own context."""

    __slots__ = ("_context", "_coroutine", "_event", "_waits")

    def __init__(self, event: Event, coroutine: Coroutine[Any, Any, None], context: contextvars.Context, waits: Any) -> None:
        self._event, self._coroutine, self._context, self._waits = event, coroutine, context, waits

    def __await__(self) -> Generator[Any, Any, None]:
        run, send, throw, waits = self._context.run, self._coroutine.send, self._coroutine.throw, self._waits
        while True:
            try:
                try:
                    value = yield waits
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and self._event._cause is not None:
                        error.__cause__ = self._event._cause
                    waits = run(throw, error)
                else:
                    waits = run(send, value)
            except StopIteration:
                return


def _timed(event: Event, answer: Answer | None, began: int) -> Answer:
    """Returns the answer of a handler that ran, with the times that the router asks for."""
    took = max(boot_ns() - began, 0)
    return Answer(event.id, DONE, 0, "", began, took) if answer is None else answer._replace(started_ns=began, took_ns=took)


def _close(value: object) -> None:
    """Closes a coroutine that nobody awaits, so that Python does not warn of it as well."""
    close = getattr(value, "close", None)
    if close is not None:
        close()
