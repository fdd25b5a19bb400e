from __future__ import annotations

import datetime
import random

import pytest

from ringfence import Event, Fence, MessageID
from ringfence.app.v1 import app_pb2 as pb
from ringfence.event import detach

TEXT = "0000000000004194310.00000000000000000017"


def test_fence_text() -> None:
    assert Fence(4194310, 17).text == str(Fence(4194310, 17)) == f"{Fence(4194310, 17)}" == TEXT
    assert Fence.parse(TEXT) == Fence(4194310, 17)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "4194310",
        "4194310.17",
        TEXT.replace(".", ":"),
        TEXT + "0",
        TEXT[1:] + "0",
        "-" + TEXT[1:],
        "+" + TEXT[1:],
        "9223372036854775808" + TEXT[19:],
        TEXT[:20] + "18446744073709551616",
        TEXT[:20] + "+0000000000000000017",
        "٣" + TEXT[1:],
    ],
)
def test_no_fence(bad: str) -> None:
    with pytest.raises(ValueError, match="19 digits, a point and 20 digits"):
        Fence.parse(bad)


def test_fences_sort_as_their_texts() -> None:
    draw = random.Random(1)
    edges = [0, 1, 9, 10, 1 << 53, (1 << 63) - 1]

    def fence() -> Fence:
        token = draw.choice([*edges, draw.randrange(1 << 63)])
        return Fence(token, draw.choice([*edges, (1 << 64) - 1, draw.randrange(1 << 64)]))

    for _ in range(2000):
        a, b = fence(), fence()
        assert (a < b, a == b) == (a.text.encode() < b.text.encode(), a.text == b.text)
        assert Fence.parse(a.text) == a


def test_the_text_of_a_key_names_it() -> None:
    key = b"user-\xff"
    assert Event(Event(key).key_text).key == key


def wire() -> Event:
    frame = pb.Deliveries(
        topics=["other", "persistent://public/default/orders"],
        tokens=[7, 9],
        names=["source", "TraceParent", "tracestate"],
        schema_versions=[b"\x00\x01"],
        deliveries=[
            pb.Delivery(
                delivery_id=3,
                partition=362,
                key=b"user-\xff",
                payload=b"body",
                properties=[
                    pb.Property(name=0, value="web"),
                    pb.Property(name=1, value="00-a"),
                    pb.Property(name=2, value="s"),
                    pb.Property(name=0, value="x"),
                ],
                ledger_id=11,
                entry_id=12,
                batch_index=-1,
                topic_partition=4,
                topic=1,
                token=1,
                publish_time_ms=1_763_000_000_123,
                attempt=2,
                redelivery_count=5,
                turn=17,
                schema_version=1,
            )
        ],
    )
    event = Event.__new__(Event)
    event.id, event._frame, event._delivery, event._stream, event._cause = 3, frame, frame.deliveries[0], None, None
    return event


@pytest.mark.parametrize("detached", [False, True])
def test_fields(detached: bool) -> None:
    event = wire()
    if detached:
        detach(event)
        assert event._frame is None
        assert event._delivery is None
    assert (event.key, event.payload, event.partition) == (b"user-\xff", b"body", 362)
    assert event.key_text.encode(errors="surrogateescape") == event.key
    assert event.properties == {"source": "web", "TraceParent": "00-a", "tracestate": "s"}
    assert (event.traceparent, event.tracestate) == ("00-a", "s")
    assert event.trace_headers == {"traceparent": "00-a", "tracestate": "s"}
    assert event.topic == "persistent://public/default/orders"
    assert event.message_id == MessageID(11, 12, -1, 4)
    assert str(event.message_id) == "11:12:4:-1"
    assert event.publish_time == datetime.datetime(2025, 11, 13, 2, 13, 20, 123000, tzinfo=datetime.timezone.utc)
    assert event.event_time is None
    assert (event.attempt, event.redelivery, event.schema_version) == (2, 5, b"\x00\x01")
    assert (event.fence, event.fencing_token, event.turn) == (Fence(9, 17), 9, 17)
    assert event.payload is event.payload, "a field is read once"


def test_any_time_of_a_producer() -> None:
    event = wire()
    assert event._delivery is not None
    event._delivery.publish_time_ms = (1 << 63) - 1
    assert event.publish_time == datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)


def test_no_such_field() -> None:
    with pytest.raises(AttributeError, match="no attribute 'offset'"):
        _ = wire().offset  # type: ignore[attr-defined]


def test_attributes_are_read_as_fast_as_those_of_any_class() -> None:
    assert not hasattr(Event, "__getattr__"), "each attribute of an event takes 30 ns more"


def test_an_event_of_a_test() -> None:
    event = Event("k", '{"a": 1}', properties={"a": "b"}, fence=Fence(1, 2))
    assert (event.key, event.payload, event.key_text, event.attempt, event.event_time) == (b"k", b'{"a": 1}', "k", 1, None)
    assert (event.cancelled, event.cause, event.lease_until, event.trace_headers) == (False, None, None, {})
    event.check()
    event.progress()


def test_repr_holds_no_data() -> None:
    event = Event("secret-key", "secret-payload", message_id=MessageID(1, 2))
    assert repr(event) == "<Event 1:2:-1:-1 attempt 1>"
