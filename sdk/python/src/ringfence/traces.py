"""The trace of an event, by OpenTelemetry, which is optional."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ringfence.errors import ArgumentError, Reject
from ringfence.event import Event
from ringfence.handlers import AsyncHandler, Handler, PlainHandler, is_async, kind_of
from ringfence.inbox import CANCELLED

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ringfence.options import Settings


def with_traces(settings: Settings, handler: Handler) -> Handler:
    """Puts a span around a handler, in the trace of its event, if the application uses OpenTelemetry."""
    span = _spans(settings.traces)
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


def _spans(wanted: bool | None) -> Callable[[Event], AbstractContextManager[None]] | None:
    """Returns what opens the span of an event, None without traces."""
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

    @contextmanager
    def span(event: Event) -> Iterator[None]:
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
        with tracer.start_as_current_span(
            f"call {event.method}" if event.method else f"process {event.topic}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,  # its text may hold a key or a payload
            set_status_on_exception=False,
        ) as current:
            try:
                yield
            except BaseException as error:
                result = "cancelled" if kind_of(event, error) == CANCELLED else "reject" if isinstance(error, Reject) else "retry"
                current.set_attribute("ringfence.result", result)
                if result != "cancelled":
                    current.set_status(trace.Status(trace.StatusCode.ERROR, result))
                raise
            current.set_attribute("ringfence.result", "done")

    return span
