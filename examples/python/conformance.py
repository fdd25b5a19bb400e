"""The Python example's worker for `router conformance`: its handler obeys the instruction in
the payload, and writes a line when it starts and one when it ends."""
import json
import sys
import time

import worker


def report(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def handle(event):
    instruction = json.loads(event.payload)
    number, do, ms = instruction["id"], instruction["do"], instruction["ms"]
    report("start", number, event.key.decode(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    try:
        obey(event, do, ms / 1000)
    finally:
        report("end", number, event.key.decode(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def obey(event, do, seconds):
    if do == "fail":
        raise ValueError("told to fail" + 500 * " é")
    if do == "reject":
        raise worker.Reject("told to reject")
    if do == "crash":
        raise SystemExit("told to crash")
    if do == "retry_after":
        raise worker.RetryAfter(seconds, "told to wait")
    if do == "progress":
        event.progress()
    if do == "ignore_cancel":
        time.sleep(seconds)
    if do == "sleep":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            event.check()
            time.sleep(0.01)


worker.run(handle)
