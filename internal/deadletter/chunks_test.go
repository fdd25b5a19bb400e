package deadletter

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
	"github.com/ringfence/router/internal/broker/pulsartest"
)

// publishRaw publishes an entry as it is: Pulsar's client sends no message without all of its chunks. The topic has no partitions.
func (g *group) publishRaw(topic string, entry []byte) {
	g.t.Helper()
	socket, err := net.Dial("tcp", strings.TrimPrefix(pulsartest.URL(g.t), "pulsar://"))
	if err != nil {
		g.t.Fatal(err)
	}
	defer socket.Close()
	_ = socket.SetDeadline(time.Now().Add(time.Minute))
	ask := func(c *pulsarpb.BaseCommand, entry []byte, want byte) {
		g.t.Helper()
		frame, err := wiretest.Frame(c, entry)
		if err != nil {
			g.t.Fatal(err)
		}
		if _, err := socket.Write(frame); err != nil {
			g.t.Fatal(err)
		}
		head := make([]byte, 8)
		if _, err := io.ReadFull(socket, head); err != nil {
			g.t.Fatal(err)
		}
		answer := make([]byte, binary.BigEndian.Uint32(head[4:]))
		if _, err := io.ReadFull(socket, answer); err != nil {
			g.t.Fatal(err)
		}
		if answer[1] != want { // behind the tag of the type
			g.t.Fatalf("the broker answers %q, want a command of type %d", answer, want)
		}
	}
	ask(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_CONNECT.Enum(), Connect: &pulsarpb.CommandConnect{ClientVersion: new("test"), ProtocolVersion: new(int32(12))}}, nil, 3)
	lookup := &pulsarpb.CommandLookupTopic{Topic: &topic, RequestId: new(uint64(1))}
	ask(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_LOOKUP.Enum(), LookupTopic: lookup}, nil, 24) // the broker takes the topic
	// The commands of producers are not part of our pulsarpb. The fields of PRODUCER are topic, producer and request, and those of SEND producer,
	// sequence id and number of messages.
	command := func(of protowire.Number, fields []byte) *pulsarpb.BaseCommand {
		c := &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_Type(of).Enum()}
		c.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, of, protowire.BytesType), fields))
		return c
	}
	numbers := func(dst []byte, first protowire.Number, n int) []byte {
		for i := range n {
			dst = protowire.AppendVarint(protowire.AppendTag(dst, first+protowire.Number(i), protowire.VarintType), 1)
		}
		return dst
	}
	ask(command(5, numbers(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), topic), 2, 2)), nil, 17)
	ask(command(6, numbers(nil, 1, 3)), entry, 7)
}

// TestAnEndOfChunksAtABroker: a topic, and the replays topic, that end with chunks of a stranger whose message lacks others prevent nothing. Those of the topic are named.
// When the rest comes, the next replay has the message.
func TestAnEndOfChunksAtABroker(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.cfg.AnswerMax = 10 * time.Minute // an answer that is waited for ends the test
	g.over(g.client)
	g.keep(g.topic, "orders")
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("0")})
	g.publishRaw(g.topic, fakebroker.Chunk("u", 0, 2, 4, "ab"))
	g.letters(1)
	g.interrupt(0, 1)
	g.publishRaw(g.cfg.ReplaysTopic(), fakebroker.Chunk("v", 0, 2, 4, "ab"))
	if trail, err := g.Trail(t.Context(), 10); err != nil || len(trail.Acts) != 1 {
		t.Errorf("the acts are %+v, %v", trail, err)
	}
	if c := g.mustReplay(Selection{}, nil); c.Sent != 1 {
		t.Errorf("a replay of letters: %+v", c)
	}
	g.publishRaw(g.topic, fakebroker.Chunk("w", 0, 2, 4, "ab"))
	sel := Selection{Until: time.Now().Add(time.Minute), Run: "r"}
	replay := func() (Counts, bool) {
		t.Helper()
		c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 100})
		if err != nil {
			t.Fatal(err)
		}
		return c, strings.Contains(strings.Join(c.Unsure, "; "), g.topic+" has chunks of messages that are not whole")
	}
	if c, named := replay(); c.Sent != 2 || !named {
		t.Errorf("before the rest: %+v", c)
	}
	g.publishRaw(g.topic, fakebroker.Chunk("u", 1, 2, 4, "cd"))
	g.publishRaw(g.topic, fakebroker.Chunk("w", 1, 2, 4, "cd"))
	if c, named := replay(); c.Sent != 2 || named {
		t.Errorf("behind the rest: %+v", c)
	}
	if got := g.held(g.topic); got["abcd"] != 4 {
		t.Errorf("the topic holds %v", got)
	}
}
