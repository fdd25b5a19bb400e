package appwire

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// Wire types, as in tags.
const (
	varint = byte(protowire.VarintType)
	length = byte(protowire.BytesType)
)

// wide are bounds that no test exceeds by chance.
var wide = Bounds{Bytes: 64 << 20, Results: 100_000}

// inFrame returns a frame with body as the field of the oneof, after the bytes of before.
func inFrame(field protowire.Number, body []byte, before ...byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(before, field, protowire.BytesType), body)
}

// A frame whose content exceeds its bounds is refused before memory is allocated for the content:
// decoded, each of these has 25 to 100 times its bytes.
func TestFramesBeyondTheirBoundsAreNotDecoded(t *testing.T) {
	const size = 4 << 20
	emptyResults := bytes.Repeat([]byte{fieldResultsItems<<3 | length, 0}, size/2)
	unknown := []byte{14<<3 | varint, 1} // makes the frame one for the generated code
	for name, frame := range map[string][]byte{
		"results":                           inFrame(fieldResults, emptyResults),
		"results behind an unknown field":   inFrame(fieldResults, emptyResults, unknown...),
		"results before an unknown field":   append(inFrame(fieldResults, emptyResults), unknown...),
		"results in many Results":           bytes.Repeat(inFrame(fieldResults, []byte{fieldResultsItems<<3 | length, 0}), size/4),
		"results before what is unreadable": append(inFrame(fieldResults, emptyResults, unknown...), 0xff),
		"progress, packed":                  inFrame(fieldProgress, inFrame(fieldProgressIDs, bytes.Repeat([]byte{1}, size))),
		"progress":                          inFrame(fieldProgress, bytes.Repeat([]byte{fieldProgressIDs<<3 | varint, 1}, size/2)),
		"schedules":                         inFrame(fieldHello, bytes.Repeat([]byte{fieldSchedules<<3 | length, 0}, size/2)),
		"capabilities":                      inFrame(fieldHello, bytes.Repeat([]byte{fieldCapabilities<<3 | length, 0}, size/2)),
	} {
		t.Run(name, func(t *testing.T) {
			read := FromWorker{Bounds: Bounds{Bytes: size + 16, Results: 10_000}}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read.unmarshal(frame)
			runtime.ReadMemStats(&after)
			if err != nil || !errors.Is(read.Err, ErrBounds) {
				t.Errorf("error = %v, and in the frame %v; want ErrBounds in the frame", err, read.Err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
				t.Errorf("refusing it took %d bytes", took)
			}
			if read.Other != nil || len(read.Results) > 0 {
				t.Error("a part of it is given on")
			}
		})
	}
}

func TestLongFramesAreNotEvenCopied(t *testing.T) {
	frame := inFrame(fieldHello, inFrame(1, bytes.Repeat([]byte("x"), 5000)))
	read := FromWorker{Bounds: Bounds{Bytes: 4 << 10}}
	if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(frame)}, &read); err != nil || !errors.Is(read.Err, ErrBounds) {
		t.Errorf("error = %v, in the frame %v; want ErrBounds in the frame", err, read.Err)
	}
	read.Bounds.Bytes = len(frame)
	if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(frame)}, &read); err != nil || read.Err != nil || read.Other.GetHello() == nil {
		t.Errorf("a frame of the largest size: %v, %v, %v", err, read.Err, read.Other)
	}
}

// As many results as there may be are taken, in whatever order their fields come.
func TestAsManyResultsAsThereMayBe(t *testing.T) {
	const most = 7
	m := &appv1.Results{Number: 1, Results: slices.Repeat([]*appv1.Result{{DeliveryId: 1, Kind: appv1.ResultKind_RESULT_KIND_DONE}}, most)}
	frame, err := proto.Marshal(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Results{Results: m}})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{frame, append(slices.Clone(frame), 14<<3|varint, 1)} {
		read := FromWorker{Bounds: Bounds{Bytes: len(b), Results: most}}
		if err := read.unmarshal(b); err != nil || read.Err != nil || len(read.Results) != most {
			t.Errorf("%d results are taken: %v, %v", len(read.Results), err, read.Err)
		}
		read.Bounds.Results--
		if err := read.unmarshal(b); err != nil || !errors.Is(read.Err, ErrBounds) {
			t.Errorf("one result too many: %v, %v", err, read.Err)
		}
	}
}

// For any frame, the decoded content is within its bounds.
func FuzzBounds(f *testing.F) {
	f.Add(inFrame(fieldResults, bytes.Repeat([]byte{fieldResultsItems<<3 | length, 0}, 5)), 3)
	f.Add(inFrame(fieldResults, bytes.Repeat([]byte{fieldResultsItems<<3 | length, 0}, 5), 14<<3|varint, 1), 5)
	f.Add(inFrame(fieldProgress, inFrame(fieldProgressIDs, []byte{1, 0x80, 1, 2})), 0)
	f.Fuzz(func(t *testing.T, data []byte, results int) {
		read := FromWorker{Bounds: Bounds{Bytes: 1 << 20, Results: max(results, 0)}}
		err := read.unmarshal(data)
		m := new(appv1.WorkRequest)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		// The oneof keeps the last frame only, so there may have been more than it shows.
		most := max(len(m.GetResults().GetResults())-max(results, 0), len(m.GetProgress().GetDeliveryIds())-progressMax, len(m.GetHello().GetCapabilities())-capabilitiesMax)
		if most > 0 && read.Err == nil {
			t.Fatalf("%d more than its bounds allow, and it is taken: %v", most, err)
		}
	})
}
