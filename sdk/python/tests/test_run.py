"""Processes: signals, exit codes and the command line."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from ringfence.testing import Outcome, Router

WAIT = 30

PROGRAM = """
    import asyncio, logging, signal, threading, time
    import ringfence

    def plain(event):
        print("start", flush=True)
        for _ in range(int(event.payload or 0)):
            event.check()
            time.sleep(0.01)

    async def task(event):
        print("start", flush=True)
        for _ in range(int(event.payload or 0)):
            await asyncio.sleep(0.01)

    def stubborn(event):
        print("start", flush=True)
        time.sleep(60)

    async def stubborn_task(event):
        print("start", flush=True)
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    async def leaves_a_task(event):
        async def left():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                print("cancelled", flush=True)

        global task_left
        task_left = asyncio.create_task(left())
        await asyncio.sleep(0)
        print("start", flush=True)

    async def leaves_a_stubborn_task(event):
        global task_left
        task_left = asyncio.create_task(stubborn_task(event))
        await asyncio.sleep(0)

    async def leaves_a_generator(event):
        async def numbers():
            try:
                yield 1
            finally:
                await asyncio.sleep(60)

        global generator_left
        generator_left = numbers()
        await anext(generator_left)
        print("start", flush=True)

    async def leaves_a_thread(event):
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
        print("start", flush=True)

    async def interrupts(event):
        if event.payload:
            return await stubborn_task(event)
        raise KeyboardInterrupt

    def signal_a_thread():
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    async def signals_a_thread(event):
        threading.Thread(target=signal_a_thread).start()

    def generates(event):
        yield

    not_callable = 1
"""


class Process:
    """Is ``python -m ringfence`` with these arguments, or without any the program."""

    def __init__(self, folder: pathlib.Path, router: Router, *arguments: str, program: str = PROGRAM) -> None:
        (folder / "program.py").write_text(textwrap.dedent(program))
        environment = {**os.environ, "RINGFENCE_APP_ENDPOINT": router.endpoint, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, *(("-m", "ringfence", *arguments) if arguments else ("program.py",))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.killer = threading.Timer(WAIT, self.process.kill)  # ends the wait for a line, too
        self.killer.daemon = True
        self.killer.start()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        try:
            _, errors = self.process.communicate(timeout=WAIT)
        finally:
            self.process.kill()
            self.killer.cancel()
        return self.process.returncode, errors


@pytest.mark.parametrize("handler", ["plain", "task"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(tmp_path: pathlib.Path, ringfence_router: Router, handler: str, number: signal.Signals) -> None:
    process = Process(tmp_path, ringfence_router, f"program:{handler}")
    runs = ringfence_router.deliver("runs", "20")
    assert process.line() == "start"
    process.process.send_signal(number)
    code, errors = process.end()
    assert code == 0, errors
    assert runs.outcome() == Outcome("done")
    assert "Traceback" not in errors


def test_a_signal_that_interrupts_no_wait_drains(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    """The signal reaches another thread while the event loop waits, as one that comes just before the wait does."""
    process = Process(tmp_path, ringfence_router, "program:signals_a_thread")
    assert ringfence_router.deliver("k").outcome() == Outcome("done")
    code, errors = process.end()
    assert code == 0, errors


@pytest.mark.parametrize("handler", ["plain", "task"])
def test_a_second_signal_cancels(tmp_path: pathlib.Path, ringfence_router: Router, handler: str) -> None:
    process = Process(tmp_path, ringfence_router, f"program:{handler}")
    runs = ringfence_router.deliver("runs", "100000")
    assert process.line() == "start"
    process.process.send_signal(signal.SIGTERM)
    assert process.process.stderr is not None
    while "stopping" not in process.process.stderr.readline():
        pass
    process.process.send_signal(signal.SIGTERM)
    code, errors = process.end()
    assert code == 0, errors
    assert runs.outcome() == Outcome("cancelled")


@pytest.mark.parametrize("handler", ["stubborn", "stubborn_task"])
def test_the_exit_code_when_handlers_still_run(tmp_path: pathlib.Path, ringfence_router: Router, handler: str) -> None:
    process = Process(tmp_path, ringfence_router, f"program:{handler}", "--drain-grace", "0")
    ringfence_router.deliver("runs")
    assert process.line() == "start"
    process.process.send_signal(signal.SIGTERM)
    code, errors = process.end()
    assert code == 1
    assert "1 handlers are still running" in errors


def test_run_raises_when_handlers_still_run(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    caller = """
        try:
            ringfence.run(stubborn_task, drain_grace=0)
        except ringfence.HandlersStillRunning:
            print("raised", flush=True)
    """
    process = Process(tmp_path, ringfence_router, program=PROGRAM + textwrap.indent(textwrap.dedent(caller), "    "))
    ringfence_router.deliver("runs")
    assert process.line() == "start"
    process.process.send_signal(signal.SIGTERM)
    assert process.line() == "raised"
    code, errors = process.end()
    assert code == 0, errors


def test_tasks_that_handlers_have_left_are_cancelled_at_the_end(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    process = Process(tmp_path, ringfence_router, "program:leaves_a_task")
    ringfence_router.deliver("runs")
    assert process.line() == "start"
    process.process.send_signal(signal.SIGTERM)
    assert process.line() == "cancelled"
    code, errors = process.end()
    assert code == 0, errors


@pytest.mark.parametrize(
    ("handler", "left"),
    [("leaves_a_stubborn_task", "1 tasks that handlers started"), ("leaves_a_generator", "generators that handlers left open")],
)
def test_what_does_not_end_at_the_end_is_given_up(tmp_path: pathlib.Path, ringfence_router: Router, handler: str, left: str) -> None:
    process = Process(tmp_path, ringfence_router, f"program:{handler}", "--drain-grace", "0")
    runs = ringfence_router.deliver("runs")
    assert process.line() == "start"
    assert runs.outcome() == Outcome("done")
    process.process.send_signal(signal.SIGTERM)
    code, errors = process.end()
    assert code == 0, errors
    assert left in errors


def test_threads_of_the_loop_that_block_at_the_end_are_given_up(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    """Of asyncio.to_thread: Python itself waits for them, but at the end of the process, when the application has ended its own."""
    caller = """
        ringfence.run(leaves_a_thread, drain_grace=0)
        print("ended", flush=True)
    """
    process = Process(tmp_path, ringfence_router, program=PROGRAM + textwrap.indent(textwrap.dedent(caller), "    "))
    runs = ringfence_router.deliver("runs")
    assert process.line() == "start"
    assert runs.outcome() == Outcome("done")
    process.process.send_signal(signal.SIGTERM)
    assert process.line() == "ended"
    process.process.kill()
    _, errors = process.end()
    assert "threads that handlers started" in errors


def test_a_worker_gives_tasks_up_that_ignore_their_cancellation(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    caller = """
        with ringfence.Worker(leaves_a_stubborn_task, drain_grace=0):
            input()
        print("ended", flush=True)
    """
    process = Process(tmp_path, ringfence_router, program=PROGRAM + textwrap.indent(textwrap.dedent(caller), "    "))
    runs = ringfence_router.deliver("runs")
    assert process.line() == "start"
    assert runs.outcome() == Outcome("done")
    assert process.process.stdin is not None
    process.process.stdin.write("\n")
    process.process.stdin.flush()
    assert process.line() == "ended"
    code, errors = process.end()
    assert code == 0, errors
    assert "1 tasks that handlers started" in errors


def test_an_interrupt_in_a_handler_ends_the_process(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    process = Process(tmp_path, ringfence_router, "program:interrupts", "--drain-grace", "0")
    ringfence_router.deliver("runs", "1")
    assert process.line() == "start"
    ringfence_router.deliver("interrupts")
    code, errors = process.end()
    assert code != 0
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["program"], "want module:function"),
        (["none:handle"], "there is no module none"),
        (["program:none"], "program has no none"),
        (["program:not_callable"], "is not a function"),
        (["program:generates"], "is a generator function"),
        (["program:plain", "--max-in-flight", "0"], "max_in_flight = 0"),
        (["program:plain", "--endpoint", "nowhere"], "want host:port"),
    ],
)
def test_bad_arguments(tmp_path: pathlib.Path, ringfence_router: Router, arguments: list[str], text: str) -> None:
    code, errors = Process(tmp_path, ringfence_router, *arguments).end()
    assert code == 2
    assert text in errors
