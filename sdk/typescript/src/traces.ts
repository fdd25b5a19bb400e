import type { LeasedEvent } from "./event.js";
import { Kind, kindNames } from "./inbox.js";

/** A context of OpenTelemetry. */
interface Context {
  getValue(key: symbol): unknown;
  setValue(key: symbol, value: unknown): Context;
  deleteValue(key: symbol): Context;
}

/** A span of OpenTelemetry. */
interface Span {
  isRecording(): boolean;
  setAttribute(key: string, value: string | number): unknown;
  setStatus(status: { code: number; message?: string }): unknown;
  end(): void;
}

/** Reads fields of a carrier. */
interface Getter<T> {
  get(carrier: T, key: string): string | undefined;
  keys(carrier: T): string[];
}

/**
 * The module @opentelemetry/api, as far as the SDK needs it. It is described here, so that the types of this package can be
 * read without it.
 */
export interface Traces {
  readonly context: { active(): Context; with<T>(context: Context, call: () => T): T };
  readonly propagation: { fields(): string[]; inject(context: Context, carrier: Record<string, string>): void; extract<T>(context: Context, carrier: T, getter: Getter<T>): Context };
  readonly trace: {
    getTracer(name: string): { startSpan(name: string, options: { kind: number }, context: Context): Span };
    setSpan(context: Context, span: Span): Context;
  };
  readonly SpanKind: { readonly CONSUMER: number };
  readonly SpanStatusCode: { readonly ERROR: number };
  readonly ROOT_CONTEXT: Context;
}

/**
 * Returns @opentelemetry/api if it is installed and the application has set a propagator, else undefined:
 * then there are no traces, at no cost.
 */
export async function installedTraces(): Promise<Traces | undefined> {
  let api: Traces;
  try {
    api = await import("@opentelemetry/api");
  } catch (err) {
    const { code, message } = err as { code?: string; message?: string };
    if (code === "ERR_MODULE_NOT_FOUND" && message?.includes("'@opentelemetry/api'")) return undefined;
    throw err;
  }
  return api.propagation.fields().length > 0 ? api : undefined;
}

/**
 * Lets a propagator read the properties of an event: the router's trace context, which makes its span the
 * parent, and other fields of the producer, such as baggage. Names are case-insensitive.
 */
const getter: Getter<LeasedEvent> = {
  get: (event, key) => event.properties.find((p) => p.name.toLowerCase() === key.toLowerCase())?.value,
  keys: (event) => event.properties.map((p) => p.name),
};

/** Starts a span for each handler in the trace of its event, and makes it the active one in the handler. */
export class Tracer {
  constructor(private readonly api: Traces) {}

  /** Starts the span of an event's handler; `end` ends it. */
  start(event: LeasedEvent): { active: Context; end: (kind: Kind) => void } {
    const { propagation, trace, SpanKind, ROOT_CONTEXT } = this.api;
    const parent = propagation.extract(ROOT_CONTEXT, event, getter);
    const span = trace.getTracer("@ringfence/client").startSpan(event.call === undefined ? `process ${event.topic}` : `call ${event.method}`, { kind: SpanKind.CONSUMER }, parent);
    if (span.isRecording()) {
      const attributes = {
        "messaging.system": "pulsar",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": event.topic,
        "messaging.message.id": String(event.messageId),
        "messaging.message.body.size": event.payload.length,
        "ringfence.partition": event.partition,
        "ringfence.attempt": event.attempt,
      };
      for (const [key, value] of Object.entries(attributes)) span.setAttribute(key, value);
    }
    return { active: trace.setSpan(parent, span), end: (kind) => this.#end(span, kind) };
  }

  #end(span: Span, kind: Kind): void {
    span.setAttribute("ringfence.result", kindNames[kind]);
    if (kind === Kind.Retry || kind === Kind.Reject) span.setStatus({ code: this.api.SpanStatusCode.ERROR, message: kindNames[kind] });
    span.end();
  }

  /** Calls a function with a context as the active one. */
  with<T>(active: Context, call: () => T): T {
    return this.api.context.with(active, call);
  }
}
