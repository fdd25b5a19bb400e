package wire

import (
	"bytes"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// ratioMax bounds how many bytes one compressed byte can stand for, rounded up, so that a short entry cannot make us allocate a great
// buffer: 255 bytes of a match in LZ4, 1032 bytes in deflate, a block of 128 KiB in 4 bytes of zstd, copies of 64 bytes in 3 bytes of
// snappy.
var ratioMax = [...]uint64{CompressionLZ4: 1 << 8, CompressionZlib: 1 << 11, CompressionZstd: 1 << 15, CompressionSnappy: 1 << 6}

// slack is added to the bound, for the heads of a stream.
const slack = 64

// windowMax bounds the memory that a zstd frame may ask for, in bytes. It is the window of level 22, the greatest without --long.
const windowMax = 128 << 20

// inflater decompresses payloads. It keeps the decoders that are expensive to make.
type inflater struct {
	source bytes.Reader
	zlib   io.ReadCloser
	zstd   *zstd.Decoder
}

// payload returns the decompressed form of b, which is b itself if it is not compressed, and otherwise as long as the metadata declare. It
// uses buffer if that has room. The error is a *BrokenError.
func (i *inflater) payload(m *Metadata, buffer, b []byte, payloadMax int) ([]byte, error) {
	if m.Compression == CompressionNone {
		return b, nil
	}
	size := uint64(m.UncompressedSize)
	if size > uint64(max(payloadMax, 0)) {
		return nil, broken(ReasonSize, "decompressed payload beyond the limit")
	}
	if size > ratioMax[m.Compression]*uint64(len(b))+slack {
		return nil, broken(ReasonSize, "more than compressed bytes can stand for")
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

// unpackLZ4 fills dst. Pulsar uses blocks without a frame. A block that is longer than dst is not told from a broken one.
func unpackLZ4(dst, b []byte) error {
	room := dst
	if len(dst) == 0 {
		room = make([]byte, 1) // the library asks for some; a block of no bytes leaves it alone
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
			return broken(ReasonDecompress, "bad zlib head")
		}
		i.zlib = r
	} else if err := i.zlib.(zlib.Resetter).Reset(&i.source, nil); err != nil {
		return broken(ReasonDecompress, "bad zlib head")
	}
	switch _, err := io.ReadFull(i.zlib, dst); err {
	case nil:
	case io.EOF:
		return broken(ReasonSize, "not as long as declared")
	default:
		return broken(ReasonDecompress, "bad zlib stream")
	}
	// The checksum is at the end, which only a read beyond the last byte reaches.
	var beyond [1]byte
	switch n, err := io.ReadFull(i.zlib, beyond[:]); {
	case n > 0:
		return broken(ReasonSize, "longer than declared")
	case err != io.EOF:
		return broken(ReasonDecompress, "bad zlib end")
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
		copy(dst, out) // the decoder has needed another buffer
	}
	return nil
}

func unpackSnappy(dst, b []byte) error {
	switch n, err := snappy.DecodedLen(b); {
	case err != nil:
		return broken(ReasonDecompress, "bad snappy head")
	case n != len(dst):
		return broken(ReasonSize, "not as long as declared")
	}
	if _, err := snappy.Decode(dst, b); err != nil {
		return broken(ReasonDecompress, "bad snappy block")
	}
	return nil
}
