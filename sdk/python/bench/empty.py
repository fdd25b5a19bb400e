"""A worker on the SDK whose handler returns at once. The argument chooses the style: async or threads."""

from __future__ import annotations

import logging
import sys

import ringfence


def in_thread(event: ringfence.Event) -> None:
    pass


async def in_task(event: ringfence.Event) -> None:
    pass


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    handlers: dict[str, ringfence.Handler] = {"async": in_task, "threads": in_thread}
    ringfence.run(handlers[sys.argv[1] if len(sys.argv) > 1 else "threads"], max_in_flight=1000)
