package entries

import (
	"math"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// session is one subscription of a consumer at a broker, until the connection or the broker ends it. Its entries and permits never count
// for a later session. Each session has its own id at the broker, so that commands of an earlier session are not mistaken for those of a
// later session.
type session struct {
	consumer *Consumer
	conn     *conn
	cluster  uint64 // that conn belongs to
	share    slot   // of conn, until the consumer leaves
	resumes  resumption
	id       uint64
	ended    chan struct{} // closed when the broker has ended it

	// Guarded by the consumer's lock.
	permits  permits
	waits    bool               // the permits wait for acks
	receipts map[uint64]awaited // by request
	alone    alone
	end      ending
	came     bool // an entry, since the last tick
	counted  int  // cost of the entries that have come since the broker was asked to count anew
	doubtful bool // the broker did not confirm an ack
}

// ending holds the reason for the end of a session, and the next address of the consumer.
type ending struct {
	reason string
	over   error   // ends the consumer, too; nil: it continues
	next   address // the broker that serves the topic partition now; zero: unknown, look it up
	seeds  *seeds  // of another cluster; nil: as before
}

// awaited holds acks whose receipt is outstanding.
type awaited struct {
	ids   []wire.AckID
	ticks int // of the consumer since then; the first is incomplete
}

// arrived takes an entry, on the goroutine of the connection. Its error ends the connection.
func (s *session) arrived(f wire.Frame) error {
	if !s.resumes.allows(f.Message.ID) {
		s.finish(ending{reason: reasonConnection, over: s.resumes.err})
		return nil
	}
	d := &Delivered{
		Consumer: s.consumer, ID: f.Message.ID, Cluster: s.cluster, Redelivery: f.Message.Redelivery, AckSet: f.Message.AckSet,
		Raw: f.Entry, from: s, read: s.consumer.read,
	}
	payloadMax := s.consumer.client.cfg.PayloadBytesMax
	err := s.conn.parser.ParseHead(&d.Entry, f.Entry, payloadMax)
	d.Permits = cost(d.Entry.Events, d.AckSet)
	switch {
	case err != nil || !d.Entry.Chunked:
	case s.resumes.log:
		err = errChunk
	default:
		return s.chunk(d, payloadMax)
	}
	return s.push(d, err)
}

// chunk takes a part of a message.
func (s *session) chunk(d *Delivered, payloadMax int) error {
	s.consumer.mu.Lock()
	broken := s.alone.broken(&d.Entry.Metadata)
	s.consumer.mu.Unlock()
	if broken != nil {
		return s.push(d, broken)
	}
	r, err := s.consumer.chunks.add(d, payloadMax)
	d.Chunks = r.IDs
	if len(r.IDs) > 0 {
		d.Raw = r.Parts
		if d.Entry.Compressed {
			d.Raw = d.Entry.Payload
		}
	}
	if len(r.IDs) > 0 || err != nil {
		return s.push(d, err)
	}
	if s.consumer.read != nil { // a caller that reads up to an end needs the position of each entry, also of chunks whose message is never whole
		d.Waits, d.Raw, d.Entry = true, nil, wire.Entry{Metadata: wire.Metadata{PublishTime: d.Entry.Metadata.PublishTime}}
		return s.push(d, nil)
	}
	return s.keep(d) // returns its permit at once: a message may have more chunks than the queue has room
}

// errIncomplete breaks a message whose other chunks have not come.
var errIncomplete = &wire.BrokenError{Reason: wire.ReasonChunk, What: "its other chunks have not come"}

// errChunk breaks a chunk whose message is not assembled.
var errChunk = &wire.BrokenError{Reason: wire.ReasonChunk, What: "it is a part of a message"}

// incomplete hands on what there is of a message. Its entries have been counted, and their permits were given back.
func (s *session) incomplete(m *wire.Incomplete) {
	c := s.consumer
	d := &Delivered{
		Consumer: c, ID: m.IDs[0], Cluster: s.cluster, Redelivery: 1, Entry: m.Entry, Chunks: m.IDs, Missing: m.Missing, Raw: m.Parts, from: s, taken: true,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == s { // otherwise the broker redelivers them
		d.markBroken(errIncomplete)
		c.sub.Queue.push(d)
	}
}

// push hands an entry on, with the reason if it is broken.
func (s *session) push(d *Delivered, err error) error {
	c := s.consumer
	if c.read != nil {
		if c.read.has(d.ID) {
			return s.keep(d)
		}
		d.resume, d.Unfinished = c.chunks.before(d.ID)
	}
	if err != nil {
		d.markBroken(err)
	} else if c.sub.Queue.opens() {
		d.Open(&s.conn.parser)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != s {
		return nil // the broker redelivers it
	}
	if !s.arrives(d) {
		return errOverrun
	}
	if m := &d.Entry.Metadata; c.sub.Type == Shared && d.Chunks == nil && isPart(m) {
		d.part, d.first = true, m.Chunk == 0
		most := firstsMax
		if c.sub.UnackedMax > 0 {
			most = min(most, c.sub.UnackedMax/2)
		}
		s.alone.arrived(c.client.now(), d.ID, m, d.Broken, most)
	}
	c.sub.Queue.push(d)
	return nil
}

// keep counts an entry that is not handed on.
func (s *session) keep(d *Delivered) error {
	s.consumer.mu.Lock()
	defer s.consumer.mu.Unlock()
	if s.consumer.session != s {
		return nil
	}
	if !s.arrives(d) {
		return errOverrun
	}
	s.giveBack(d.Permits)
	return nil
}

// arrives counts an entry, and reports whether the broker respects the permits. The caller holds the consumer's lock.
func (s *session) arrives(d *Delivered) bool {
	before := s.permits.unacked
	if !s.permits.arrived(d.ID, d.Permits) {
		return false
	}
	s.came = true
	s.counted = min(s.counted+max(0, d.Permits), math.MaxInt/4)
	m := s.consumer.client.metrics
	m.permits.Sub(float64(d.Permits))
	m.unacked.Add(float64(s.permits.unacked - before))
	s.noteWait()
	return true
}

// settled counts acks that are sent, and entries that are given back. The caller holds the consumer's lock.
func (s *session) settled(ids ...wire.AckID) {
	before := s.permits.unacked
	for _, id := range ids {
		s.permits.acked(id)
	}
	s.consumer.client.metrics.unacked.Add(float64(s.permits.unacked - before))
}

// recount makes the broker count its unacked events anew, if the consumer has none and no entry arrives. A broker
// (4.0.8) counts an entry as unacked forever if the subscription's cursor passed it before its ack, because the entry
// expired or an administrator skipped it; at its limit it sends nothing any more. A recount delivers entries in
// flight twice, as a reconnect does, so it is requested only if the arrived entries could account for half of the
// limit. It is not requested after a refused ack, since that entry would come again and again. The caller holds the
// consumer's lock.
func (s *session) recount() {
	idle := !s.came && len(s.permits.costs) == 0 && len(s.receipts) == 0 && len(s.consumer.acks.ids) == 0
	s.came = false
	if idle && !s.doubtful && s.counted > 0 && 2*s.counted >= s.permits.unackedMax {
		s.counted = 0
		s.conn.send(func(dst []byte) []byte { return wire.AppendRedeliverAll(dst, s.id) })
	}
}

// rest sends all permits that may be sent. The caller holds the consumer's lock.
func (s *session) rest() {
	if flow := s.permits.rest(); flow > 0 {
		s.flow(flow)
	}
	s.noteWait()
}

// noteWait counts the beginnings of waits for acks.
func (s *session) noteWait() {
	waits := s.permits.waits()
	if waits && !s.waits {
		s.consumer.client.metrics.unackedWaits.Inc()
	}
	s.waits = waits
}

// take returns the permits of entries that were taken.
func (s *session) take(batch []*Delivered) {
	s.consumer.mu.Lock()
	defer s.consumer.mu.Unlock()
	for _, d := range batch {
		if !d.taken && s.consumer.session == s {
			s.giveBack(d.Permits)
		}
		d.taken = true
	}
}

// giveBack counts an entry as taken. Permits that are not due yet are sent with the next acks, or when the timer of acks fires. The caller
// holds the consumer's lock.
func (s *session) giveBack(cost int) {
	if flow := s.permits.taken(cost); flow > 0 {
		s.flow(flow)
		return
	}
	s.consumer.later()
}

// flow sends permits. The caller holds the consumer's lock.
func (s *session) flow(permits int) {
	s.consumer.client.metrics.permits.Add(float64(permits))
	for permits > 0 { // once, except for broken entries that declare billions of events
		n := min(permits, math.MaxInt32)
		s.conn.send(func(dst []byte) []byte { return wire.AppendFlow(dst, s.id, uint32(n)) })
		permits -= n
	}
}

// closedByBroker ends the session: its broker unloads the topic, and may name the next broker.
func (s *session) closedByBroker(c *pulsarpb.CommandCloseConsumer) {
	// Without an address that can be used it is looked up.
	next, _ := s.conn.named(c.GetAssignedBrokerServiceUrl(), c.GetAssignedBrokerServiceUrlTls(), s.conn.to.proxied())
	s.finish(ending{reason: reasonClosed, next: next})
}

// migrated ends the session: the topic is in another cluster now.
func (s *session) migrated(c *pulsarpb.CommandTopicMigrated) {
	url := c.GetBrokerServiceUrl()
	if s.conn.to.tls {
		url = c.GetBrokerServiceUrlTls()
	}
	to, err := parseService(url)
	if err != nil || to.tls != s.conn.to.tls {
		log := s.consumer.client.log
		log.Warn("a broker gave no usable address of the cluster that a topic has moved to", "topic", s.consumer.sub.Topic, "broker", s.conn.to.String())
		return
	}
	e := ending{reason: reasonMigrated, seeds: newSeeds(to)}
	if s.consumer.read != nil { // no entry there follows those that were received
		e.over = errMoved
	}
	s.finish(e)
}

func (s *session) finish(e ending) {
	s.consumer.mu.Lock()
	defer s.consumer.mu.Unlock()
	if s.end.reason == "" {
		s.end = e
		close(s.ended)
	}
}
