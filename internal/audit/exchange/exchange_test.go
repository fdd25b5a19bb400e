package exchange

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	auditv1 "github.com/ringfence/router/proto/ringfence/audit/v1"
)

func TestReportsComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		instant := func(name string) time.Duration { return time.Duration(rapid.Int64Range(0, 1<<59).Draw(t, name)) }
		want := &Report{
			Group: rapid.StringN(0, 10, NameMax).Draw(t, "group"), Member: "a", Incarnation: Incarnation{1}, To: Incarnation{2},
			Clock:        audit.Clock{ID: audit.ClockID{3}, Boot: instant("boot"), Lease: instant("lease"), Since: instant("since"), Wander: instant("wander"), Slewed: rapid.Bool().Draw(t, "slewed")},
			OmittedUntil: instant("omitted"),
			Waits:        Waits{Dropped: 1, Acquired: 2, Waited: instant("waited"), Longest: instant("longest"), Expired: 3},
			Handlings:    []audit.Handling{},
		}
		for range rapid.IntRange(0, TripsMax).Draw(t, "trips") {
			sent := instant("sent")
			want.Trips = append(want.Trips, audit.Trip{Sent: sent, Back: sent + 1, There: instant("there")})
		}
		for range rapid.IntRange(0, 5).Draw(t, "handlings") {
			start := instant("start")
			want.Handlings = append(want.Handlings, audit.Handling{
				Key: partition.KeyHash(rapid.Uint64().Draw(t, "key")), Partition: partition.ID(rapid.IntRange(0, partition.Count-1).Draw(t, "partition")), Worker: rapid.Uint32().Draw(t, "worker"),
				Fence: event.Fence{Token: rapid.Int64().Draw(t, "token"), Turn: rapid.Uint64().Draw(t, "turn")}, Start: start, End: start + instant("took"),
			})
		}
		text, err := want.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, got, want)
		}
	})
}

// local is a connection to a receiver in this process.
type local struct {
	grpc.ClientConnInterface
	to *Receiver
}

func (l local) Invoke(ctx context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	answer, err := l.to.Report(ctx, args.(*auditv1.ReportRequest))
	if err == nil {
		proto.Merge(reply.(proto.Message), answer)
	}
	return err
}

func TestHostileReports(t *testing.T) {
	id := make([]byte, 16)
	fine := func() *auditv1.Report { return &auditv1.Report{Incarnation: id, Clock: &auditv1.Clock{Id: id}} }
	for name, change := range map[string]func(*auditv1.Report){
		"a short incarnation":  func(r *auditv1.Report) { r.Incarnation = id[:15] },
		"a short clock":        func(r *auditv1.Report) { r.Clock.Id = nil },
		"no clock":             func(r *auditv1.Report) { r.Clock = nil },
		"a long name":          func(r *auditv1.Report) { r.Member = string(make([]byte, NameMax+1)) },
		"too many trips":       func(r *auditv1.Report) { r.Trips = make([]*auditv1.Trip, TripsMax+1) },
		"too many handlings":   func(r *auditv1.Report) { r.Handlings = make([]*auditv1.Handling, HandlingsMax+1) },
		"a negative instant":   func(r *auditv1.Report) { r.Clock.BootNs = -1 },
		"a far instant":        func(r *auditv1.Report) { r.Clock.LeaseNs = 1 << 62 },
		"a trip back in time":  func(r *auditv1.Report) { r.Trips = []*auditv1.Trip{{SentNs: 2, BackNs: 1}} },
		"a negative handling":  func(r *auditv1.Report) { r.Handlings = []*auditv1.Handling{{TookNs: -1}} },
		"an unknown partition": func(r *auditv1.Report) { r.Handlings = []*auditv1.Handling{{Partition: partition.Count}} },
	} {
		r := fine()
		change(r)
		for i := range r.Trips {
			if r.Trips[i] == nil {
				r.Trips[i] = new(auditv1.Trip)
			}
		}
		for i := range r.Handlings {
			if r.Handlings[i] == nil {
				r.Handlings[i] = new(auditv1.Handling)
			}
		}
		text, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		receiver := &Receiver{Take: func(*Report, func(func(text, signature []byte) bool) bool) error {
			t.Errorf("%s: it was taken", name)
			return nil
		}}
		if _, err := receiver.Report(t.Context(), &auditv1.ReportRequest{Report: text}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTrips: each answer is a trip that the next report carries, and the receiver's clock is within it.
func TestTrips(t *testing.T) {
	var got []*Report
	refuse := false
	receiver := &Receiver{Take: func(r *Report, signed func(func(text, signature []byte) bool) bool) error {
		if refuse || !signed(func(text, signature []byte) bool { return string(signature) == "of "+string(text) }) {
			return errors.New("no")
		}
		got = append(got, r)
		return nil
	}}
	link := NewLink(local{to: receiver})
	link.Sign = func(text []byte) []byte { return append([]byte("of "), text...) }
	var w audit.Wander
	for range TripsMax + 3 {
		if err := link.Measure(t.Context(), Report{Clock: Here(&w), Handlings: make([]audit.Handling, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := link.Send(t.Context(), Report{Clock: Here(&w), Handlings: make([]audit.Handling, 1)}); err != nil {
		t.Fatal(err)
	}
	last := got[len(got)-1]
	if len(got[0].Trips) != 0 || len(got[0].Handlings) != 0 || len(last.Trips) != TripsMax || len(last.Handlings) != 1 {
		t.Fatalf("%d trips first, %d last", len(got[0].Trips), len(last.Trips))
	}
	for _, trip := range last.Trips {
		if trip.There < trip.Sent || trip.There > trip.Back {
			t.Errorf("trip %+v", trip)
		}
	}
	remote := last.Remote(Here(&w))
	if !remote.SameClock() {
		t.Error("one process reads two clocks")
	}
	refuse = true
	if err := link.Send(t.Context(), Report{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a refused report: %v", err)
	}
}

// TestReportsBeyondTheirBoundsAreNotDecoded: decoded, each of these has fifty times its bytes and more.
func TestReportsBeyondTheirBoundsAreNotDecoded(t *testing.T) {
	for name, field := range map[string]byte{"handlings": fieldHandlings, "trips": fieldTrips} {
		report := bytes.Repeat([]byte{field<<3 | 2, 0}, BytesMax/2)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decode(report)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errReport) || took > 4*BytesMax {
			t.Errorf("%s: refusing it took %d bytes, %v", name, took, err)
		}
	}
}
