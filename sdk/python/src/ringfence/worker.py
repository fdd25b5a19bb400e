"""Running a handler: run, serve and Worker."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from ringfence.call import check_calls, with_calls
from ringfence.errors import ArgumentError
from ringfence.handlers import AsyncHandler, Handler, PlainHandler, is_async, refuse_generator, with_hooks
from ringfence.options import check
from ringfence.pools import LoopPool, ThreadPool
from ringfence.runner import PATIENCE, Runner
from ringfence.schedules import check_schedules
from ringfence.sending import with_timers
from ringfence.traces import with_traces

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType

    from typing_extensions import Unpack

    from ringfence.clock import LeaseClock
    from ringfence.options import Options

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Runs a handler in the background, for an application whose main thread does something else.

    ::

        with ringfence.Worker(handle):
            web_application.run()

    The options are those of :func:`run`. A coroutine function runs in an event loop of the worker's own, in a thread; use
    :func:`serve` to run it in yours. A worker starts once. All methods may be called from any thread.

    Its threads do not keep the process alive: stop the worker and join it before the end of the process, as the end of the ``with`` does.
    Events that are unanswered then count as crashes of their handlers.
    """

    def __init__(self, handler: Handler, endpoint: str | None = None, **options: Unpack[Options]) -> None:
        """Checks the options. Raises ArgumentError if one is out of range, TypeError if there is none of that name or a handler is a generator."""
        self._init(handler, endpoint, dict(options), None)

    def _init(self, handler: Handler, endpoint: str | None, options: dict[str, Any], clock: LeaseClock | None) -> None:
        if not callable(handler):
            raise ArgumentError(f"handler = {handler!r}, want a function")
        refuse_generator("handler", handler)
        self._settings = check(endpoint, options, clock)
        check_calls(self._settings.calls, handler)
        check_schedules(self._settings.schedules, handler)
        self._is_async = is_async(handler)
        handler = with_timers(with_calls(self._settings.calls, handler), self._settings.schedules)
        self._handler = with_hooks(self._settings, with_traces(self._settings, handler))
        self._runner = Runner(self._settings)
        self._done = threading.Event()
        self._started = False
        self._loop_thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the worker, which connects to the router in the background. Raises RuntimeError if it was started before."""
        if not self._is_async:
            self._start(None, None)
            return
        loop, over = asyncio.new_event_loop(), asyncio.Event()
        self._start(loop, over)
        self._loop_thread = threading.Thread(target=_run_loop, args=(self, loop, over), name="ringfence-loop", daemon=True)
        self._loop_thread.start()

    def _start(self, loop: asyncio.AbstractEventLoop | None, ended: asyncio.Event | None) -> None:
        """Starts the worker; sets ``ended`` in the loop at its end. Plain functions run in threads, whatever the loop."""
        if self._started:
            raise RuntimeError("the worker was already started: create a new one")
        self._started = True

        def over() -> None:
            self._done.set()
            if loop is not None and ended is not None:
                try:
                    loop.call_soon_threadsafe(ended.set)
                except RuntimeError:
                    self._settings.log.error("the event loop was closed before the worker had ended: await ringfence.serve to its end")

        if loop is not None and self._is_async:
            self._runner.pool = LoopPool(self._runner, cast(AsyncHandler, self._handler), loop)
        else:
            self._runner.pool = ThreadPool(self._runner, cast(PlainHandler, self._handler))
        self._runner.start(over)

    def stop(self) -> None:
        """Begins to stop: no event starts any more, and running handlers have drain_grace seconds to end.

        Returns at once, and may be called by a signal handler; a second call cancels the handlers. :meth:`join` waits for the end.
        """
        self._runner.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end of the worker, at most ``timeout`` seconds, and reports whether it has ended.

        Raises HandlersStillRunning if handlers ignored even their cancellation, and Refused if the router refused a schedule, which ends the
        worker.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self._done.wait(timeout):
            return False
        error = self._runner.error
        if error is not None and self._runner.stuck():
            raise error  # before the loop has ended, which such handlers may never let it
        if self._loop_thread is not None:
            self._loop_thread.join(None if end is None else max(0.0, end - time.monotonic()))
            if self._loop_thread.is_alive():
                return False
        if error is not None:
            raise error
        return True

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()


def _run_loop(worker: Worker, loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    """Runs the event loop of a worker until it is over."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(over.wait())
        while worker._runner.stuck() and asyncio.all_tasks(loop):  # handlers that still run may end yet: nobody waits for this thread
            loop.run_until_complete(asyncio.wait(asyncio.all_tasks(loop)))
        if _cancel_left(worker, loop):
            _end_generators(worker, loop)
    finally:
        loop.close()


def _cancel_left(worker: Worker, loop: asyncio.AbstractEventLoop) -> bool:
    """Cancels the tasks that are left, and waits for them. Reports whether all have ended.

    Once the worker has ended, they are those that handlers have left: it waits as long for them as for handlers.
    """
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    grace = max(worker._settings.drain_grace, PATIENCE)
    end: float | None = None
    while left and not worker._runner.stuck():
        if worker._done.is_set():
            now = time.monotonic()
            end = now + grace if end is None else end
            if now >= end:
                worker._settings.log.warning("%d tasks that handlers started ignore their cancellation: not waiting for them", len(left))
                break
        wait = _SIGNALS_EVERY if end is None else min(_SIGNALS_EVERY, max(0.0, end - time.monotonic()))
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=wait))
    return not left


def _ended(worker: Worker, loop: asyncio.AbstractEventLoop, closing: Coroutine[Any, Any, None], what: str) -> bool:
    """Waits for what handlers have left behind, as long as for handlers. Reports whether it has ended."""
    task = loop.create_task(closing)
    loop.run_until_complete(asyncio.wait({task}, timeout=max(worker._settings.drain_grace, PATIENCE)))
    if not task.done():
        worker._settings.log.warning("%s", what)
    return task.done()


def _end_generators(worker: Worker, loop: asyncio.AbstractEventLoop) -> bool:
    return _ended(worker, loop, loop.shutdown_asyncgens(), "asynchronous generators that handlers left open do not end: not waiting for them")


def _end_threads(worker: Worker, loop: asyncio.AbstractEventLoop) -> bool:
    """Of asyncio.to_thread: nothing can stop them."""
    text = "threads that handlers started, for example by asyncio.to_thread, still run: Python waits for them at the end of the process"
    return _ended(worker, loop, loop.shutdown_default_executor(), text)


def run(handler: Handler, endpoint: str | None = None, **options: Unpack[Options]) -> None:
    """Calls ``handler`` for every event, until SIGTERM or SIGINT.

    Events of one key are handled one at a time, on all machines of the group; different keys are handled at once. A plain function
    runs in a pool of threads, a coroutine function in an event loop in this thread. Whenever the session breaks it reconnects,
    without a limit of attempts.

    ``endpoint`` is host:port or unix:///path; by default the value of RINGFENCE_APP_ENDPOINT, else 127.0.0.1:16650. The other
    arguments are those of :class:`Options`.

    At a signal no event starts any more, running handlers have ``drain_grace`` seconds to end, and ``run`` returns; a second signal
    cancels them at once. Raises ArgumentError if an option is out of range, TypeError if there is none of that name or a handler is a generator
    function, RuntimeError outside the main thread, where Python handles no signals, HandlersStillRunning if handlers ignored their
    cancellation, and Refused if the router refuses a schedule.
    """
    worker = Worker(handler, endpoint, **options)
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("ringfence.run handles signals, which Python does in the main thread alone: use ringfence.Worker elsewhere")

    def on_signal(number: int, frame: FrameType | None) -> None:
        worker.stop()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        if worker._is_async:
            _run_async(worker)
        else:
            worker.start()
            while not worker.join(_SIGNALS_EVERY):
                pass
    finally:
        for number, handling in before.items():
            signal.signal(number, handling)


def _run_async(worker: Worker) -> None:
    """Is asyncio.run for a worker, but does not wait for handlers and tasks that ignore their cancellation: their loop is left as it is."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("ringfence.run makes an event loop of its own: use ringfence.serve inside another one")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    def look() -> None:
        loop.call_later(_SIGNALS_EVERY, look)

    look()
    try:
        loop.run_until_complete(_serve(worker))
    finally:
        try:
            if _cancel_left(worker, loop) and _end_generators(worker, loop) and _end_threads(worker, loop):
                loop.close()
        finally:
            asyncio.set_event_loop(None)


_SIGNALS_EVERY = 0.5
"""Seconds: a signal is handled between two waits where it interrupts none, as on Windows, or if it comes just before a wait begins."""


async def serve(handler: Handler, endpoint: str | None = None, *, stop: asyncio.Event | None = None, **options: Unpack[Options]) -> None:
    """Is :func:`run` inside an event loop: it handles events until ``stop`` is set, or the task that awaits it is cancelled.

    Both begin a drain, and serve returns, or raises CancelledError, when that has ended; a second cancellation cancels the handlers.
    It handles no signals. A coroutine function runs in this loop, a plain function in threads.
    """
    await _serve(Worker(handler, endpoint, **options), stop)


async def _serve(worker: Worker, stop: asyncio.Event | None = None) -> None:
    over = asyncio.Event()
    worker._start(asyncio.get_running_loop(), over)
    stopping = None if stop is None else asyncio.ensure_future(_stop_at(stop, worker))
    cancelled: asyncio.CancelledError | None = None
    while not over.is_set():
        try:
            await over.wait()  # in this task: asyncio.run cancels all others, too, when its own has ended
        except asyncio.CancelledError as error:
            cancelled = error
            worker.stop()
    if stopping is not None:
        stopping.cancel()
    if worker._runner.error is not None:
        raise worker._runner.error
    if cancelled is not None:
        raise cancelled


async def _stop_at(stop: asyncio.Event, worker: Worker) -> None:
    await stop.wait()
    worker.stop()
