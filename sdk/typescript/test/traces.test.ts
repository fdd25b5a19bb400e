import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import * as api from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { testRouter } from "../src/testing/index.js";
import type { Traces } from "../src/traces.js";

const trace = "0af7651916cd43dd8448eb211c80319c";
const traceparent = `00-${trace}-b7ad6b7169203331-01`;

/** Reads and writes the header traceparent, as the W3C propagator does. */
const propagator: api.TextMapPropagator = {
  fields: () => ["traceparent"],
  extract(context, carrier, getter) {
    const match = /^00-(\w{32})-(\w{16})-(\w{2})$/.exec(String(getter.get(carrier, "traceparent") ?? ""));
    if (!match) return context;
    return api.trace.setSpanContext(context, { traceId: match[1]!, spanId: match[2]!, traceFlags: Number(match[3]), isRemote: true });
  },
  inject(context, carrier, setter) {
    const span = api.trace.getSpanContext(context);
    if (span) setter.set(carrier, "traceparent", `00-${span.traceId}-${span.spanId}-01`);
  },
};

function refuse(): never {
  throw new Error("the tracer is broken");
}

describe("traces", () => {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });

  before(() => {
    api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
    api.trace.setGlobalTracerProvider(provider);
    api.propagation.setGlobalPropagator(propagator);
  });
  after(() => {
    api.context.disable();
    api.trace.disable();
    api.propagation.disable();
  });

  it("go from the event into the handler, and out of it", async (t) => {
    exporter.reset();
    const router = testRouter(t);
    const sent: { traceparent?: string }[] = [];
    await router.start(async (event) => {
      await Promise.resolve();
      const headers = {};
      api.propagation.inject(api.context.active(), headers);
      sent.push(headers);
      if (event.key === "fails") throw new Error("no");
    });
    const properties = [{ name: "TraceParent", value: traceparent }];
    await router.deliver({ key: "k", topic: "orders", payload: "12345", properties }).outcome();
    await router.deliver({ key: "fails", topic: "orders", properties }).outcome();
    await router.deliver({ key: "untraced", topic: "orders" }).outcome();
    const [ok, failed, alone] = exporter.getFinishedSpans();
    assert.equal(ok!.name, "process orders");
    assert.equal(ok!.kind, api.SpanKind.CONSUMER);
    assert.equal(ok!.spanContext().traceId, trace);
    assert.equal(ok!.parentSpanContext?.spanId, "b7ad6b7169203331");
    assert.equal(ok!.attributes["messaging.system"], "pulsar");
    assert.equal(ok!.attributes["messaging.message.body.size"], 5);
    assert.equal(ok!.attributes["ringfence.result"], "done");
    assert.equal(sent[0]!.traceparent, `00-${trace}-${ok!.spanContext().spanId}-01`, "what the handler sends is not a child of its span");
    assert.equal(failed!.attributes["ringfence.result"], "retry");
    assert.equal(failed!.status.code, api.SpanStatusCode.ERROR);
    assert.notEqual(alone!.spanContext().traceId, trace);
    assert.equal(alone!.parentSpanContext, undefined);
  });

  it("end with the answer of a delivery that was asked for", async (t) => {
    exporter.reset();
    const router = testRouter(t);
    const iterator = router.deliveries();
    router.deliver({ key: "k" });
    const { value } = await iterator.next();
    assert.equal(exporter.getFinishedSpans().length, 0);
    value!.reject("no");
    assert.equal(exporter.getFinishedSpans()[0]!.attributes["ringfence.result"], "reject");
    await iterator.return();
  });

  it("can be switched off, and are off without a propagator", async (t) => {
    exporter.reset();
    const router = testRouter(t);
    await router.start(() => {}, { traces: false });
    await router.deliver({ key: "k" }).outcome();
    assert.equal(exporter.getFinishedSpans().length, 0);
    await router.stop();
    api.propagation.disable();
    await router.start(() => {});
    await router.deliver({ key: "k" }).outcome();
    assert.equal(exporter.getFinishedSpans().length, 0);
    await router.stop();
    api.propagation.setGlobalPropagator(propagator);
    await router.start(() => {}, { traces: api });
    await router.deliver({ key: "k" }).outcome();
    assert.equal(exporter.getFinishedSpans().length, 1);
  });

  for (const [name, { startSpan = provider.getTracer("t").startSpan.bind(provider.getTracer("t")), end }] of Object.entries<{ startSpan?: api.Tracer["startSpan"]; end?: () => void }>({
    "cannot be started": { startSpan: refuse },
    "cannot be ended": { end: refuse },
  })) {
    /** Traces of an application whose spans throw. */
    const broken: Traces = {
      ...api,
      trace: {
        setSpan: (context, span) => api.trace.setSpan(context as api.Context, span as api.Span),
        getTracer: () => ({
          startSpan: (...args) => {
            const span = startSpan(...(args as Parameters<typeof startSpan>));
            return end === undefined ? span : Object.assign(Object.create(span) as api.Span, { end });
          },
        }),
      },
    };
    const options = () => {
      const failures: unknown[] = [];
      const logger = { info() {}, warn() {}, error: (message: string) => void failures.push(message) };
      return { failures, options: { traces: broken, logger } };
    };

    it(`that ${name} hold up no handler`, async (t) => {
      const router = testRouter(t);
      const { failures, options: more } = options();
      let handled = 0;
      await router.start((event) => (handled++, event.key === "later" ? Promise.resolve() : undefined), more);
      for (const key of ["at-once", "later", "at-once"]) assert.equal((await router.deliver({ key }).outcome()).kind, "done");
      assert.equal(handled, 3);
      assert.equal(failures.length, 3);
      await router.stop();
    });

    it(`that ${name} hold up no delivery that was asked for`, async (t) => {
      const router = testRouter(t);
      const { failures, options: more } = options();
      const iterator = router.deliveries(more);
      for (const key of ["first", "second"]) {
        const delivery = router.deliver({ key });
        const { value } = await iterator.next();
        value!.done();
        assert.equal((await delivery.outcome()).kind, "done");
      }
      assert.equal(failures.length, 2);
      await iterator.return();
    });
  }
});
