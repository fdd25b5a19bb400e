/** The wire format of protobuf, as far as the frames need it that carry events (codec.ts). */

/** The wire types. */
export const varint = 0;
export const fixed64 = 1;
export const bytes = 2;
const fixed32 = 5;

/** Returns the tag of a field. */
export const tag = (field: number, type: number): number => field * 8 + type;

/** A frame or field that is not valid protobuf. */
export class MalformedError extends Error {
  override name = "MalformedError";
}

const bigintFrom = 2 ** 53;

/** Reads fields from a part of a buffer. Each method throws a MalformedError at invalid data. */
export class Reader {
  #tag = 0;

  constructor(
    readonly buffer: Buffer,
    public at: number,
    public end: number,
  ) {}

  /** Whether another field follows. */
  more(): boolean {
    if (this.at > this.end) throw new MalformedError("a field exceeds its frame");
    return this.at < this.end;
  }

  /** Returns the tag of the next field. */
  tag(): number {
    this.#tag = this.uint32();
    if (this.#tag < 8) throw new MalformedError("a field has the number 0");
    return this.#tag;
  }

  /** Reads a number of at most 32 bits; of a longer one the low 32 bits, as protobuf does. */
  uint32(): number {
    const b = this.buffer[this.at++]!;
    return b < 0x80 ? b : this.#low(b);
  }

  #low(first: number): number {
    let low = first & 0x7f;
    for (let shift = 7; shift < 70; shift += 7) {
      const b = this.buffer[this.at++]!;
      if (shift < 32) low |= (b & 0x7f) << shift;
      if (b < 0x80) return low >>> 0;
    }
    throw new MalformedError("a number has no end");
  }

  /** Reads a number of at most 64 bits: a number up to 2^53 - 1, else a bigint. */
  uint64(): number | bigint {
    const b = this.buffer[this.at++]!;
    return b < 0x80 ? b : this.#long(b);
  }

  #long(first: number): number | bigint {
    let value = first & 0x7f;
    let scale = 0x80;
    for (let i = 1; i < 7; i++, scale *= 0x80) {
      const b = this.buffer[this.at++]!;
      value += (b & 0x7f) * scale;
      if (b < 0x80) return value;
    }
    // 49 bits are read; up to 15 more follow.
    let high = 0;
    for (let i = 0; i < 3; i++) {
      const b = this.buffer[this.at++]!;
      high += (b & 0x7f) * 0x80 ** i;
      if (b < 0x80) {
        const all = value + high * scale;
        return all < bigintFrom ? all : BigInt.asUintN(64, BigInt(value) + (BigInt(high) << 49n));
      }
    }
    throw new MalformedError("a number has no end");
  }

  /** Reads an int64 in the same form as uint64 does. */
  int64(): number | bigint {
    const value = this.uint64();
    return typeof value === "number" ? value : narrow(BigInt.asIntN(64, value));
  }

  /** Reads a sint32. */
  sint32(): number {
    const value = this.uint32();
    return (value >>> 1) ^ -(value & 1);
  }

  /** Reads a fixed64. */
  fixed64(): bigint {
    if (this.at + 8 > this.end) throw new MalformedError("a field exceeds its frame");
    const value = this.buffer.readBigUInt64LE(this.at);
    this.at += 8;
    return value;
  }

  /** Reads the length of a field of bytes, and returns where it ends; `at` is where it begins. */
  span(): number {
    const length = this.uint32();
    const end = this.at + length;
    if (end > this.end) throw new MalformedError("a field exceeds its frame");
    return end;
  }

  text(): string {
    const end = this.span();
    const text = this.buffer.toString("utf8", this.at, end);
    this.at = end;
    return text;
  }

  /** Skips the field whose tag was just read. */
  skip(): void {
    switch (this.#tag % 8) {
      case varint:
        this.uint32();
        return;
      case fixed64:
        this.at += 8;
        return;
      case bytes:
        this.at = this.span();
        return;
      case fixed32:
        this.at += 4;
        return;
      default:
        throw new MalformedError(`a field has the wire type ${this.#tag % 8}`);
    }
  }
}

/** Returns a 64-bit number in the form that uint64 and int64 give it. */
export function narrow(value: bigint): number | bigint {
  return value < BigInt(bigintFrom) && value > -BigInt(bigintFrom) ? Number(value) : value;
}

/** Writes fields into a buffer that grows. */
export class Writer {
  #buffer: Buffer;
  at: number;

  /** @param start how many bytes to leave free at the front. */
  constructor(size: number, start: number) {
    this.#buffer = Buffer.allocUnsafe(Math.max(size, start + 64));
    this.at = start;
  }

  /** Makes room for n more bytes. */
  reserve(n: number): void {
    if (this.at + n <= this.#buffer.length) return;
    const grown = Buffer.allocUnsafe(2 * this.#buffer.length + n);
    this.#buffer.copy(grown, 0, 0, this.at);
    this.#buffer = grown;
  }

  /** Writes a number of up to 64 bits. There must be room for 10 bytes. */
  number(value: number | bigint): void {
    const buffer = this.#buffer;
    if (typeof value === "bigint") {
      for (; value >= 0x80n; value >>= 7n) buffer[this.at++] = Number(value & 0x7fn) | 0x80;
      buffer[this.at++] = Number(value);
      return;
    }
    for (; value >= 0x80000000; value = Math.floor(value / 0x80)) buffer[this.at++] = (value % 0x80) | 0x80;
    for (; value >= 0x80; value >>>= 7) buffer[this.at++] = (value & 0x7f) | 0x80;
    buffer[this.at++] = value;
  }

  /** Writes a byte. There must be room. */
  byte(value: number): void {
    this.#buffer[this.at++] = value;
  }

  /** Writes bytes. */
  append(data: Uint8Array): void {
    this.reserve(data.length);
    this.#buffer.set(data, this.at);
    this.at += data.length;
  }

  /**
   * Puts the length of what was written since `begin` before it. The byte before `begin` was left free
   * for it; a longer length moves what follows.
   */
  close(begin: number): void {
    const length = this.at - begin;
    if (length < 0x80) {
      this.#buffer[begin - 1] = length;
      return;
    }
    const more = sizeOf(length) - 1;
    this.reserve(more);
    this.#buffer.copyWithin(begin + more, begin, this.at);
    const end = this.at + more;
    this.at = begin - 1;
    this.number(length);
    this.at = end;
  }

  /** Returns the bytes from `from` on. */
  done(from: number): Buffer {
    return this.#buffer.subarray(from, this.at);
  }
}

/** Returns how many bytes a number takes. */
export function sizeOf(value: number): number {
  let n = 1;
  for (; value >= 0x80; value = Math.floor(value / 0x80)) n++;
  return n;
}
