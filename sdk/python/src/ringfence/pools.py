"""What runs handlers: threads for plain functions, tasks of an event loop for coroutine functions.

A thread that has ended one handler takes the next event under the same acquisition of the lock. A loop, whose handlers share one
thread, claims some events under one acquisition, and starts them without it. Only one thread or task is being woken at a time, and
that one wakes the next before it starts its handler. So handlers that wait spread over as many threads or tasks as there are
events, and handlers that return at once run in a few of them, without a switch for each event.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, cast

from ringfence.clock import boot_ns
from ringfence.event import RETURNED, Event
from ringfence.handlers import AsyncHandler, PlainHandler, answer_of, reply_of
from ringfence.inbox import NOT_STARTED, Answer, Inbox

if TYPE_CHECKING:
    from ringfence.runner import Runner
    from ringfence.stream import Stream

SLICE_NS = 1_000_000
"""Nanoseconds for which handlers that do not wait run one after the other before other tasks of the loop get their turn."""

CLAIM_MAX = 128
"""Events that an event loop claims under one acquisition of the lock."""

LOCK_EVERY_NS = 250_000
"""Nanoseconds after which the loop takes the lock though it has claimed events left: so long answers wait for others."""

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
        """Nothing can stop a thread from outside: its handler asks by :meth:`Event.check`. If that has returned, its timers are given up."""
        give_up = event._give_up
        if give_up is not None:
            give_up()

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
        states, kept = runner.states, runner.states.kept
        calls = bool(runner.settings.calls)
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
            began = boot_ns() if live.inbox.timed else 0  # type: ignore[union-attr]
            answer = None
            try:
                if kept:
                    states.begun(event)
                copy().run(handler, event)  # its context variables are its own
            except BaseException as error:  # also an attempt to exit
                if kept:
                    states.ended(event, False)
                answer = answer_of(runner.settings, event, error)
            else:
                if kept:  # one that had lost its key may have written after the next turn had read
                    states.ended(event, cast("Stream", event._stream).holds(event))
                if calls:
                    answer = reply_of(event)
            if began:
                answer = _timed(event, answer, began, boot_ns())


class LoopPool:
    """Runs coroutine functions in tasks of an event loop.

    A task runs one handler after the other, and awaits them itself: one that does not wait costs no switch of tasks. A task that
    was cancelled ends with its handler, and so does one whose handler has left its context changed.
    """

    def __init__(self, runner: Runner, handler: AsyncHandler, loop: asyncio.AbstractEventLoop) -> None:
        self._runner = runner
        self._handler = handler
        self._loop = loop
        self._context = contextvars.copy_context()
        self._variables = tuple(self._context.items())
        self._scheduled = False  # guarded by the runner's lock
        # Used by the loop's thread alone.
        self._inbox: Inbox[Any, Event] = Inbox()  # of the stream that was live when the loop last took the lock
        self._until = 0  # by ticks: from then on it takes the lock before it starts a handler
        self._parked: list[asyncio.Future[None]] = []
        self._waking = 0
        self._tasks: set[asyncio.Task[None]] = set()  # keeps them alive

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
        tasks = min(tasks, live.inbox.waiting + len(live.inbox.claimed))
        while self._waking < tasks:
            self._waking += 1
            if self._parked:
                self._parked.pop().set_result(None)
            else:
                steps = _Steps(self)
                # A task gets a copy of the context that it is made in. Not by create_task: an eager factory would run it here.
                task = self._context.run(asyncio.Task, steps, loop=self._loop, name="ringfence-handler")
                steps.task = task
                self._tasks.add(task)
                task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._runner.settings.log.error("a task for handlers failed", exc_info=task.exception())

    def _on_cancel(self, event: Event) -> None:
        steps = getattr(event, "_steps", None)  # there is none before the handler is called
        if steps is not None and steps.event is event and steps.task is not None:  # else the handler has returned
            steps.task.cancel(msg=event._cause)

    def _on_retire(self) -> None:
        self._waking += len(self._parked)
        for parked in self._parked:
            if not parked.done():
                parked.set_result(None)
        self._parked.clear()

    async def run(self, steps: _Steps) -> None:
        """One task of the pool."""
        runner, handler = self._runner, cast(Callable[[Event], Coroutine[Any, Any, None]], self._handler)
        clock, lock, states, kept = runner.settings.clock, runner.lock, runner.states, runner.states.kept
        ticks = clock.ticks
        copy_context, size, calls = contextvars.copy_context, len(self._variables), bool(runner.settings.calls)
        event: Event | None
        ending = False  # the task must not run another handler
        woken = True
        while True:
            event = None
            begun = ticks()  # not after now, so that what is counted from it is early enough
            now = clock.fast()
            yields = now - steps.turn > SLICE_NS
            with lock:
                live = runner.live
                if live is not None:
                    inbox = self._inbox = live.inbox
                    if yields or ending:
                        inbox.settle()
                        live.tell()
                    else:
                        event = inbox.claim(now, CLAIM_MAX)
                        if not live.quiet:
                            live.tell()
                    self._until = begun + min(LOCK_EVERY_NS, inbox.newest - now)
            if woken:
                self._waking -= 1
            if ending:
                self._spread(1)
                return
            if yields:
                woken = False
                await asyncio.sleep(0)
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
                continue
            if self._waking < (2 if woken else 1):
                self._spread(2 if woken else 1)
            woken = False
            began = ticks()
            while event is not None:
                answer: Answer | None = None
                event._steps = steps
                steps.event = event
                try:
                    if kept:
                        states.begun(event)
                    await handler(event)
                except BaseException as error:
                    if steps.closed:  # the application has closed its loop
                        raise
                    if kept:
                        states.ended(event, False)
                    answer = self._answer(event, error)
                    ending = isinstance(error, asyncio.CancelledError)
                else:
                    if kept:  # as in a ThreadPool
                        states.ended(event, cast("Stream", event._stream).holds(event))
                    if calls:
                        answer = reply_of(event)
                steps.event = None
                ended = ticks()
                if event._cause is None:  # a cancellation that comes now is too late, and only logged
                    event._cause = RETURNED
                else:
                    ending = True
                own = copy_context()  # cheaper than a context for each handler
                if len(own) != size or (size and self._changed(own)):
                    ending = True
                inbox = cast("Stream", event._stream).inbox
                if inbox.timed:
                    answer = _timed(event, answer, began, ended)
                if answer is None and inbox is self._inbox:
                    inbox.ended.append(event)
                    began = ended
                else:
                    with lock:
                        runner.returned(event, answer)
                    inbox = self._inbox
                    began = ticks()
                event = None
                if began < self._until and not ending:  # read before each start: the machine may have been asleep
                    try:
                        event = inbox.claimed.pop()
                    except IndexError:  # none is left, or what was claimed was taken back
                        break
                    if not self._waking:
                        self._spread(1)

    def _changed(self, context: contextvars.Context) -> bool:
        """Reports whether one of the variables has another value than when the worker was made."""
        return any(context.get(variable, self) is not value for variable, value in self._variables)

    def flush(self) -> None:
        """Answers what has ended, before a task waits."""
        if self._inbox.ended:
            with self._runner.lock:
                self._inbox.settle()
                live = self._runner.live
                if live is not None and not live.quiet:
                    live.tell()

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


class _Steps(Coroutine[Any, Any, None]):
    """What a task of the pool steps through: :meth:`LoopPool.run`, with what is to be done when it starts and when it waits."""

    def __init__(self, pool: LoopPool) -> None:
        self._pool = pool
        self._fast = pool._runner.settings.clock.fast
        self._coroutine = pool.run(self)
        self.task: asyncio.Task[None] | None = None
        self.event: Event | None = None  # whose handler runs
        self.turn = 0  # when the loop gave the task its turn
        self.closed = False  # nothing may wait any more

    def send(self, value: None) -> Any:
        self.turn = self._fast()
        waits = self._coroutine.send(value)
        self._pool.flush()
        return waits

    def throw(self, error: Any, *more: Any) -> Any:
        self.turn = self._fast()
        if isinstance(error, asyncio.CancelledError) and self.event is not None and self.event._cause is not None:
            error.__cause__ = self.event._cause
        waits = self._coroutine.throw(error, *more)
        self._pool.flush()
        return waits

    def close(self) -> None:
        self.closed = True
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # its name and frame, for tools that show tasks


def _timed(event: Event, answer: Answer | None, began: int, ended: int) -> Answer | None:
    """Notes when a handler ran, as the router asks, in its event or its answer."""
    event.started_ns, event.took_ns = began, max(ended - began, 0)
    return answer if answer is None or answer.kind == NOT_STARTED else answer._replace(started_ns=event.started_ns, took_ns=event.took_ns)
