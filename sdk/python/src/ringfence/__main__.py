"""Runs a handler: ``python -m ringfence module:function``."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys

import ringfence
from ringfence.handlers import refuse_generator
from ringfence.options import DRAIN_GRACE_DEFAULT, MAX_IN_FLIGHT_DEFAULT, THREADS_DEFAULT


def _handler(name: str) -> ringfence.Handler:
    """Returns the function that module:function names. Raises ValueError if there is none."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise ValueError(f"{name!r}: want module:function")
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise  # a module that it imports is missing
        raise ValueError(f"there is no module {module_name}: start it in the folder that holds it, or set PYTHONPATH") from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module_name} has no {path}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{name} is not a function")
    try:
        refuse_generator(name, found)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m ringfence", description="Calls a function for every event, until SIGTERM or SIGINT.")
    parser.add_argument("handler", metavar="module:function")
    parser.add_argument("--endpoint", help=f"host:port or unix:///path (default: ${ringfence.ENDPOINT_ENV}, else {ringfence.DEFAULT_ENDPOINT})")
    parser.add_argument("--max-in-flight", type=int, default=MAX_IN_FLIGHT_DEFAULT, help="the most unanswered events (default %(default)s)")
    parser.add_argument("--threads", type=int, default=None, help=f"the most plain handlers at once (default {THREADS_DEFAULT})")
    parser.add_argument("--drain-grace", type=float, default=DRAIN_GRACE_DEFAULT, help="seconds for handlers at the end (default %(default)s)")
    parser.add_argument("--name", default="", help="the name of this worker in the router's logs")
    parser.add_argument("--leave-group", action="store_true", help="the router leaves its group when the worker stops")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.path.insert(0, os.getcwd())
    options: ringfence.Options = {
        "max_in_flight": chosen.max_in_flight,
        "drain_grace": chosen.drain_grace,
        "name": chosen.name,
        "leave_group": chosen.leave_group,
    }
    if chosen.threads is not None:
        options["threads"] = chosen.threads
    try:
        handler = _handler(chosen.handler)
        ringfence.run(handler, chosen.endpoint, **options)
    except ringfence.HandlersStillRunning as error:
        print(f"ringfence: {error}", file=sys.stderr)
        return 1
    except ValueError as error:  # also ArgumentError
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
