package entries

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// sized returns a frame of a declared size.
func sized(size uint32, rest ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, size), rest...)
}

// Invalid input ends the connection, without a panic and without allocating for absent bytes. The next connection works.
func TestHostileBrokers(t *testing.T) {
	frame := func(c *pulsarpb.BaseCommand) []byte {
		f, err := wiretest.Frame(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, c := range map[string]struct {
		raw  []byte
		lets bool // the connection stays open
	}{
		"4 GiB announced":            {raw: sized(1<<32 - 1)},
		"2 GiB announced":            {raw: sized(1 << 31)},
		"no bytes announced":         {raw: sized(0)},
		"too long for a frame":       {raw: sized(wire.MessageSizeDefault + wire.FrameOverheadMax + 1)},
		"garbage":                    {raw: bytes.Repeat([]byte{0xa5, 0x17, 0, 0xff}, 1000)},
		"http":                       {raw: []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		"half a frame, then silence": {raw: sized(1000, 0, 0, 0, 10, 8)},
		"half a head, then silence":  {raw: []byte{0, 0}},
		"command beyond the frame":   {raw: sized(8, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4)},
		"no protobuf":                {raw: sized(8, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff)},
		"unknown command":            {raw: frame(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_Type(64).Enum()}), lets: true},
		"no command":                 {raw: sized(4, 0, 0, 0, 0)},
		"a command of clients": {raw: frame(&pulsarpb.BaseCommand{
			Type: pulsarpb.BaseCommand_FLOW.Enum(), Flow: &pulsarpb.CommandFlow{ConsumerId: proto.Uint64(1), MessagePermits: proto.Uint32(1)},
		}), lets: true},
		"answers to nobody": {raw: slices.Concat(
			frame(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_SUCCESS.Enum(), Success: &pulsarpb.CommandSuccess{RequestId: proto.Uint64(1 << 63)}}),
			frame(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ERROR.Enum(), Error: &pulsarpb.CommandError{
				RequestId: proto.Uint64(1 << 63), Error: pulsarpb.ServerError_UNKNOWN_ERROR.Enum(), Message: new("x"),
			}}),
			frame(fakebroker.Named(1<<63, pulsarpb.CommandLookupTopicResponse_CONNECT, "x:1")),
			frame(closeConsumer(1<<63, 0)),
		), lets: true},
		"a second greeting": {raw: frame(&pulsarpb.BaseCommand{
			Type: pulsarpb.BaseCommand_CONNECTED.Enum(), Connected: &pulsarpb.CommandConnected{ServerVersion: new("x"), MaxMessageSize: proto.Int32(1 << 30)},
		}), lets: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.cfg.URL = "pulsar://a"
				a := r.cluster.Broker("a:6650")
				var link atomic.Pointer[fakebroker.Link]
				a.Script = func(l *fakebroker.Link, _ *pulsarpb.BaseCommand) bool {
					link.Store(l)
					return false
				}
				r.subscribe()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				link.Load().Raw(c.raw)
				time.Sleep(5 * r.cfg.KeepAlive)
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
					t.Errorf("%d bytes were allocated", used)
				}
				r.publish(1)
				r.receive(1)
				if same := a.Dials() == 1; same != c.lets {
					t.Errorf("%d connections, first connection should stay: %v", a.Dials(), c.lets)
				}
			})
		})
	}
}

// Invalid input during the handshake is an error.
func TestHostileGreetings(t *testing.T) {
	connected := func(size int32) []byte {
		f, err := wiretest.Frame(&pulsarpb.BaseCommand{
			Type: pulsarpb.BaseCommand_CONNECTED.Enum(), Connected: &pulsarpb.CommandConnected{ServerVersion: new("x"), MaxMessageSize: &size},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	question, err := wiretest.Frame(challenge(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"4 GiB announced":          {sized(1<<32 - 1), "greet a:6650: a frame of 4294967295 bytes"},
		"http":                     {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), "greet a:6650: a frame of 1213486160 bytes"},
		"endless questions":        {bytes.Repeat(question, 100), "too many authentication challenges"},
		"absurd messages":          {connected(1<<31 - 1), "announces messages of 2147483647 bytes"},
		"an answer to no question": {func() []byte { f, _ := wiretest.Frame(closeConsumer(1, 1), nil); return f }(), "answers a greeting with CLOSE_CONSUMER"},
		"silence":                  {nil, "no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.cfg.URL = "pulsar://a"
				r.cluster.Broker("a:6650").Script = func(l *fakebroker.Link, cmd *pulsarpb.BaseCommand) bool {
					if cmd.GetType() == pulsarpb.BaseCommand_CONNECT {
						l.Raw(c.raw)
					}
					return true
				}
				_, err := r.open().Subscribe(r.Context(), r.subscription())
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("err = %v, want %q", err, c.want)
				}
			})
		})
	}
}

// A negative size counts as absent.
func TestANegativeMessageSize(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650").MessageSize = -5
		r.publish(1)
		r.subscribe()
		r.receive(1)
	})
}

// Entries for unknown consumers change nothing, and entries without permits end the connection.
func TestEntriesThatNobodyAskedFor(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.URL = "pulsar://a"
		a := r.cluster.Broker("a:6650")
		var link atomic.Pointer[fakebroker.Link]
		var consumer atomic.Uint64
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
				link.Store(l)
				consumer.Store(c.GetSubscribe().GetConsumerId())
			}
			return false
		}
		r.subscribe(func(s *Subscription) { s.Permits = 5 })
		send := func(to uint64, n int) {
			for i := range n {
				link.Load().Deliver(&pulsarpb.CommandMessage{
					ConsumerId: &to, MessageId: &pulsarpb.MessageIdData{LedgerId: proto.Uint64(1), EntryId: new(uint64(i))},
				}, fakebroker.Message("x"))
			}
			synctest.Wait()
		}
		send(1<<60, 1500)
		if n := r.queue.Len(); n != 0 || a.Dials() != 1 {
			t.Errorf("%d entries, %d connections", n, a.Dials())
		}
		send(consumer.Load(), 1500)
		if n := r.queue.Len(); n != 0 || a.Links() != 0 {
			t.Errorf("%d entries are queued, %d connections are open, want none of both", n, a.Links())
		}
		r.publish(1)
		r.receive(1)
	})
}

// An unreadable entry is handed on unchanged, is never acked without a request, and costs the permits that the broker deducted.
func TestBrokenEntries(t *testing.T) {
	flipped := fakebroker.Batch("1", "2", "3")
	flipped[len(flipped)-1] ^= 1
	compressed := func(kind pulsarpb.CompressionType, size uint32, payload string) []byte {
		m := fakebroker.Metadata()
		m.Compression, m.UncompressedSize = &kind, &size
		e, err := wiretest.Entry(m, []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	miscounted := fakebroker.Metadata()
	miscounted.NumMessagesInBatch = proto.Int32(4)
	short, err := wiretest.Entry(miscounted, []byte{0, 0, 0, 2, 24, 1, 'x'})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bytes  []byte
		events int
		reason wire.Reason
	}{
		"too many events":     {fakebroker.Batch(make([]string, eventsMax+1)...), eventsMax + 1, wire.ReasonBatch},
		"checksum":            {flipped, 3, wire.ReasonChecksum},
		"metadata":            {wiretest.Checked([]byte{0, 0, 0, 2, 0xff, 0xff}), 1, wire.ReasonMetadata},
		"nothing at all":      {[]byte{}, 1, wire.ReasonMetadata},
		"unknown compression": {compressed(99, 5, "x"), 1, wire.ReasonCompression},
		"decompress":          {compressed(pulsarpb.CompressionType_ZLIB, 5, "not zlib"), 1, wire.ReasonDecompress},
		"a bomb":              {compressed(pulsarpb.CompressionType_ZSTD, 1<<31, "x"), 1, wire.ReasonSize},
		"batch":               {short, 4, wire.ReasonBatch},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.cluster.Broker("a:6650")
				id := r.cluster.Publish(topicName, c.bytes, c.events)
				consumer := r.subscribe(func(s *Subscription) { s.Permits = 4 })
				d := r.receive(1)[0]
				if d.Broken == nil {
					if list, ok := d.Split(nil); ok || list != nil {
						t.Errorf("a broken batch is split into %d events", len(list))
					}
				}
				if d.Broken == nil || d.Broken.Reason != c.reason || !bytes.Equal(d.Raw, c.bytes) || d.ID != id {
					t.Fatalf("received %v with Broken = %v: %q, want %v with its bytes", d.ID, d.Broken, d.Raw, c.reason)
				}
				r.nothing()
				if left, p := r.cluster.Backlog(topicName), r.cluster.Permits(topicName); len(left) != 1 || !slices.Equal(p, []int{4}) {
					t.Errorf("broker has %v and permits %v, want the entry and 4", left, p)
				}
				if n := testutil.ToFloat64(r.metrics.broken.WithLabelValues(c.reason.String())); n != 1 {
					t.Errorf("metric counts %v broken entries", n)
				}
				r.ack(consumer, d)
				consumer.Close()
				if left := r.cluster.Backlog(topicName); len(left) != 0 {
					t.Errorf("after an ack, broker has %v", left)
				}
			})
		})
	}
}
