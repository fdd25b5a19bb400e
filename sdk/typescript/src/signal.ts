/** Signals whose `aborted` asks the lease clock. */

/** Asks whether the work behind a signal must stop, and if so aborts the signal. */
type Ask = () => void;

const ask = Symbol("ask");

/**
 * An AbortSignal that reads the lease clock: a handler in a process that has just thawed must not go on
 * until the next timer. It is a signal of Node with another prototype, so that all that takes an
 * AbortSignal takes it.
 */
class LeaseSignal extends AbortSignal {
  declare [ask]: Ask;

  override get aborted(): boolean {
    if (super.aborted) return true;
    this[ask]();
    return super.aborted;
  }

  override throwIfAborted(): void {
    if (this.aborted) throw this.reason;
  }
}

/** Returns a controller whose signal calls `asked` whenever somebody reads whether it has aborted. */
export function leaseController(asked: Ask): AbortController {
  const controller = new AbortController();
  const signal = Object.setPrototypeOf(controller.signal, LeaseSignal.prototype) as LeaseSignal;
  signal[ask] = asked;
  return controller;
}
