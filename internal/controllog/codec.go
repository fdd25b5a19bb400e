package controllog

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/ownership"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
)

// The reasons why bytes are not a record. [Decode] judges only whether the bytes have the shape
// of a record; the ownership package decides whether a record has an effect.
var (
	ErrVersion   = errors.New("record of another log version")
	ErrGroup     = errors.New("record of another group")
	ErrMalformed = errors.New("malformed record")
)

// partitionsMax is the most partitions that a record can speak of.
const partitionsMax = 1 << 16

// pendingMax bounds the pairs of a tenure and a partition in a Snap. The Snap names each tenure once, with all of its
// partitions, so a record that a broker accepts could expand to gigabytes in memory. The bound allows 256 tenures on
// each partition; there are few, since a new owner waits for all of them before it takes the partition over.
const pendingMax = 1 << 20

// Bounds of the topics that a node says it consumes. TopicsBytesMax is that of what a router may be configured with: with it, a Snap
// of a group of full size that remembers as many former nodes fits into a record.
const (
	TopicsBytesMax = 64 << 10 // of the full names, together
	TopicBytesMax  = 1024     // of one of them
	topicsMax      = 4096     // more than fit into TopicsBytesMax
)

// Bounds of the reservations in a record. The ownership package judges records by bounds of its own, which are lower.
const (
	reservedMax    = 4096
	reservedIDsMax = 16

	reservationsVersion = 3 // of the log
)

// Encode returns the bytes of a record. It fails if the record cannot be represented: a lease
// that is not in whole milliseconds, or strings that are not UTF-8.
func Encode(r ownership.Record) ([]byte, error) {
	out := &controllogv1.Record{LogVersion: r.LogVersion, Group: r.Group, Inc: r.Inc[:]}
	var err error
	switch body := r.Body.(type) {
	case *ownership.Genesis:
		var g *controllogv1.Genesis
		g, err = encodeGenesis(body)
		out.Record = &controllogv1.Record_Genesis{Genesis: g}
	case *ownership.Epoch:
		var e *controllogv1.Epoch
		e, err = encodeEpoch(body)
		out.Record = &controllogv1.Record_Epoch{Epoch: e}
	case *ownership.Beat:
		out.Record = &controllogv1.Record_Beat{Beat: encodeBeat(body)}
	case *ownership.Hello:
		var h *controllogv1.Hello
		h, err = encodeHello(body)
		out.Record = &controllogv1.Record_Hello{Hello: h}
	case *ownership.Reservations:
		var rs *controllogv1.Reservations
		rs, err = encodeReservations(body)
		out.Record = &controllogv1.Record_Reservations{Reservations: rs}
	case *ownership.Snap:
		var s *controllogv1.State
		s, err = encodeState(body.State)
		if body.TopicRefs {
			referToTopics(s)
		}
		out.Record = &controllogv1.Record_Snap{Snap: &controllogv1.Snap{ForHello: encodePosition(body.ForHello), State: s}}
	default:
		err = errors.New("no body")
	}
	if err != nil {
		return nil, fmt.Errorf("controllog: encode %s: %w", kindOf(r), err)
	}
	data, err := proto.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("controllog: encode %s: %w", kindOf(r), err)
	}
	return data, nil
}

// Decode reads a record of this group and log version. Every member that has this log version
// gives the same answer for the same bytes. With an error, which wraps [ErrVersion], [ErrGroup]
// or [ErrMalformed], it returns the readable part of the record, without a body.
func Decode(group string, data []byte) (ownership.Record, error) {
	var in controllogv1.Record
	crowded := crowded(data)
	if crowded {
		data = headOf(data) // one of a later version is for the caller to know
	}
	if err := proto.Unmarshal(data, &in); err != nil {
		return ownership.Record{}, fmt.Errorf("controllog: %w: not a protobuf message", ErrMalformed)
	}
	r := ownership.Record{LogVersion: in.GetLogVersion(), Group: in.GetGroup()}
	var d decoder
	r.Inc = d.someInc(in.GetInc())
	switch {
	case r.LogVersion < ownership.LogVersionMin || r.LogVersion > ownership.LogVersionMax:
		return r, fmt.Errorf("controllog: %w: %d, want %d to %d", ErrVersion, r.LogVersion, ownership.LogVersionMin, ownership.LogVersionMax)
	case r.Group != group:
		return r, fmt.Errorf("controllog: %w: %q, want %q", ErrGroup, r.Group, group)
	case crowded:
		return r, fmt.Errorf("controllog: %w: more than %d items", ErrMalformed, itemsMax)
	}
	body := d.body(&in)
	if d.err != nil {
		return r, fmt.Errorf("controllog: %w: %w", ErrMalformed, d.err)
	}
	r.Body = body
	return r, nil
}

// SumOf returns the hash of the bytes of a record, as [ownership.RecordRead] carries it.
func SumOf(data []byte) uint64 { return xxhash.Sum64(data) }

// kindOf names a record for metrics and log lines.
func kindOf(r ownership.Record) string {
	switch r.Body.(type) {
	case *ownership.Genesis:
		return "genesis"
	case *ownership.Epoch:
		return "epoch"
	case *ownership.Beat:
		return "beat"
	case *ownership.Hello:
		return "hello"
	case *ownership.Snap:
		return "snap"
	case *ownership.Reservations:
		return "reservations"
	}
	return "none"
}

// reasonOf names a decoding error for metrics.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, ErrGroup):
		return "group"
	}
	return "malformed"
}
