// Package wiretest writes entries and frames as producers and brokers do, for tests of their readers.
package wiretest

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// Frame returns a frame with its head. Only a Message has an entry.
func Frame(c *pulsarpb.BaseCommand, entry []byte) ([]byte, error) {
	command, err := proto.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("wiretest: %w", err)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(command)+len(entry)))
	return append(Sized(b, command), entry...), nil
}

// Message returns the BaseCommand of a Message.
func Message(m *pulsarpb.CommandMessage) *pulsarpb.BaseCommand {
	return &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_MESSAGE.Enum(), Message: m}
}

// Entry returns an entry with a checksum. The payload is written as it is: compress it first.
func Entry(m *pulsarpb.MessageMetadata, payload []byte) ([]byte, error) {
	metadata, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("wiretest: %w", err)
	}
	return Checked(append(Sized(nil, metadata), payload...)), nil
}

// Checked puts a checksum in front of b, the sized metadata and payload of an entry.
func Checked(b []byte) []byte {
	head := []byte{0x0e, 0x01}
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return append(head, b...)
}

// Stamped puts the broker's metadata in front of an entry.
func Stamped(m *pulsarpb.BrokerEntryMetadata, entry []byte) ([]byte, error) {
	metadata, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("wiretest: %w", err)
	}
	return append(Sized([]byte{0x0e, 0x02}, metadata), entry...), nil
}

// AppendSingle appends an event to the payload of a batch. It sets PayloadSize.
func AppendSingle(batch []byte, m *pulsarpb.SingleMessageMetadata, payload []byte) ([]byte, error) {
	m.PayloadSize = new(int32(len(payload)))
	metadata, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("wiretest: %w", err)
	}
	return append(Sized(batch, metadata), payload...), nil
}

// Sized appends the size of part, and part.
func Sized(b, part []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
}

// Compress compresses a payload, and sets the compression and the uncompressed size in m, if m is not nil.
func Compress(m *pulsarpb.MessageMetadata, c pulsarpb.CompressionType, payload []byte) ([]byte, error) {
	if m != nil {
		m.Compression, m.UncompressedSize = c.Enum(), new(uint32(len(payload)))
	}
	switch c {
	case pulsarpb.CompressionType_NONE:
		return payload, nil
	case pulsarpb.CompressionType_LZ4:
		return compressLZ4(payload)
	case pulsarpb.CompressionType_ZLIB:
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		if _, err := w.Write(payload); err != nil {
			return nil, err
		}
		err := w.Close()
		return b.Bytes(), err
	case pulsarpb.CompressionType_ZSTD:
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return w.EncodeAll(payload, nil), w.Close()
	case pulsarpb.CompressionType_SNAPPY:
		return snappy.Encode(nil, payload), nil
	}
	return nil, fmt.Errorf("wiretest: unknown compression %v", c)
}

// compressLZ4 returns a block, which is one sequence of literals if the payload cannot be compressed.
func compressLZ4(payload []byte) ([]byte, error) {
	b := make([]byte, lz4.CompressBlockBound(len(payload)))
	n, err := lz4.CompressBlock(payload, b, nil)
	if err != nil || n > 0 {
		return b[:n], err
	}
	const inToken = 15
	if len(payload) < inToken {
		return append([]byte{byte(len(payload) << 4)}, payload...), nil
	}
	b = append(b[:0], inToken<<4)
	rest := len(payload) - inToken
	for ; rest >= 255; rest -= 255 {
		b = append(b, 255)
	}
	return append(append(b, byte(rest)), payload...), nil
}
