package fakebroker

import (
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Handle handles a command as a real broker does.
func (l *Link) Handle(c *pulsarpb.BaseCommand) {
	l.broker.cluster.mu.Lock()
	defer l.broker.cluster.mu.Unlock()
	switch c.GetType() {
	case pulsarpb.BaseCommand_CONNECT:
		l.connected()
	case pulsarpb.BaseCommand_PING:
		l.send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_PONG.Enum(), Pong: &pulsarpb.CommandPong{}})
	case pulsarpb.BaseCommand_PARTITIONED_METADATA:
		m := c.GetPartitionMetadata()
		l.send(&pulsarpb.BaseCommand{
			Type: pulsarpb.BaseCommand_PARTITIONED_METADATA_RESPONSE.Enum(),
			PartitionMetadataResponse: &pulsarpb.CommandPartitionedTopicMetadataResponse{
				Partitions: &l.broker.cluster.topic(m.GetTopic()).partitions, RequestId: m.RequestId,
				Response: pulsarpb.CommandPartitionedTopicMetadataResponse_SUCCESS.Enum(),
			},
		})
	case pulsarpb.BaseCommand_LOOKUP:
		l.lookup(c.GetLookupTopic())
	case pulsarpb.BaseCommand_SUBSCRIBE:
		l.subscribe(c.GetSubscribe())
	case pulsarpb.BaseCommand_FLOW:
		if m := l.members[c.GetFlow().GetConsumerId()]; m != nil {
			m.permits += int(c.GetFlow().GetMessagePermits())
			m.topic.dispatch()
		}
	case pulsarpb.BaseCommand_ACK:
		l.ack(c.GetAck())
	case pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES:
		r := c.GetRedeliverUnacknowledgedMessages()
		if m := l.members[r.GetConsumerId()]; m != nil {
			m.topic.release(m, r.GetMessageIds())
			m.topic.dispatch()
		}
	case pulsarpb.BaseCommand_CLOSE_CONSUMER:
		if m := l.members[c.GetCloseConsumer().GetConsumerId()]; m != nil {
			m.topic.remove(m)
		}
		l.success(c.GetCloseConsumer().GetRequestId())
	case pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID:
		l.last(c.GetGetLastMessageId())
	default:
	}
}

func (l *Link) connected() {
	connected := &pulsarpb.CommandConnected{ServerVersion: new("fake"), ProtocolVersion: &l.broker.Version}
	if l.broker.MessageSize > 0 {
		connected.MaxMessageSize = &l.broker.MessageSize
	}
	l.send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_CONNECTED.Enum(), Connected: connected})
}

// Success answers a request.
func (l *Link) Success(request uint64) {
	l.broker.cluster.mu.Lock()
	defer l.broker.cluster.mu.Unlock()
	l.success(request)
}

func (l *Link) success(request uint64) {
	l.send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_SUCCESS.Enum(), Success: &pulsarpb.CommandSuccess{RequestId: &request}})
}

// Refuse answers a request with an error.
func (l *Link) Refuse(request uint64, code pulsarpb.ServerError, text string) {
	l.Send(&pulsarpb.BaseCommand{
		Type: pulsarpb.BaseCommand_ERROR.Enum(), Error: &pulsarpb.CommandError{RequestId: &request, Error: &code, Message: &text},
	})
}

// lookup names the owner of a topic, or redirects to it.
func (l *Link) lookup(c *pulsarpb.CommandLookupTopic) {
	owner, response := l.broker.cluster.topic(c.GetTopic()).owner, pulsarpb.CommandLookupTopicResponse_REDIRECT
	if owner == nil || owner == l.broker {
		owner, response = l.broker, pulsarpb.CommandLookupTopicResponse_CONNECT
	}
	l.send(Named(c.GetRequestId(), response, owner.host))
}

// Named returns the answer to a lookup that names a broker by its address.
func Named(request uint64, response pulsarpb.CommandLookupTopicResponse_LookupType, address string) *pulsarpb.BaseCommand {
	return &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_LOOKUP_RESPONSE.Enum(), LookupTopicResponse: &pulsarpb.CommandLookupTopicResponse{
		RequestId: &request, Response: &response, Authoritative: new(true),
		BrokerServiceUrl: new("pulsar://" + address), BrokerServiceUrlTls: new("pulsar+ssl://" + address),
	}}
}

func (l *Link) subscribe(c *pulsarpb.CommandSubscribe) {
	t := l.broker.cluster.topic(c.GetTopic())
	if t.owner != nil && t.owner != l.broker {
		l.send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ERROR.Enum(), Error: &pulsarpb.CommandError{
			RequestId: c.RequestId, Error: pulsarpb.ServerError_SERVICE_NOT_READY.Enum(), Message: new("this broker does not serve the topic"),
		}})
		return
	}
	m := &member{link: l, id: c.GetConsumerId(), topic: t}
	l.members[m.id] = m
	t.consumers = append(t.consumers, m)
	if start := c.GetStartMessageId(); start != nil {
		t.begin(m, wire.ID{Ledger: int64(start.GetLedgerId()), Entry: int64(start.GetEntryId())})
	}
	l.success(c.GetRequestId())
}

func (l *Link) ack(c *pulsarpb.CommandAck) {
	m := l.members[c.GetConsumerId()]
	if m == nil {
		return
	}
	if c.GetAckType() == pulsarpb.CommandAck_CUMULATIVE {
		m.topic.ackUpTo(c.GetMessageId()[0])
	} else {
		m.topic.ack(c.GetMessageId())
	}
	if c.RequestId != nil {
		l.send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ACK_RESPONSE.Enum(), AckResponse: &pulsarpb.CommandAckResponse{
			ConsumerId: c.ConsumerId, RequestId: c.RequestId,
		}})
	}
}

func (l *Link) last(c *pulsarpb.CommandGetLastMessageId) {
	id := &pulsarpb.MessageIdData{LedgerId: proto.Uint64(1<<64 - 1), EntryId: proto.Uint64(1<<64 - 1)}
	if m := l.members[c.GetConsumerId()]; m != nil && len(m.topic.entries) > 0 {
		e := m.topic.entries[len(m.topic.entries)-1]
		id.LedgerId, id.EntryId = new(uint64(e.id.Ledger)), new(uint64(e.id.Entry))
	}
	l.send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID_RESPONSE.Enum(), GetLastMessageIdResponse: &pulsarpb.CommandGetLastMessageIdResponse{
		LastMessageId: id, RequestId: c.RequestId,
	}})
}
