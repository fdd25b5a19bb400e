package wire

import (
	"bytes"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// ratioMax bounds the decompressed bytes per compressed byte, rounded up, so that a short entry cannot force a large allocation: 255 bytes
// of a match in LZ4, 1032 bytes in deflate, a block of 128 KiB in 4 bytes of zstd, copies of 64 bytes in 3 bytes of snappy.
var ratioMax = [...]uint64{CompressionLZ4: 1 << 8, CompressionZlib: 1 << 11, CompressionZstd: 1 << 15, CompressionSnappy: 1 << 6}

// slack is added to the bound for stream headers.
const slack = 64

// windowMax bounds the memory that a zstd frame may ask for, in bytes. It is the window of level 22, the largest without --long.
const windowMax = 128 << 20

// inflater decompresses payloads. It keeps the decoders that are expensive to create.
type inflater struct {
	source bytes.Reader
	zlib   io.ReadCloser
	zstd   *zstd.Decoder
}

// payload returns b decompressed to exactly the declared size, or b itself if it is not compressed. It uses buffer if that has room. The
// error is a *BrokenError.
func (i *inflater) payload(m *Metadata, buffer, b []byte, payloadMax int) ([]byte, error) {
	if m.Compression == CompressionNone {
		return b, nil
	}
	size := uint64(m.UncompressedSize)
	if size > uint64(max(payloadMax, 0)) {
		return nil, broken(ReasonSize, "decompressed payload beyond the limit")
	}
	if size > ratioMax[m.Compression]*uint64(len(b))+slack {
		return nil, broken(ReasonSize, "more than the compressed bytes can hold")
	}
	if size == 0 && len(b) == 0 {
		return []byte{}, nil
	}
	if uint64(cap(buffer)) < size || buffer == nil {
		buffer = make([]byte, size)
	}
	buffer = buffer[:size]
	switch m.Compression {
	case CompressionLZ4:
		return buffer, unpackLZ4(buffer, b)
	case CompressionZlib:
		return buffer, i.unpackZlib(buffer, b)
	case CompressionZstd:
		return buffer, i.unpackZstd(buffer, b)
	case CompressionSnappy:
		return buffer, unpackSnappy(buffer, b)
	case CompressionNone:
	}
	return b, nil
}

// unpackLZ4 fills dst. Pulsar uses blocks without a frame. A block longer than dst and a corrupt block give the same error.
func unpackLZ4(dst, b []byte) error {
	room := dst
	if len(dst) == 0 {
		room = make([]byte, 1) // the library requires room; an empty block does not use it
	}
	n, err := lz4.UncompressBlock(b, room)
	if err != nil {
		return broken(ReasonDecompress, "bad lz4 block, or longer than declared")
	}
	if n != len(dst) {
		return broken(ReasonSize, "not as long as declared")
	}
	return nil
}

func (i *inflater) unpackZlib(dst, b []byte) error {
	i.source.Reset(b)
	defer i.source.Reset(nil)
	if i.zlib == nil {
		r, err := zlib.NewReader(&i.source)
		if err != nil {
			return broken(ReasonDecompress, "bad zlib header")
		}
		i.zlib = r
	} else if err := i.zlib.(zlib.Resetter).Reset(&i.source, nil); err != nil {
		return broken(ReasonDecompress, "bad zlib header")
	}
	switch _, err := io.ReadFull(i.zlib, dst); err {
	case nil:
	case io.EOF:
		return broken(ReasonSize, "not as long as declared")
	default:
		return broken(ReasonDecompress, "bad zlib stream")
	}
	// The reader verifies the checksum only on a read beyond the last byte.
	var beyond [1]byte
	switch n, err := io.ReadFull(i.zlib, beyond[:]); {
	case n > 0:
		return broken(ReasonSize, "longer than declared")
	case err != io.EOF:
		return broken(ReasonDecompress, "bad zlib trailer")
	}
	return nil
}

func (i *inflater) unpackZstd(dst, b []byte) error {
	if i.zstd == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(windowMax))
		if err != nil {
			return broken(ReasonDecompress, "no zstd decoder")
		}
		i.zstd = d
	}
	out, err := i.zstd.DecodeAll(b, dst[:0:len(dst)])
	switch {
	case err == zstd.ErrDecoderSizeExceeded: //nolint:errorlint // DecodeAll returns it unwrapped
		return broken(ReasonSize, "longer than declared")
	case err != nil:
		return broken(ReasonDecompress, "bad zstd frame")
	case len(out) != len(dst):
		return broken(ReasonSize, "not as long as declared")
	case len(dst) > 0 && &out[0] != &dst[0]:
		copy(dst, out) // the decoder used another buffer
	}
	return nil
}

func unpackSnappy(dst, b []byte) error {
	switch n, err := snappy.DecodedLen(b); {
	case err != nil:
		return broken(ReasonDecompress, "bad snappy header")
	case n != len(dst):
		return broken(ReasonSize, "not as long as declared")
	}
	if _, err := snappy.Decode(dst, b); err != nil {
		return broken(ReasonDecompress, "bad snappy block")
	}
	return nil
}
