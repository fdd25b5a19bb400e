"""Adds up the orders of each customer, behind `router bridge`. It needs nothing but Python.

    python3 orders.py 8080 & router bridge --to http://127.0.0.1:8080/orders

GET / answers the sums. See docs/bridge.md.
"""
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

REMEMBERED = 1000  # ids of orders for each customer; a database would have an index on them


class Stale(Exception):
    """A later delivery of the customer has written."""


class Ledger:
    """Stands for your database. It makes the two checks that every write needs: a fence refuses a
    handler that has lost the customer, and the id of the event makes a repetition harmless."""

    def __init__(self):
        self.lock, self.accounts, self.orders = threading.Lock(), {}, 0

    def add(self, customer, order, fence, cents):
        with self.lock:
            account = self.accounts.setdefault(customer, {"fence": "", "seen": set(), "cents": 0})
            if fence < account["fence"]:  # as text: docs/sinks.md
                raise Stale
            if order in account["seen"]:
                return
            if len(account["seen"]) >= REMEMBERED:
                account["seen"].clear()
            account["fence"] = fence
            account["seen"].add(order)
            account["cents"] += cents
            self.orders += 1

    def sums(self):
        with self.lock:
            return {"customers": len(self.accounts), "orders": self.orders, "cents": sum(a["cents"] for a in self.accounts.values())}


ledger = Ledger()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # the bridge uses a connection again

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            cents = json.loads(body)["cents"]
            if type(cents) is not int or cents <= 0:
                raise ValueError(f"an order of {cents} cents")
        except (ValueError, KeyError, TypeError) as err:
            return self.answer(422, str(err))  # trying again would not help: to the dead letter topic
        try:
            ledger.add(unquote(self.headers["ce-partitionkey"]), self.headers["ce-id"], self.headers["ce-fence"], cents)
        except Stale:
            return self.answer(409, "the customer is somebody else's by now")
        self.answer(200, "")

    def do_GET(self):
        self.answer(200, json.dumps(ledger.sums()))

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
