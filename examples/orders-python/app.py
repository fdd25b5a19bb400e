"""An example application: it adds up the orders of each customer.

If two orders of one customer were handled at once, both would read the old sum, and one order would be lost. Ringfence prevents this;
the application is just a handler. try.sh runs it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import Any

import ringfence
from ledger import Ledger

REPORT_EVERY = 10.0  # seconds
CENTS_FIELD = os.environ.get("ORDERS_CENTS_FIELD", "cents")  # of the payload; the customer is the key of the event

log = logging.getLogger("orders")


def handler(sums: Ledger) -> ringfence.Handler:
    """Returns the function that the router calls for one order of a customer at a time."""

    @ringfence.json_handler
    def handle(event: ringfence.Event, order: Any) -> None:
        cents = order.get(CENTS_FIELD, 0) if isinstance(order, dict) else 0
        if type(cents) is not int or cents <= 0:
            raise ringfence.Reject(f"an order of {cents!r} cents")  # trying again would not help
        event.check()  # before the write: the customer may be another machine's by now
        sums.add(event.key, str(event.message_id), event.fence, cents)  # StaleFence: the event goes to the new owner

    return handle


def report(sums: Ledger) -> None:
    customers, orders, cents = sums.sum()
    log.info("orders booked", extra={"facts": {"customers": customers, "orders": orders, "cents": cents}})


def main() -> None:
    """Handles orders until SIGTERM. The router beside it is found by RINGFENCE_APP_ENDPOINT, or at its usual port."""
    sums, ended = Ledger(), threading.Event()

    def report_now_and_then() -> None:
        while not ended.wait(REPORT_EVERY):
            report(sums)

    background = threading.Thread(target=report_now_and_then)
    background.start()
    try:
        ringfence.run(handler(sums))
    finally:
        ended.set()
        background.join()
        report(sums)


class JSONLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname, "msg": record.getMessage(), **getattr(record, "facts", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


if __name__ == "__main__":
    output = logging.StreamHandler()
    output.setFormatter(JSONLines())
    logging.basicConfig(level=logging.INFO, handlers=[output])
    main()
