import { it } from "node:test";

/** Draws a whole number between two bounds, both included. */
export type Draw = (least: number, most: number) => number;

/**
 * Runs a test with random numbers, `times` times. A failure names its seed, and
 * `SEED=… node --test FILE` repeats it.
 */
export function randomly(name: string, times: number, test: (draw: Draw) => void): void {
  it(name, () => {
    const fixed = process.env.SEED;
    const first = fixed === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(fixed);
    for (let i = 0; i < (fixed === undefined ? times : 1); i++) {
      const seed = (first + i) >>> 0;
      try {
        test(mulberry32(seed));
      } catch (err) {
        throw new Error(`with SEED=${seed}: ${err instanceof Error ? err.message : String(err)}`, { cause: err });
      }
    }
  });
}

/** A small generator of good enough random numbers with a seed. */
function mulberry32(seed: number): Draw {
  let state = seed;
  return (least, most) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return least + (((t ^ (t >>> 14)) >>> 0) % (most - least + 1));
  };
}
