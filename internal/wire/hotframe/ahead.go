package hotframe

import "github.com/ringfence/router/internal/base/event"

// AheadMax is the number of events that are loaded at a time with [Load]: they must still be
// in the cache when they are encoded.
const AheadMax = 32

// Load loads the cache lines of some events' data, so that their cache misses overlap: copied
// one after the other, each event would wait for its own misses. The result means nothing.
//
//go:noinline
func Load(events []*event.Event) (read byte) {
	const line, most = 64, 512 // bytes; the processor prefetches long data by itself
	for _, ev := range events {
		if len(ev.Key) > 0 {
			read ^= ev.Key[0]
		}
		payload := ev.Payload[:min(len(ev.Payload), most)]
		for at := 0; at < len(payload); at += line {
			read ^= payload[at]
		}
		for i := range ev.Properties {
			if value := ev.Properties[i].Value; value != "" {
				read ^= value[0]
			}
		}
	}
	return read
}
