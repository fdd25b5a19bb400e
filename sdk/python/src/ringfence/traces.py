"""The trace of an event, by OpenTelemetry, which is optional."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ringfence.errors import ArgumentError
from ringfence.event import Event
from ringfence.handlers import KINDS, AsyncHandler, Handler, PlainHandler, is_async, kind_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ringfence.options import Log, Settings


def with_traces(settings: Settings, handler: Handler) -> Handler:
    """Puts a span around a handler, in the trace of its event, if the application uses OpenTelemetry."""
    span = _spans(settings.traces, settings.log)
    if span is None:
        return handler
    if is_async(handler):
        inner = cast(AsyncHandler, handler)

        async def traced_async(event: Event) -> None:
            with span(event):
                await inner(event)

        return traced_async

    def traced(event: Event) -> None:
        with span(event):
            return cast(PlainHandler, handler)(event)

    return traced


def _spans(wanted: bool | None, log: Log) -> Callable[[Event], AbstractContextManager[None]] | None:
    """Returns what opens the span of an event, None without traces. A span that fails is logged, and its event goes on."""
    if wanted is False:
        return None
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        if wanted:
            raise ArgumentError("traces = True: opentelemetry-api is not installed; install ringfence[traces]") from None
        return None
    if wanted is None and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None  # the application has set no provider
    tracer = trace.get_tracer("ringfence")

    def start(event: Event) -> tuple[AbstractContextManager[Any], Any]:
        # The properties hold the routers' trace context, and the producer's other fields, such as baggage.
        parent = propagate.extract({name.lower(): value for name, value in event.properties.items()})
        attributes: dict[str, Any] = {
            "messaging.system": "pulsar",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": event.topic,
            "messaging.message.id": str(event.message_id),
            "messaging.message.body.size": len(event.payload),
            "ringfence.partition": event.partition,
            "ringfence.attempt": event.attempt,
        }
        span = tracer.start_as_current_span(
            f"call {event.method}" if event.method else f"process {event.topic}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,  # its text may hold a key or a payload
            set_status_on_exception=False,
        )
        return span, span.__enter__()

    def end(span: AbstractContextManager[Any], current: Any, result: str) -> None:
        try:
            try:
                current.set_attribute("ringfence.result", result)
                if result in ("reject", "retry"):
                    current.set_status(trace.Status(trace.StatusCode.ERROR, result))
            finally:
                span.__exit__(None, None, None)
        except Exception:
            log.exception("a span failed")

    @contextmanager
    def around(event: Event) -> Iterator[None]:
        try:
            started = start(event)
        except Exception:
            log.exception("a span failed")
            started = None
        if started is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            end(*started, KINDS[kind_of(event, error)])
            raise
        end(*started, "done")

    return around
