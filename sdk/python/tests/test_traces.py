from __future__ import annotations

import asyncio
import builtins
import logging
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import ringfence
from ringfence import traces
from ringfence.options import Log
from ringfence.testing import Outcome, Router

LOG = Log(logging.getLogger("ringfence"))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.mark.parametrize("style", ["threads", "async"])
def test_a_handler_runs_in_the_trace_of_its_event(ringfence_router: Router, style: str, exporter: InMemorySpanExporter) -> None:
    exporter.clear()
    sent: list[dict[str, str]] = []

    def plain(event: ringfence.Event) -> None:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        sent.append(headers)
        if event.payload:
            raise ValueError("secret")

    async def task(event: ringfence.Event) -> None:
        await asyncio.sleep(0)
        plain(event)

    ringfence_router.start(plain if style == "threads" else task)
    ringfence_router.deliver("a", properties={"Traceparent": PARENT}, topic="orders").outcome()
    ringfence_router.deliver("b", b"x").outcome()
    done, failed = exporter.get_finished_spans()
    assert done.name == "process orders"
    assert done.parent is not None
    assert f"{done.parent.trace_id:032x}-{done.parent.span_id:016x}" == PARENT[3:-3]
    assert sent[0]["traceparent"].split("-")[1] == PARENT.split("-")[1], "outgoing calls are in the same trace"
    assert sent[0]["traceparent"].split("-")[2] == f"{done.context.span_id:016x}"
    assert result(done) == "done"
    assert result(failed) == "retry"
    assert failed.parent is None
    assert failed.status.status_code == trace.StatusCode.ERROR
    assert "secret" not in failed.to_json()


def test_a_call_without_a_handler_is_no_failure(ringfence_router: Router, exporter: InMemorySpanExporter) -> None:
    exporter.clear()
    ringfence_router.start(lambda event: None, calls={"do": lambda call: None})
    assert ringfence_router.call("k", "other").outcome().kind == "not_started"
    [span] = exporter.get_finished_spans()
    assert result(span) == "not_started"
    assert span.status.status_code == trace.StatusCode.UNSET


class _Broken(SpanProcessor):
    """Raises when a span of one of these topics starts, or ends."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if "breaks-start" in span.name:
            raise ValueError("the processor is broken")

    def on_end(self, span: ReadableSpan) -> None:
        if "breaks-end" in span.name:
            raise ValueError("the processor is broken")


@pytest.mark.parametrize("style", ["threads", "async"])
@pytest.mark.parametrize("topic", ["breaks-start", "breaks-end"])
def test_a_span_that_fails_does_not_fail_its_event(
    ringfence_router: Router, style: str, topic: str, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    trace.get_tracer_provider().add_span_processor(_Broken())  # type: ignore[attr-defined]
    handled: list[bytes] = []

    def plain(event: ringfence.Event) -> None:
        handled.append(event.key)
        if event.payload:
            raise ringfence.Reject("no")

    async def task(event: ringfence.Event) -> None:
        plain(event)

    ringfence_router.start(plain if style == "threads" else task)
    assert ringfence_router.deliver("a", topic=topic).outcome().kind == "done"
    assert ringfence_router.deliver("b", b"x", topic=topic).outcome() == Outcome("reject", reason="no")
    assert handled == [b"a", b"b"]
    assert caplog.text.count("a span failed") >= 2


def result(span: ReadableSpan) -> Any:
    assert span.attributes is not None
    return span.attributes["ringfence.result"]


def test_traces_can_be_switched_off(ringfence_router: Router, exporter: InMemorySpanExporter) -> None:
    exporter.clear()
    ringfence_router.start(lambda event: None, traces=False)
    ringfence_router.deliver("k").outcome()
    assert exporter.get_finished_spans() == ()


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    assert traces._spans(None, LOG) is None
    with pytest.raises(ringfence.ArgumentError, match="opentelemetry-api is not installed"):
        traces._spans(True, LOG)
