"""Processes: signals, exit codes and the command line."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

from ringfence.testing import Outcome, Router

WAIT = 30

PROGRAM = """
    import asyncio, logging, time
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

    not_callable = 1
"""


class Process:
    def __init__(self, folder: pathlib.Path, router: Router, *arguments: str) -> None:
        (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
        environment = {**os.environ, "RINGFENCE_APP_ENDPOINT": router.endpoint, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "ringfence", *arguments]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        try:
            _, errors = self.process.communicate(timeout=WAIT)
        finally:
            self.process.kill()
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


def test_the_exit_code_when_handlers_still_run(tmp_path: pathlib.Path, ringfence_router: Router) -> None:
    process = Process(tmp_path, ringfence_router, "program:stubborn", "--drain-grace", "0")
    ringfence_router.deliver("runs")
    assert process.line() == "start"
    process.process.send_signal(signal.SIGTERM)
    code, errors = process.end()
    assert code == 1
    assert "1 handlers are still running" in errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["program"], "want module:function"),
        (["none:handle"], "there is no module none"),
        (["program:none"], "program has no none"),
        (["program:not_callable"], "is no function"),
        (["program:plain", "--max-in-flight", "0"], "max_in_flight = 0"),
        (["program:plain", "--endpoint", "nowhere"], "want host:port"),
    ],
)
def test_bad_arguments(tmp_path: pathlib.Path, ringfence_router: Router, arguments: list[str], text: str) -> None:
    code, errors = Process(tmp_path, ringfence_router, *arguments).end()
    assert code == 2
    assert text in errors
