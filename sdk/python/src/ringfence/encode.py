"""Frames that carry results, encoded without an object for each: protobuf's objects cost more than the rest of an event."""

from __future__ import annotations

from ringfence.app.v1 import app_pb2 as pb

_RESULTS = pb.WorkRequest.RESULTS_FIELD_NUMBER << 3 | 2
_RESULT = pb.Results.RESULTS_FIELD_NUMBER << 3 | 2
_ID = pb.Result.DELIVERY_ID_FIELD_NUMBER << 3
_KIND = pb.Result.KIND_FIELD_NUMBER << 3


def results_frame(receipt: int, results: pb.Results, done: list[int]) -> bytes:
    """Returns the frame with these results, and DONE for the deliveries of these ids, in any order."""
    head, body, more = pb.WorkRequest(receipt=receipt).SerializeToString(), results.SerializeToString(), encode_done(done)
    return b"".join((head, bytes((_RESULTS,)), _varint(len(body) + len(more)), body, more))


def encode_done(ids: list[int]) -> bytes:
    """Returns the field ``results`` of a Results frame that answers the deliveries of these ids with DONE.

    Results whose ids have equally many bytes differ in those bytes alone, so each byte is put into all of them in one step.
    """
    parts = []
    while ids:
        size = max(1, (max(ids).bit_length() + 6) // 7)
        least = 1 << 7 * (size - 1) if size > 1 else 0
        same, ids = (ids, []) if min(ids) >= least else ([i for i in ids if i >= least], [i for i in ids if i < least])
        varints = pb.Progress(delivery_ids=same).SerializeToString()[-size * len(same) :]  # a packed field: one after the other
        results = bytearray(bytes((_RESULT, size + 3, _ID, *bytes(size), _KIND, pb.RESULT_KIND_DONE)) * len(same))
        for byte in range(size):
            results[3 + byte :: size + 5] = varints[byte::size]
        parts.append(results)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
