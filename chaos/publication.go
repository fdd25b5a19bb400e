package main

import (
	"sort"
	"strconv"

	"github.com/ringfence/router/internal/base/clock"
)

// publication is the publisher's list: when it sent which event, and when the broker
// had it. Events are numbered from 0.
type publication struct {
	sent  []clock.Instant // before the send
	atEnd []clock.Instant // when the broker had it; 0 while it has not; Forever if the send failed
	acks  []clock.Instant // in the order of time, at most one in ackEvery
}

// ackEvery thins out the list of acks.
const ackEvery = clock.Instant(5e6)

// begin notes that the next event is about to be sent, and returns its number.
func (p *publication) begin(now clock.Instant) int {
	p.sent = append(p.sent, now)
	p.atEnd = append(p.atEnd, 0)
	return len(p.sent) - 1
}

// finish records that the broker has an event, or that this is unknown.
func (p *publication) finish(n int, now clock.Instant, ok bool) {
	if !ok {
		p.atEnd[n] = clock.Forever
		return
	}
	p.atEnd[n] = now
	if len(p.acks) == 0 || now >= p.acks[len(p.acks)-1]+ackEvery {
		p.acks = append(p.acks, now)
	}
}

// had returns when the broker had an event, as far as the publisher knows, or else when
// it was sent.
func (p *publication) had(n int) clock.Instant {
	if at := p.atEnd[n]; at != 0 && at != clock.Forever {
		return at
	}
	return p.sent[n]
}

// failed counts the events for which it is unknown whether the broker has them.
func (p *publication) failed() (n int) {
	for _, at := range p.atEnd {
		if at == 0 || at == clock.Forever {
			n++
		}
	}
	return n
}

// confirmed yields the names of all events that the broker has.
func (p *publication) confirmed(yield func(string) bool) {
	for n, at := range p.atEnd {
		if at != 0 && at != clock.Forever && !yield(strconv.Itoa(n)) {
			return
		}
	}
}

// number returns the number of an event by its name, -1 if it was not sent.
func (p *publication) number(name string) int {
	n, err := strconv.Atoi(name)
	if err != nil || n < 0 || n >= len(p.sent) {
		return -1
	}
	return n
}

// silenceMin is the shortest time without an ack that counts as an absence of the broker.
const silenceMin = clock.Instant(1e9)

// back returns when the broker had the first event again after the longest time
// between from and until in which it had none; Forever if that has no end there.
func (p *publication) back(from, until clock.Instant) clock.Instant {
	i := sort.Search(len(p.acks), func(i int) bool { return p.acks[i] >= from-silenceMin })
	end, longest, last := clock.Forever, clock.Instant(0), from-silenceMin
	for ; i < len(p.acks) && last < until; i++ {
		if gap := p.acks[i] - last; gap > longest {
			end, longest = p.acks[i], gap
		}
		last = p.acks[i]
	}
	if last < until && until-last > longest {
		return clock.Forever
	}
	return end
}
