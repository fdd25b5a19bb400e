"""The Python SDK's worker for ``router conformance``: its handler obeys the instruction in the payload.

It writes a line when it starts and one when it ends. The argument chooses the style of the handler: async or threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

import ringfence

MAX_IN_FLIGHT = 100_000  # the largest window of the protocol
CHECK_EVERY = 0.01  # seconds


def report(what: str, event: ringfence.Event | ringfence.Call, number: int) -> None:
    line = f"{what} {number} {event.key_text} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\n"
    os.write(1, line.encode())  # in one piece, so that lines of handlers do not mix


def answer(call: ringfence.Call, do: str, ms: int, size: int) -> bytes | None:
    if do == "after":
        set_timers(call, ms)
        return None
    if call.method == "echo":
        return call.payload
    if do == "reply":
        return size * b"x"
    if do == "fail":
        raise ringfence.CallFailure("told", "told to fail" + 500 * " é")
    if do == "crash":
        raise SystemExit("told to crash")
    if do != "done":
        raise ValueError(f"no such instruction: {do}")
    return None


def call_in_thread(call: ringfence.Call) -> bytes | None:
    instruction = json.loads(call.payload)
    number, do, ms = instruction["id"], instruction["do"], instruction["ms"]
    report("start", call, number)
    try:
        if do != "sleep":
            return answer(call, do, ms, instruction.get("bytes", 0))
        end = time.monotonic() + ms / 1000
        while time.monotonic() < end:
            call.check()
            time.sleep(CHECK_EVERY)
        return None
    finally:
        report("end", call, number)


async def call_in_task(call: ringfence.Call) -> bytes | None:
    instruction = json.loads(call.payload)
    number, do, ms = instruction["id"], instruction["do"], instruction["ms"]
    report("start", call, number)
    try:
        if do != "sleep":
            return answer(call, do, ms, instruction.get("bytes", 0))
        await asyncio.sleep(ms / 1000)
        return None
    finally:
        report("end", call, number)


def report_timer(event: ringfence.Event, number: int) -> None:
    if event.timer is not None:
        os.write(1, f"timer {number} {round(event.timer.due.timestamp() * 1000)} {event.timer.name}\n".encode())


def set_timers(of: ringfence.Event | ringfence.Call | ringfence.Firing, ms: int) -> None:
    of.after(ms / 1000, "first", b"1")
    of.after(0, "second", b"2")


class Visitors:
    """The state of a key."""

    def __init__(self, number: int) -> None:
        self.ids: list[int] = []
        os.write(1, f"loaded {number}\n".encode())

    def add(self, number: int) -> None:
        self.ids.append(number)
        os.write(1, f"state {number} {self.ids[0]}\n".encode())


async def load(number: int) -> Visitors:
    return Visitors(number)


def obey(event: ringfence.Event, number: int, do: str, ms: int) -> None:
    if do == "fence":
        os.write(1, f"fence {number} {event.fence}\n".encode())
        return
    if do in ("after", "after_fail"):
        set_timers(event, ms)
        if do == "after":
            return
    if do in ("fail", "after_fail"):
        raise ValueError("told to fail" + 500 * " é")  # longer than any reason may be
    if do == "reject":
        raise ringfence.Reject("told to reject")
    if do == "retry_after":
        raise ringfence.RetryAfter(ms / 1000, "told to wait")
    if do == "crash":
        raise SystemExit("told to crash")
    if do == "progress":
        event.progress()
    elif do != "done":
        raise ValueError(f"no such instruction: {do}")


def fire(firing: ringfence.Firing) -> None:
    line = f"firing {round(firing.time.timestamp() * 1000)} {firing.missed} {firing.attempt} {firing.fence}\n"
    os.write(1, line.encode())
    if firing.missed == 1:
        raise ValueError("told to fail" + 500 * " é")
    if firing.missed == 2:
        set_timers(firing, 60_000)
    if firing.missed == 3:
        raise ringfence.Reject("told to reject")


async def fire_in_task(firing: ringfence.Firing) -> None:
    fire(firing)


@ringfence.json_handler
def in_thread(event: ringfence.Event, instruction: Any) -> None:
    number, do, ms = instruction["id"], instruction["do"], instruction["ms"]
    report("start", event, number)
    report_timer(event, number)
    try:
        if do == "state":
            event.state(lambda: Visitors(number)).add(number)
            do = instruction.get("then") or "done"
        if do == "ignore_cancel":
            time.sleep(ms / 1000)
        elif do == "sleep":
            end = time.monotonic() + ms / 1000
            while time.monotonic() < end:
                event.check()
                time.sleep(CHECK_EVERY)
        else:
            obey(event, number, do, ms)
    finally:
        report("end", event, number)


@ringfence.json_handler
async def in_task(event: ringfence.Event, instruction: Any) -> None:
    number, do, ms = instruction["id"], instruction["do"], instruction["ms"]
    report("start", event, number)
    report_timer(event, number)
    try:
        if do == "state":
            (await event.state_async(lambda: load(number))).add(number)
            do = instruction.get("then") or "done"
        if do == "ignore_cancel":
            end = time.monotonic() + ms / 1000
            while time.monotonic() < end:
                try:
                    await asyncio.sleep(end - time.monotonic())
                except asyncio.CancelledError:
                    pass
        elif do == "sleep":
            await asyncio.sleep(ms / 1000)
        else:
            obey(event, number, do, ms)
    finally:
        report("end", event, number)


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    style = sys.argv[1] if len(sys.argv) > 1 else "async"
    handlers: dict[str, ringfence.Handler] = {"async": in_task, "threads": in_thread}
    of_calls: dict[str, ringfence.CallHandler] = {"async": call_in_task, "threads": call_in_thread}
    of_firings: dict[str, ringfence.FiringHandler] = {"async": fire_in_task, "threads": fire}
    if style not in handlers:
        sys.exit(f"no style {style}: want async or threads")
    ringfence.run(
        handlers[style],
        max_in_flight=MAX_IN_FLIGHT,
        calls={"echo": of_calls[style], "obey": of_calls[style]},
        schedules=[ringfence.Schedule("conformance", ringfence.every(3600), of_firings[style])],
    )
