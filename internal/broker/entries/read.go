package entries

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// readBytesMax bounds the bytes of one read from a socket.
const readBytesMax = 64 << 10

// frameReader splits the broker's bytes into frames.
type frameReader struct {
	from       *bufio.Reader
	heard      atomic.Uint64 // bytes, for the keep-alive
	messageMax int           // bytes
}

func newFrameReader(socket net.Conn) *frameReader {
	r := &frameReader{messageMax: wire.MessageSizeDefault}
	r.from = bufio.NewReaderSize(counting{socket, &r.heard}, readBytesMax)
	return r
}

type counting struct {
	io.Reader
	heard *atomic.Uint64
}

// Read implements io.Reader.
func (c counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.heard.Add(uint64(n))
	return n, err
}

// next reads a frame, without its length, into new memory: the frame of an entry lives as long as the entry.
func (r *frameReader) next() ([]byte, error) {
	head, err := r.from.Peek(wire.FrameHead)
	if err != nil {
		return nil, err
	}
	n, err := wire.FrameSize(head, r.messageMax)
	if err != nil {
		return nil, fmt.Errorf("a frame of %d bytes: %w", binary.BigEndian.Uint32(head), err)
	}
	_, _ = r.from.Discard(wire.FrameHead)
	frame := make([]byte, min(n, frameStep))
	for read := 0; ; {
		if _, err := io.ReadFull(r.from, frame[read:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if read = len(frame); read == n {
			return frame, nil
		}
		longer := make([]byte, min(n, 2*read))
		copy(longer, frame)
		frame = longer
	}
}

// frameStep bounds the allocation for a frame of which only the length has arrived. The longest frame of a default broker fits.
const frameStep = wire.MessageSizeDefault + wire.FrameOverheadMax

// read reads until the connection ends, and returns the reason.
func (k *conn) read() error {
	for {
		frame, err := k.in.next()
		if err != nil {
			return fmt.Errorf("entries: read from %v: %w", k.to, err)
		}
		f, err := wire.ParseFrame(frame)
		if err == nil {
			err = k.handle(f)
		}
		if err != nil {
			return fmt.Errorf("entries: the broker %v: %w", k.to, err)
		}
	}
}

// handle processes a frame. Its errors end the connection.
func (k *conn) handle(f wire.Frame) error {
	c := f.Command
	if c == nil {
		if s := k.session(f.Message.Consumer); s != nil { // otherwise it crossed our CloseConsumer
			return s.arrived(f)
		}
		return nil
	}
	switch c.GetType() {
	case pulsarpb.BaseCommand_PING:
		k.send(wire.AppendPong)
	case pulsarpb.BaseCommand_AUTH_CHALLENGE:
		k.challenge()
	case pulsarpb.BaseCommand_SUCCESS:
		k.answered(c.GetSuccess().GetRequestId(), c)
	case pulsarpb.BaseCommand_ERROR:
		if c.GetError().GetError() == pulsarpb.ServerError_AUTHENTICATION_ERROR { // of refreshed credentials
			return &AuthError{Broker: k.to.String(), Text: words(c.GetError().GetMessage())}
		}
		k.answered(c.GetError().GetRequestId(), c)
	case pulsarpb.BaseCommand_PARTITIONED_METADATA_RESPONSE:
		k.answered(c.GetPartitionMetadataResponse().GetRequestId(), c)
	case pulsarpb.BaseCommand_LOOKUP_RESPONSE:
		k.answered(c.GetLookupTopicResponse().GetRequestId(), c)
	case pulsarpb.BaseCommand_ACK_RESPONSE:
		k.answered(c.GetAckResponse().GetRequestId(), c)
	case pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID_RESPONSE:
		k.answered(c.GetGetLastMessageIdResponse().GetRequestId(), c)
	case pulsarpb.BaseCommand_CLOSE_CONSUMER:
		closed := c.GetCloseConsumer()
		if s := k.session(closed.GetConsumerId()); s != nil {
			s.closedByBroker(closed)
		}
	case pulsarpb.BaseCommand_TOPIC_MIGRATED:
		moved := c.GetTopicMigrated()
		if s := k.session(moved.GetResourceId()); s != nil && moved.GetResourceType() == pulsarpb.CommandTopicMigrated_CONSUMER {
			s.migrated(moved)
		}
	case pulsarpb.BaseCommand_REACHED_END_OF_TOPIC:
		if s := k.session(c.GetReachedEndOfTopic().GetConsumerId()); s != nil {
			s.consumer.terminated()
		}
	default: // a pong, or a command of later brokers
	}
	return nil
}
