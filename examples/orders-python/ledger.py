"""A ledger that stands for your database."""

from __future__ import annotations

import dataclasses
import threading

from ringfence import Fence

ORDERS_REMEMBERED = 1000
"""Bounds the ids that an account keeps; a database would have an index on them."""


class StaleFence(Exception):
    """Refuses a write with an older fence than that of an earlier write."""


@dataclasses.dataclass
class Account:
    fence: Fence = Fence(0, 0)  # of the last write: handlers of earlier deliveries are refused
    last: set[str] = dataclasses.field(default_factory=set)
    cents: int = 0


class Ledger:
    """It shows the two checks that make every write safe: a fence refuses a handler that has lost the customer, and the id of the
    event makes a repetition harmless. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._customers: dict[bytes, Account] = {}
        self._orders = 0

    def add(self, customer: bytes, order_id: str, fence: Fence, cents: int) -> None:
        """Books an order, once. Raises StaleFence if a later delivery of this customer has written."""
        with self._lock:
            account = self._customers.setdefault(customer, Account())
            if fence < account.fence:
                raise StaleFence("the fence is stale: a later delivery of this customer has written")
            if order_id in account.last:
                return
            if len(account.last) >= ORDERS_REMEMBERED:
                account.last.clear()
            account.fence = fence
            account.last.add(order_id)
            account.cents += cents
            self._orders += 1

    def sum(self) -> tuple[int, int, int]:
        """Returns how many customers this process has, how many orders, and their cents."""
        with self._lock:
            return len(self._customers), self._orders, sum(account.cents for account in self._customers.values())
