/**
 * Signals of handlers. Their `aborted` asks the lease clock: a handler in a process that has just thawed must not go on until the
 * next timer.
 *
 * To make an AbortSignal takes Node longer than all else that the SDK does for an event, and most handlers only pass it on or
 * ask whether it has aborted. So a handler gets a stand-in, which makes a signal of Node when somebody listens to it, and
 * passes all calls on to that one.
 */

/** Whose handler may be cancelled. */
export interface Cancellable {
  /** Why the handler must stop, undefined as long as it need not. */
  cause: Error | undefined;
  /** The controller of Node's AbortSignal, once there is one. Code that sets the cause must abort it, too. */
  controller: AbortController | undefined;
  /** Compares the deadline with the clock, and sets the cause if it has passed. */
  ask(): void;
}

const of = Symbol("of");

/** The signal of Node behind the one of a handler. */
function native(of: Cancellable): AbortSignal {
  if (of.controller === undefined) {
    of.controller = new AbortController();
    if (of.cause !== undefined) of.controller.abort(of.cause);
  }
  return of.controller.signal;
}

/** Whether the handler must stop. */
function aborted(of: Cancellable): boolean {
  if (of.cause === undefined) of.ask();
  return of.cause !== undefined;
}

/** The stand-in: an AbortSignal by its prototype, made without the constructor, which is Node's own. */
interface LeaseSignal extends AbortSignal {
  [of]: Cancellable;
}

const LeaseSignal = function (this: LeaseSignal, its: Cancellable) {
  this[of] = its;
} as unknown as new (its: Cancellable) => LeaseSignal;

LeaseSignal.prototype = Object.create(AbortSignal.prototype, {
  aborted: {
    get(this: LeaseSignal) {
      return aborted(this[of]);
    },
  },
  reason: {
    get(this: LeaseSignal) {
      return this[of].cause;
    },
  },
  throwIfAborted: {
    value(this: LeaseSignal) {
      if (aborted(this[of])) throw this[of].cause;
    },
  },
  onabort: {
    get(this: LeaseSignal) {
      return this[of].controller?.signal.onabort ?? null;
    },
    set(this: LeaseSignal, listener: AbortSignal["onabort"]) {
      native(this[of]).onabort = listener;
    },
  },
  addEventListener: {
    value(this: LeaseSignal, ...all: Parameters<AbortSignal["addEventListener"]>) {
      native(this[of]).addEventListener(...all);
    },
  },
  removeEventListener: {
    value(this: LeaseSignal, ...all: Parameters<AbortSignal["removeEventListener"]>) {
      this[of].controller?.signal.removeEventListener(...all);
    },
  },
  dispatchEvent: {
    value(this: LeaseSignal, event: globalThis.Event) {
      return native(this[of]).dispatchEvent(event);
    },
  },
});

/**
 * Node keeps the state of a signal under symbols, which AbortSignal.any and events.getEventListeners read: they are those of the
 * signal of Node, too.
 */
function shareState(): void {
  const sample = new AbortController().signal;
  AbortSignal.any([sample]).onabort = () => {}; // adds one: Node 24 only when somebody listens
  for (const symbol of Object.getOwnPropertySymbols(sample)) {
    Object.defineProperty(LeaseSignal.prototype, symbol, {
      get(this: LeaseSignal) {
        return (native(this[of]) as never)[symbol];
      },
      set(this: LeaseSignal, value: unknown) {
        (native(this[of]) as unknown as Record<symbol, unknown>)[symbol] = value;
      },
    });
  }
}

/** Whether AbortSignal.any takes a stand-in for a signal. Another Node may keep the state of signals in another way. */
function standsIn(): boolean {
  try {
    shareState();
    const its: Cancellable = { cause: undefined, controller: undefined, ask() {} };
    const any = AbortSignal.any([new LeaseSignal(its)]);
    let heard = false;
    any.onabort = () => (heard = true);
    if (any.aborted) return false;
    its.cause = new Error();
    its.controller?.abort(its.cause);
    return heard && any.aborted && any.reason === its.cause && AbortSignal.any([new LeaseSignal(its)]).aborted;
  } catch {
    return false;
  }
}

/** Whether handlers get stand-ins: they do unless this Node does not take them. */
export const standIns = standsIn();

/** Returns the signal of a handler. */
export function signalOf(its: Cancellable, standIn = standIns): AbortSignal {
  if (standIn) return new LeaseSignal(its);
  return Object.defineProperties(native(its), {
    aborted: { get: () => aborted(its) },
    throwIfAborted: {
      value() {
        if (aborted(its)) throw its.cause;
      },
    },
  });
}
