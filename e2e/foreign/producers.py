"""Publishes events with Pulsar's Python client, whose core is the one in C++, in every way that it has.

Usage: producers.py URL TOPICS PUBLIC_KEY KIND=COUNT...

Each kind has a topic, TOPICS-KIND. Every event says in its properties what it is: the kind, its number, its key and the
SHA-256 of its payload as it was handed to the producer.
"""

import hashlib
import random
import sys
import threading
from datetime import timedelta

import pulsar
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

CHUNKED = 6 << 20  # larger than one message may be


class Order(Record):
    number = Integer()
    text = String()


AVRO, JSON = AvroSchema(Order), JsonSchema(Order)

# What each kind asks of its producer.
KINDS = {
    "plain": dict(batching_enabled=False),
    "batched": dict(batching_enabled=True),
    "key_batched": dict(batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased),
    "zstd": dict(batching_enabled=True, compression_type=pulsar.CompressionType.ZSTD),
    "lz4": dict(batching_enabled=True, compression_type=pulsar.CompressionType.LZ4),
    "snappy": dict(batching_enabled=True, compression_type=pulsar.CompressionType.SNAPPY),
    "zlib": dict(batching_enabled=True, compression_type=pulsar.CompressionType.ZLib),
    "delayed": dict(batching_enabled=False),
    "chunked": dict(batching_enabled=False, chunking_enabled=True, compression_type=pulsar.CompressionType.ZSTD),
    "chunked_plain": dict(batching_enabled=False, chunking_enabled=True),
    "avro": dict(batching_enabled=True, schema=AVRO),
    "json": dict(batching_enabled=True, schema=JSON),
    "encrypted": dict(batching_enabled=True),
}


def content(kind, number):
    """Returns what is handed to the producer, and its bytes."""
    if kind in ("avro", "json"):
        order = Order(number=number, text="größer " * (number % 7))
        return order, KINDS[kind]["schema"].encode(order)
    if kind in ("chunked", "chunked_plain"):
        data = random.Random(number).randbytes(CHUNKED + number)
    elif number % 100 == 99:
        data = random.Random(number).randbytes(20_000)
    else:
        data = f"{kind} {number} ".encode() * (1 + number % 30)
    return data, data


def publish(client, topics, public_key, kind, count):
    options = dict(KINDS[kind], block_if_queue_full=True, batching_max_publish_delay_ms=10)
    if kind == "encrypted":
        options["encryption_key"] = "their-key"
        options["crypto_key_reader"] = pulsar.CryptoKeyReader(public_key, "")
    producer = client.create_producer(f"{topics}-{kind}", **options)
    failed, lock = [], threading.Lock()

    def sent(result, _):
        if result != pulsar.Result.Ok:
            with lock:
                failed.append(result)

    for number in range(count):
        value, data = content(kind, number)
        key = f"user-{number % 211}-ü"
        properties = {"kind": kind, "number": str(number), "key": key, "sha256": hashlib.sha256(data).hexdigest(), "empty": ""}
        more = {"deliver_after": timedelta(seconds=1)} if kind == "delayed" else {}
        producer.send_async(value, sent, properties=properties, partition_key=key, event_timestamp=1_700_000_000_000 + number, **more)
    producer.flush()
    producer.close()
    if failed:
        sys.exit(f"{kind}: {len(failed)} of {count} were not sent: {failed[0]}")


def main():
    url, topics, public_key, *kinds = sys.argv[1:]
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    for wanted in kinds:
        kind, count = wanted.split("=")
        publish(client, topics, public_key, kind, int(count))
    client.close()


if __name__ == "__main__":
    main()
