package node

import (
	"math"
	"math/bits"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/judge"
	"github.com/ringfence/router/internal/history/hotkeys"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/source"
)

// MemoryPart is one thing that a node holds because of events, and the most bytes
// that it takes.
type MemoryPart struct {
	Name  string
	Bytes int
}

// The memory of the Go values around an event, a verdict or an id, rounded up.
const (
	fetchedOverhead = 1 << 10 // an event in the reader's queue
	openOverhead    = 1 << 10 // an open event in the ledger and in the table of held events, with both of their indexes
	sentOverhead    = 192     // a delivery that a worker has, and its result
	verdictOverhead = 256     // a verdict that waits for its frame, without texts
	idOverhead      = 96      // an id that waits to be handed over
)

// MemoryBound returns the maximum of live memory that a node holds for events under any load,
// by parts, without garbage that is not collected yet. It is computed from the settings alone.
//
// Limits that count events and not bytes assume source.Config.EventBytesTypical on average; the
// source warns if events are larger. Streams are those to forward.Config.PeersTypical other
// members and all permitted workers. Incomplete chunked messages count once for each topic, as if
// no two partitions of a topic had many at a time.
func MemoryBound(c Config, s source.Config) []MemoryPart {
	event := s.EventBytesTypical
	topics := len(s.Topics) + 2 // the retry and timer topics
	streamFrames := c.Forward.StreamBytes() + c.Forward.FrameEventsMax*256
	unsettled := plus(s.UnsettledMax, s.BatchMax)
	return []MemoryPart{
		{"chunked", times(topics, s.ChunkedBytesMax)},
		// Each connection to a broker decompresses one entry, perhaps after its chunks were joined.
		{"reading", times(s.BrokerConnectionsMax, plus(s.ChunkedBytesMax, s.PayloadBytesMax))},
		// Two batches are between the reader and the ledger.
		{"fetched", times(plus(times(topics, s.ReceiverQueueMax), times(2, s.BatchMax)), plus(event, fetchedOverhead))},
		{"unsettled", plus(s.UnsettledBytesMax, times(s.BatchMax, event), times(unsettled, openOverhead))},
		// The first and the last error of each, at its consumer node and at its owner.
		{"errors", times(2*2, unsettled, c.App.ReasonBytesMax)},
		// Once as the event, once encoded, in the four topics for copies.
		{"copies", times(2*4, s.CopiesMax, plus(event, fetchedOverhead))},
		{"mailboxes", c.Mailbox.BytesMax},
		{"frames", c.Mailbox.FramesBytesMax},
		{"window", c.Mailbox.WindowBytesMax},
		{"calls", plus(c.Lane.CallsBytesMax, times(c.Lane.CallsMax, openOverhead), c.Mailbox.RepliesBytesMax)},
		{"history", plus(c.History.BytesMax, times(c.Mailbox.Shards, hotkeys.SketchBytes))},
		{"handover", plus(times(c.Forward.HandoverMax, idOverhead), admission.WaitBytesMax)},
		{"relayed", max(c.Forward.RelayedBytesMax, c.Forward.FrameMax)},
		{"audit", auditBytes(c.Audit)},
		{"peers", times(c.Forward.PeersTypical, plus(streamFrames, times(s.UnsettledMax, verdictOverhead)))},
		{"workers", times(c.App.WorkersMax, plus(c.App.StreamBytes(), times(c.App.InFlightMax, sentOverhead)))},
	}
}

// plus and times end at the greatest number: a setting that stands for "no limit" must not make the bound look small.
func plus(terms ...int) (sum int) {
	for _, n := range terms {
		sum += min(n, math.MaxInt-sum)
	}
	return sum
}

// times is the product of numbers that are not negative.
func times(factors ...int) int {
	product := 1
	for _, n := range factors {
		if high, low := bits.Mul64(uint64(product), uint64(n)); high != 0 || low > math.MaxInt {
			product = math.MaxInt
		} else {
			product = int(low)
		}
	}
	return product
}

// notePeers warns when more other members come than the memory bound counts, and again only after they were fewer. Any goroutine may call it.
func (n *Node) notePeers(peers int) {
	typical := n.cfg.Forward.PeersTypical
	more := peers > typical
	if n.manyPeers.Swap(more) || !more {
		return
	}
	n.log.Warn("the group has more members than the memory bound counts: set peer.peers_typical to the number of other members, and size memory by the bound that router config print then shows",
		"peers", peers, "peers_typical", typical)
}

// MemorySum returns the sum of the parts.
func MemorySum(parts []MemoryPart) (sum int) {
	for _, p := range parts {
		sum = plus(sum, p.Bytes)
	}
	return sum
}

// auditBytes is the memory of the live auditor, with the handlings that wait for next owners.
func auditBytes(c audit.Config) int {
	if !c.Enabled {
		return 0
	}
	return c.BytesMax + lateMax*idOverhead + judge.MeterBytes
}
