const p1 = 0x9e3779b185ebca87n;
const p2 = 0xc2b2ae3d27d4eb4fn;
const p3 = 0x165667b19e3779f9n;
const p4 = 0x85ebca77c2b2ae63n;
const p5 = 0x27d4eb2f165667c5n;
const mask = (1n << 64n) - 1n;

/** Bytes that the four lanes take together. */
const stripe = 32;

const rotate = (value: bigint, bits: bigint): bigint => ((value << bits) | (value >> (64n - bits))) & mask;
const round = (lane: bigint, word: bigint): bigint => (rotate((lane + word * p2) & mask, 31n) * p1) & mask;

/** XXH64 with the seed 0: the hash by which calls name the keys whose handlers wait for them. */
export function xxh64(data: Buffer): bigint {
  let at = 0;
  let value = p5;
  if (data.length >= stripe) {
    let lanes = [(p1 + p2) & mask, p2, 0n, -p1 & mask];
    for (; at + stripe <= data.length; at += stripe) lanes = lanes.map((lane, i) => round(lane, data.readBigUInt64LE(at + 8 * i)));
    value = [1n, 7n, 12n, 18n].reduce((sum, bits, i) => sum + rotate(lanes[i]!, bits), 0n) & mask;
    for (const lane of lanes) value = ((value ^ round(0n, lane)) * p1 + p4) & mask;
  }
  value = (value + BigInt(data.length)) & mask;
  for (; at + 8 <= data.length; at += 8) value = (rotate(value ^ round(0n, data.readBigUInt64LE(at)), 27n) * p1 + p4) & mask;
  if (at + 4 <= data.length) {
    value = (rotate(value ^ ((BigInt(data.readUInt32LE(at)) * p1) & mask), 23n) * p2 + p3) & mask;
    at += 4;
  }
  for (; at < data.length; at++) value = (rotate(value ^ ((BigInt(data[at]!) * p5) & mask), 11n) * p1) & mask;
  value = ((value ^ (value >> 33n)) * p2) & mask;
  value = ((value ^ (value >> 29n)) * p3) & mask;
  return value ^ (value >> 32n);
}
