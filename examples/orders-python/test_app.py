from __future__ import annotations

import itertools

import pytest
from app import handler
from ledger import Ledger, StaleFence

from ringfence import Fence, MessageID
from ringfence.testing import Delivery, Router


def test_handler(ringfence_router: Router) -> None:
    sums = Ledger()
    ringfence_router.start(handler(sums))
    entries = itertools.count(1)

    def deliver(customer: str, payload: str) -> Delivery:
        return ringfence_router.deliver(customer, payload, message_id=MessageID(0, next(entries)))

    first = deliver("alice", '{"cents": 500}')
    assert deliver("alice", '{"cents": 250}').outcome().kind == "done"
    assert deliver("bob", '{"cents": 1}').outcome().kind == "done"
    assert first.outcome().kind == "done"
    assert first.redeliver().outcome().kind == "done", "the same order again"
    for payload in ("gibberish", '{"cents": 0}', '{"cents": "1"}', '{"cents": true}', "[]", "{}"):
        assert deliver("carol", payload).outcome().kind == "reject", payload
    assert sums.sum() == (2, 3, 751)


def test_ledger_refuses_an_earlier_delivery() -> None:
    sums = Ledger()
    for order_id, fence, refused in (
        ("1", Fence(7, 1), False),
        ("2", Fence(7, 3), False),  # the next worker beside the same router
        ("3", Fence(7, 1), True),
        ("3", Fence(9, 2), False),  # the next owner
        ("4", Fence(7, 4), True),
        ("3", Fence(9, 2), False),  # once more
    ):
        if refused:
            with pytest.raises(StaleFence):
                sums.add(b"alice", order_id, fence, 100)
        else:
            sums.add(b"alice", order_id, fence, 100)
    assert sums.sum() == (1, 3, 300)
