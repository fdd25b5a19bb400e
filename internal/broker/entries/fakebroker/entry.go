package fakebroker

import (
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// Metadata returns the metadata of an entry of a producer.
func Metadata() *pulsarpb.MessageMetadata {
	return &pulsarpb.MessageMetadata{ProducerName: new("p"), SequenceId: proto.Uint64(1), PublishTime: proto.Uint64(1)}
}

// Message returns an entry with one event, outside of a batch.
func Message(payload string) []byte {
	entry, _ := wiretest.Entry(Metadata(), []byte(payload)) // its metadata are complete
	return entry
}

// Batch returns an entry with events of a batch.
func Batch(payloads ...string) []byte {
	var batch []byte
	for _, payload := range payloads {
		batch, _ = wiretest.AppendSingle(batch, new(pulsarpb.SingleMessageMetadata), []byte(payload))
	}
	m := Metadata()
	m.NumMessagesInBatch = new(int32(len(payloads)))
	entry, _ := wiretest.Entry(m, batch)
	return entry
}

// Chunk returns a part of a message.
func Chunk(uuid string, number, of, size int, payload string) []byte {
	m := Metadata()
	m.Uuid, m.ChunkId, m.NumChunksFromMsg, m.TotalChunkMsgSize = &uuid, new(int32(number)), new(int32(of)), new(int32(size))
	entry, _ := wiretest.Entry(m, []byte(payload))
	return entry
}
