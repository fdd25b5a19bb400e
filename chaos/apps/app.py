"""An application of the fault tests on the Python SDK. It asks the process that has started it for each step, as
chaos/foreign.go describes: one JSON object in a line, on standard output, and the answers on standard input."""

import itertools
import json
import sys
import threading
import time

import ringfence

STEP = 0.01  # seconds between two looks at the deadline

numbers = itertools.count(1)
lock = threading.Lock()
waiting = {}


def ask(**question):
    """Asks, and waits for the answer."""
    slot = {"answered": threading.Event()}
    with lock:
        question["n"] = n = next(numbers)
        waiting[n] = slot
        sys.stdout.write(json.dumps(question) + "\n")
        sys.stdout.flush()
    slot["answered"].wait()
    return slot["answer"]


def read():
    for line in sys.stdin:
        answer = json.loads(line)
        with lock:
            slot = waiting.pop(answer["n"])
        slot["answer"] = answer
        slot["answered"].set()


def handle(event):
    begun = ask(do="begin", event=event.payload.decode(), key=event.key_text, fence=event.fence.text)
    if not begun["ok"]:
        raise RuntimeError("the key is somebody else's")
    try:
        end = time.monotonic() + begun["ms"] / 1000
        while (left := end - time.monotonic()) > 0:
            event.check()
            time.sleep(min(left, STEP))
        event.check()
    except ringfence.Cancelled:
        ask(do="end", handling=begun["handling"], outcome="cancelled")
        raise
    if not ask(do="end", handling=begun["handling"], outcome="done")["ok"]:
        raise RuntimeError("the key is somebody else's by now")


threading.Thread(target=read, daemon=True).start()
ringfence.run(handle, max_in_flight=256)
