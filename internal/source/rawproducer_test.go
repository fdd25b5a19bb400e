package source_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
	"github.com/ringfence/router/internal/broker/pulsartest"
)

// rawProducer publishes entries whose bytes the test has written, whole or broken.
type rawProducer struct {
	t    testing.TB
	name string
	conn net.Conn
	sent uint64
}

// Commands of Pulsar's protocol, by the number of their type and field.
const (
	cmdConnect         = 2
	cmdConnected       = 3
	cmdProducer        = 5
	cmdSend            = 6
	cmdSendReceipt     = 7
	cmdProducerSuccess = 17
)

// newRawProducer connects to the broker of a topic. A topic that is not there yet is made.
func newRawProducer(t testing.TB, b pulsarBroker, topic, name string) *rawProducer {
	t.Helper()
	maker, err := b.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	maker.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(pulsartest.URL(t), "pulsar://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p := &rawProducer{t: t, name: name, conn: conn}
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	p.ask(cmdConnect, cmdConnected, appendText(nil, 1, "test"), 4, 19)
	p.ask(cmdProducer, cmdProducerSuccess, appendText(appendText(nil, 1, topic), 4, name), 2, 1, 3, 1)
	return p
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// frame returns a frame with a command that has the given fields, and pairs of other fields and their numbers.
func frame(kind protowire.Number, fields, entry []byte, pairs ...uint64) []byte {
	for i := 0; i < len(pairs); i += 2 {
		fields = protowire.AppendVarint(protowire.AppendTag(fields, protowire.Number(pairs[i]), protowire.VarintType), pairs[i+1])
	}
	command := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(kind))
	command = protowire.AppendBytes(protowire.AppendTag(command, kind, protowire.BytesType), fields)
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(command)+len(entry)))
	return append(wiretest.Sized(b, command), entry...)
}

// ask sends a command and expects an answer.
func (p *rawProducer) ask(kind, want protowire.Number, fields []byte, pairs ...uint64) {
	p.t.Helper()
	if err := p.exchange(want, frame(kind, fields, nil, pairs...)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *rawProducer) exchange(want protowire.Number, frame []byte) error {
	if _, err := p.conn.Write(frame); err != nil {
		return err
	}
	for {
		head := make([]byte, 8)
		if _, err := io.ReadFull(p.conn, head); err != nil {
			return err
		}
		rest := make([]byte, binary.BigEndian.Uint32(head)-4)
		if _, err := io.ReadFull(p.conn, rest); err != nil {
			return err
		}
		_, _, n := protowire.ConsumeTag(rest)
		kind, _ := protowire.ConsumeVarint(rest[n:])
		switch protowire.Number(kind) {
		case want:
			return nil
		case protowire.Number(pulsarpb.BaseCommand_PING):
			continue
		}
		return fmt.Errorf("the broker answers with command %d: %q", kind, rest)
	}
}

// send publishes an entry, and returns the error of a broker that refuses it.
func (p *rawProducer) send(entry []byte) error {
	p.sent++
	return p.exchange(cmdSendReceipt, frame(cmdSend, nil, entry, 1, 1, 2, p.sent, 3, 1))
}

// metadata returns what every entry of the producer has.
func (p *rawProducer) metadata() *pulsarpb.MessageMetadata {
	return &pulsarpb.MessageMetadata{
		ProducerName: &p.name, SequenceId: new(p.sent + 1), PublishTime: new(uint64(time.Now().UnixMilli())),
	}
}

// publish sends an entry that the broker has to take.
func (p *rawProducer) publish(m *pulsarpb.MessageMetadata, payload []byte) {
	p.t.Helper()
	if err := p.send(p.entry(m, payload)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *rawProducer) entry(m *pulsarpb.MessageMetadata, payload []byte) []byte {
	p.t.Helper()
	entry, err := wiretest.Entry(m, payload)
	if err != nil {
		p.t.Fatal(err)
	}
	return entry
}

// chunk returns the metadata of a part of a message, without an uncompressed size, as the clients in C++, Python and Node send it.
func (p *rawProducer) chunk(uuid, key string, number, of, size int) *pulsarpb.MessageMetadata {
	m := p.metadata()
	m.PartitionKey, m.Uuid = &key, &uuid
	m.ChunkId, m.NumChunksFromMsg, m.TotalChunkMsgSize = new(int32(number)), new(int32(of)), new(int32(size))
	m.PublishTime = new(uint64(1_700_000_000_000)) // that of the message
	return m
}
