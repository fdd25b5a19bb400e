package app

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// emptyResults is a Results frame of n results without content: two bytes each.
func emptyResults(n int) garbage {
	const results, item = 3, 2
	body := bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, item, protowire.BytesType), nil), n)
	return garbage(protowire.AppendBytes(protowire.AppendTag(nil, results, protowire.BytesType), body))
}

// A frame of 4 MiB that holds two million results ends its stream, before and after the worker's
// Hello, and costs only the memory of its bytes.
func TestAFrameOfMoreResultsThanThereCanBe(t *testing.T) {
	for name, hello := range map[string]*appv1.Hello{"before the Hello": nil, "after it": {MaxInFlight: 10}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			bystander := r.connect(&appv1.Hello{MaxInFlight: 1})
			w := r.dialWith(grpc.ForceCodecV2(garbageCodec{encoding.GetCodecV2("proto")}))
			if hello != nil {
				w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: hello}})
				w.recv()
			}
			frame := emptyResults(recvBytesMax/2 - 16)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := w.stream.SendMsg(frame); err != nil {
				t.Fatal(err)
			}
			s := w.status()
			runtime.ReadMemStats(&after)
			if s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), "beyond its bounds") {
				t.Errorf("status = %v, want InvalidArgument for a frame beyond its bounds", s)
			}
			// The client's half, in this process too, copies the frame; so does gRPC on its way here.
			if took := after.TotalAlloc - before.TotalAlloc; took > 8*recvBytesMax {
				t.Errorf("refusing the frame took %d bytes", took)
			}
			bystander.ping(1)
			if f := bystander.recv(); f.GetPong().GetK() != 1 {
				t.Errorf("the other stream got %v, want its Pong", f)
			}
		})
	}
}

// The page for authors of SDKs has the bounds of frames that are in force.
func TestProtocolPageHasTheBoundsOfFrames(t *testing.T) {
	page, err := os.ReadFile("../../docs/sdk-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("\n| First frame | %d KiB, and a Hello within", helloBytesMax>>10),
		fmt.Sprintf("\n| Any later frame of the worker | %d MiB |\n", recvBytesMax>>20),
		fmt.Sprintf("\n| Headers of the call | %d KiB |\n", headerBytesMax>>10),
		fmt.Sprintf("\n| Workers of one router | `app.workers_max` (%d), else", DefaultConfig().WorkersMax),
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("its section \"Limits\" lacks %q", want)
		}
	}
}

func TestALongHelloIsRefused(t *testing.T) {
	r := newRig(t, nil)
	w := r.dial()
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1, Sdk: strings.Repeat("x", 1<<20)}}})
	s := w.status()
	if s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), "beyond its bounds") || !strings.Contains(s.Message(), "shorten its texts") || len(s.Message()) > 200 {
		t.Errorf("status = %v, want InvalidArgument for a frame beyond its bounds", s)
	}
}
