interface Waiting {
  readonly calls: Set<() => void>;
  readonly fire: () => void;
}

const waiting = new WeakMap<AbortSignal, Waiting>();

/**
 * Calls a function once when a signal aborts, unless it is taken back by what is returned. A signal gets one listener, whatever waits for it: from
 * the eleventh on Node warns of a leak, and an application may make a thousand calls with one signal.
 */
export function onAbort(signal: AbortSignal | undefined, call: () => void): () => void {
  if (signal === undefined) return () => {};
  let all = waiting.get(signal);
  if (all === undefined) {
    const calls = new Set<() => void>();
    const fire = () => {
      waiting.delete(signal);
      for (const one of calls) one();
    };
    all = { calls, fire };
    waiting.set(signal, all);
    signal.addEventListener("abort", fire, { once: true });
  }
  const { calls, fire } = all;
  const own = () => call(); // the same function may wait twice
  calls.add(own);
  return () => {
    if (!calls.delete(own) || calls.size > 0 || waiting.get(signal)?.calls !== calls) return;
    waiting.delete(signal);
    signal.removeEventListener("abort", fire);
  };
}
