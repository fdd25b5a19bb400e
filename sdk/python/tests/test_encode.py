from __future__ import annotations

import pytest

from ringfence.app.v1 import app_pb2 as pb
from ringfence.encode import results_frame

DAY = 86_400 * 1_000_000_000


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [0],
        [1, 127],
        [127, 128, 1, 16_383, 16_384, 2_097_151, 2_097_152],  # of one to four bytes
        [(1 << 64) - 1, 1 << 63, (1 << 63) - 1, 5],
        list(range(16_000, 16_000 + 32_768)),
    ],
    ids=["none", "zero", "small", "mixed", "large", "a full frame"],
)
@pytest.mark.parametrize("timed", [False, True], ids=["untimed", "timed"])
@pytest.mark.parametrize("receipt", [0, 300])
@pytest.mark.parametrize("reason", [None, "full" * 100])
def test_frames_are_those_of_protobuf(ids: list[int], receipt: int, reason: str | None, timed: bool) -> None:
    results = pb.Results(number=7)
    if reason is not None:
        results.results.add(delivery_id=9, kind=pb.RESULT_KIND_RETRY, after_ms=20, reason=reason)
    starts = [DAY + i for i in range(len(ids))] if timed else []
    tooks = [300 * i % 20_000 for i in range(len(ids))] if timed else []
    got = pb.WorkRequest.FromString(results_frame(receipt, results, ids, starts, tooks))
    want = pb.WorkRequest(receipt=receipt, results=results)
    for i, delivery_id in enumerate(ids):
        result = want.results.results.add(delivery_id=delivery_id, kind=pb.RESULT_KIND_DONE)
        if timed:
            result.started_ns, result.took_ns = starts[i], tooks[i]
    order = [(result.delivery_id, result.SerializeToString()) for result in got.results.results]
    assert sorted(order) == sorted((result.delivery_id, result.SerializeToString()) for result in want.results.results)
    got.results.ClearField("results")
    want.results.ClearField("results")
    assert got == want
