"""Adds up what each user has done: a handler of twenty lines.

Try it beside three routers with: examples/python/try.sh
"""
import json

import worker

turns = {}  # stands for your database


def handle(event):
    payload = json.loads(event.payload)
    user = event.key.decode()
    if payload["turn"] < 1:
        raise worker.Reject("no such turn")  # trying again would not help: to the dead letter topic
    seen = turns.get(user, 0)
    event.check()  # before you write: raises KeyLost when another machine may have the key
    turns[user] = seen + 1  # with a database, pass event.fence along: docs/sinks.md
    print(f"{user}: {turns[user]} turns here, attempt {event.attempt}\n", end="", flush=True)


worker.run(handle)
