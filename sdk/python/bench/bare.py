"""The plain gRPC stream of the same frames, without an SDK: what the language and gRPC allow.

It answers each Deliveries frame at once, with one frame that holds its receipt and DONE for all of it. The argument chooses gRPC's
stack: sync or aio.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import time
from collections.abc import Iterator

import grpc
import grpc.aio

from ringfence.app.v1 import app_pb2 as pb

METHOD = "/ringfence.app.v1.AppService/Work"
OPTIONS = [("grpc.max_receive_message_length", 72 << 20)]
PING_EVERY = 0.2
HELLO = pb.WorkRequest(hello=pb.Hello(max_in_flight=1000, sdk="bare", capabilities=["conformant", "raw_clock"]))
DONE = pb.RESULT_KIND_DONE


def ping(k: int) -> pb.WorkRequest:
    return pb.WorkRequest(ping=pb.Ping(k=k))


def answer(number: int, deliveries: pb.Deliveries) -> pb.WorkRequest:
    request = pb.WorkRequest(receipt=deliveries.number)
    results = request.results
    results.number = number
    add = results.results.add
    for delivery in deliveries.deliveries:
        add(delivery_id=delivery.delivery_id, kind=DONE)
    return request


def run_sync(endpoint: str) -> None:
    frames: queue.SimpleQueue[pb.WorkRequest] = queue.SimpleQueue()

    def requests() -> Iterator[pb.WorkRequest]:
        yield HELLO
        k, due = 0, time.monotonic()
        while True:
            wait = due - time.monotonic()
            if wait <= 0:
                k, due = k + 1, due + PING_EVERY
                yield ping(k)
                continue
            try:
                yield frames.get(timeout=wait)
            except queue.Empty:
                pass

    number = 0
    with grpc.insecure_channel(endpoint, options=OPTIONS) as channel:
        work = channel.stream_stream(METHOD, pb.WorkRequest.SerializeToString, pb.WorkResponse.FromString)
        for response in work(requests()):
            if response.HasField("deliveries"):
                number += 1
                frames.put(answer(number, response.deliveries))


async def run_aio(endpoint: str) -> None:
    async with grpc.aio.insecure_channel(endpoint, options=OPTIONS) as channel:
        call = channel.stream_stream(METHOD, pb.WorkRequest.SerializeToString, pb.WorkResponse.FromString)()
        await call.write(HELLO)
        writing = asyncio.Lock()  # one write at a time

        async def pings() -> None:
            k = 0
            while True:
                k += 1
                async with writing:
                    await call.write(ping(k))
                await asyncio.sleep(PING_EVERY)

        pinging = asyncio.ensure_future(pings())
        number = 0
        async for response in call:
            if response.HasField("deliveries"):
                number += 1
                async with writing:
                    await call.write(answer(number, response.deliveries))
        pinging.cancel()


if __name__ == "__main__":
    endpoint = os.environ.get("RINGFENCE_APP_ENDPOINT", "127.0.0.1:16650")
    try:
        if "aio" in sys.argv[1:]:
            asyncio.run(run_aio(endpoint))
        else:
            run_sync(endpoint)
    except (grpc.RpcError, KeyboardInterrupt) as error:
        sys.exit(f"the stream ended: {error!r}")
