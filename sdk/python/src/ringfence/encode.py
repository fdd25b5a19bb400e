"""Frames that carry results, encoded without an object for each: protobuf's objects cost more than the rest of an event."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from ringfence.app.v1 import app_pb2 as pb

_RESULTS = pb.WorkRequest.RESULTS_FIELD_NUMBER << 3 | 2
_RESULT = pb.Results.RESULTS_FIELD_NUMBER << 3 | 2
_DONE = bytes((pb.Result.KIND_FIELD_NUMBER << 3, pb.RESULT_KIND_DONE))
_TAGS = [number << 3 for number in (pb.Result.DELIVERY_ID_FIELD_NUMBER, pb.Result.STARTED_NS_FIELD_NUMBER, pb.Result.TOOK_NS_FIELD_NUMBER)]


def results_frame(receipt: int, results: pb.Results, ids: list[int], starts: list[int], tooks: list[int]) -> bytes:
    """Returns the frame with these results, and DONE for the deliveries of these ids, in any order.

    ``starts`` and ``tooks`` are the fields ``started_ns`` and ``took_ns`` of each, or empty.
    """
    head, body = pb.WorkRequest(receipt=receipt).SerializeToString(), results.SerializeToString()
    done = _encode_done([ids, starts, tooks] if starts else [ids]) if ids else b""
    return b"".join((head, bytes((_RESULTS,)), _varint(len(body) + len(done)), body, done))


def _encode_done(columns: Sequence[list[int]]) -> bytes:
    """Returns the field ``results`` of a Results frame for deliveries that are DONE: their ids, and perhaps their times.

    Results whose numbers have equally many bytes differ in those bytes alone, so each byte is put into all of them in one step.
    """
    row, places = bytearray((_RESULT, 0)), []
    for tag, column in zip(_TAGS, columns):  # noqa: B905  # there may be no times
        size = max(1, (max(column).bit_length() + 6) // 7)
        least = 1 << 7 * (size - 1)
        if size > 1 and min(column) < least:
            large = [number >= least for number in column]
            small = [not is_large for is_large in large]
            return b"".join(_encode_done([list(compress(column, of)) for column in columns]) for of in (large, small))
        row.append(tag)
        places.append((len(row), size, column))
        row += bytes(size) + (_DONE if len(places) == 1 else b"")  # in the order of their numbers
    row[1] = len(row) - 2
    rows = row * len(columns[0])
    for place, size, column in places:
        varints = pb.Progress(delivery_ids=column).SerializeToString()[-size * len(column) :]  # a packed field: one after the other
        for byte in range(size):
            rows[place + byte :: len(row)] = varints[byte::size]
    return bytes(rows)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
