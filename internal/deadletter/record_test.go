package deadletter

import (
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

func sending(act string, letters ...string) Record {
	r := Record{Act: act, Step: StepSending}
	for _, l := range letters {
		r.Letters = append(r.Letters, Sent{Letter: l, Identity: Identity("of " + l)})
	}
	return r
}

// TestMemory: a batch counts as sent when the next record of its act says so, and not before.
func TestMemory(t *testing.T) {
	began := Record{Act: "a", Step: StepBegan}
	for name, c := range map[string]struct {
		records []Record
		sent    string
		open    int
	}{
		"nothing":           {nil, "", 0},
		"began":             {[]Record{began}, "", 1},
		"in doubt":          {[]Record{began, sending("a", "1:1:-1:-1")}, "", 1},
		"one sent":          {[]Record{began, sending("a", "1:1:-1:-1"), sending("a", "1:2:-1:-1")}, "1:1:-1:-1", 1},
		"ended":             {[]Record{began, sending("a", "1:1:-1:-1"), {Act: "a", Step: StepEnded}}, "1:1:-1:-1", 0},
		"found":             {[]Record{began, sending("a", "1:1:-1:-1", "1:2:-1:-1"), {Act: "a", Step: StepResolved, Letters: sending("a", "1:2:-1:-1").Letters}}, "1:2:-1:-1", 0},
		"none found":        {[]Record{began, sending("a", "1:1:-1:-1"), {Act: "a", Step: StepResolved}}, "", 0},
		"of another act":    {[]Record{began, sending("a", "1:1:-1:-1"), {Act: "b", Step: StepBegan}, {Act: "b", Step: StepEnded}}, "", 1},
		"end of a stranger": {[]Record{{Act: "x", Step: StepEnded, Letters: sending("x", "1:1:-1:-1").Letters}}, "", 0},
	} {
		m := newMemory()
		for _, r := range c.records {
			m.apply(r)
		}
		var sent []string
		for l := range m.letters {
			sent = append(sent, l)
			if _, ok := m.events[claimed{identity: Identity("of " + l)}]; !ok {
				t.Errorf("%s: the event of %s is not known", name, l)
			}
		}
		if got := strings.Join(sent, " "); got != c.sent || len(m.interrupted()) != c.open {
			t.Errorf("%s: sent %q, open %d, want %q, %d", name, got, len(m.interrupted()), c.sent, c.open)
		}
	}
}

// TestRepeats: a letter repeats one that was sent if it was published before the end of that act, or before the newest record of an act that
// was interrupted.
func TestRepeats(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(1000+seconds), 500_000) } // between two milliseconds
	record := func(r Record, seconds int) Record { r.At = at(seconds); return r }
	began, sent := record(Record{Act: "a", Step: StepBegan}, 0), record(sending("a", "1:1:-1:-1"), 10)
	ended := record(Record{Act: "a", Step: StepEnded}, 20)
	again := record(Record{Act: "b", Step: StepSending, Letters: []Sent{{Letter: "1:2:-1:-1", Identity: sent.Letters[0].Identity}}}, 50)
	resolved := record(Record{Act: "a", Step: StepResolved, Letters: sent.Letters}, 1000)
	for name, c := range map[string]struct {
		records   []Record
		published time.Time
		want      bool
	}{
		"of an event that was not sent":        {[]Record{began}, at(-10), false},
		"before the act":                       {[]Record{began, sent, ended}, at(-10), true},
		"during the act":                       {[]Record{began, sent, ended}, at(15), true},
		"after the act":                        {[]Record{began, sent, ended}, at(21), false},
		"at its end, in milliseconds":          {[]Record{began, sent, ended}, at(20).Truncate(time.Millisecond), false},
		"after an interrupted act":             {[]Record{began, sent, resolved}, at(100), false},
		"before the end of an interrupted act": {[]Record{began, sent, resolved}, at(5), true},
		"after another act":                    {[]Record{began, sent, ended, record(Record{Act: "b", Step: StepBegan}, 50)}, at(30), false},
		"before an act that sent it again":     {[]Record{began, sent, ended, again, record(Record{Act: "b", Step: StepEnded}, 60)}, at(30), true},
	} {
		m := newMemory()
		for _, r := range c.records {
			m.apply(r)
		}
		if got := m.repeats(&Letter{message: message{Published: c.published}}, Sent{Identity: "of 1:1:-1:-1"}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRepeatsOfOneTopic: a letter that claims another topic is no copy, unless the record is of an older release, which did not note topics.
func TestRepeatsOfOneTopic(t *testing.T) {
	for recorded, want := range map[string]bool{"": true, "this": true, "another": false} {
		m := newMemory()
		m.apply(Record{Act: "a", Step: StepSending, Letters: []Sent{{Letter: "1:1:-1:-1", Identity: "i", Topic: recorded}}})
		m.apply(Record{Act: "a", Step: StepEnded, At: time.Unix(1000, 0)})
		if got := m.repeats(&Letter{}, Sent{Identity: "i", Topic: "this"}); got != want {
			t.Errorf("recorded with the topic %q: %v, want %v", recorded, got, want)
		}
	}
}

// TestRepeatsByPlace: once an act has recorded the end of the dead letter topic, no clock counts.
func TestRepeatsByPlace(t *testing.T) {
	sent := sending("a", "1:1:-1:-1")
	ended := Record{Act: "a", Step: StepEnded, At: time.Unix(1_000_000, 0), Ends: map[string]Place{
		"persistent://public/default/dead-partition-0": {5, 10}, "persistent://public/default/dead-partition-1": {Entry: -1},
	}}
	for name, c := range map[string]struct {
		id   event.MessageID
		want bool
	}{
		"before the end":                {event.MessageID{Ledger: 5, Entry: 9, Batch: -1, TopicPartition: 0}, true},
		"the last one":                  {event.MessageID{Ledger: 5, Entry: 10, Batch: -1, TopicPartition: 0}, true},
		"after the end":                 {event.MessageID{Ledger: 5, Entry: 11, Batch: -1, TopicPartition: 0}, false},
		"in a later ledger":             {event.MessageID{Ledger: 6, Entry: 0, Batch: -1, TopicPartition: 0}, false},
		"in a partition that was empty": {event.MessageID{Ledger: 2, Entry: 0, Batch: -1, TopicPartition: 1}, false},
		"first of a partition since":    {event.MessageID{Ledger: 0, Entry: 0, Batch: -1, TopicPartition: 2}, false},
		"in a partition added since":    {event.MessageID{Ledger: 2, Entry: 0, Batch: -1, TopicPartition: 2}, false},
	} {
		for _, clock := range []time.Duration{-time.Hour, time.Hour} {
			m := newMemory()
			m.apply(sent)
			m.apply(ended)
			l := &Letter{message: message{ID: c.id, Published: ended.At.Add(clock)}}
			if got := m.repeats(l, sent.Letters[0]); got != c.want {
				t.Errorf("%s, its clock %v off: %v, want %v", name, clock, got, c.want)
			}
			m = newMemory() // interrupted after its second batch, and resolved by the next act
			second := sent
			second.At, second.Ends, second.Letters = ended.At, ended.Ends, nil
			m.apply(sent)
			m.apply(second)
			m.apply(Record{Act: "a", Step: StepResolved, At: ended.At.Add(time.Minute)})
			if got := m.repeats(l, sent.Letters[0]); got != c.want {
				t.Errorf("%s, of an interrupted act, its clock %v off: %v, want %v", name, clock, got, c.want)
			}
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"act":"0123456789abcdef","step":"sending","letters":[{"letter":"1:2:-1:-1","identity":"00"}],"from":{"t":{"ledger":1,"entry":-1}}}`))
	f.Add([]byte(`{"act":"a","step":"began","selection":{"keys":["a"]}}`))
	f.Add([]byte(`{"step":"ended"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			return
		}
		m := newMemory()
		m.apply(r)
		m.interrupted()
	})
}

func TestDecodeRecord(t *testing.T) {
	long := func(bytes int) string {
		const before, after = `{"step":"began","act":"`, `"}`
		return before + strings.Repeat("a", bytes-len(before+after)) + after
	}
	for name, text := range map[string]string{
		"no JSON": "x", "no act": `{"step":"began"}`, "no step": `{"act":"a","step":"slept"}`,
		"no id": `{"act":"a","step":"sending","letters":[{"letter":"1"}]}`, "too long": long(recordBytesMax + 1),
	} {
		if _, err := decodeRecord([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := decodeRecord([]byte(long(recordBytesMax))); err != nil {
		t.Errorf("as long as may be: %v", err)
	}
}

func TestPrecedes(t *testing.T) {
	for name, c := range map[string]struct {
		p, begin, end Place // of the first message: its first chunk, and itself
		want          bool
	}{
		"itself":               {Place{1, 5}, Place{1, 5}, Place{1, 5}, true},
		"a chunked one":        {Place{1, 5}, Place{1, 3}, Place{1, 5}, true},
		"an earlier one":       {Place{1, 5}, Place{1, 4}, Place{1, 4}, true},
		"of an earlier ledger": {Place{2, 0}, Place{1, 4}, Place{1, 4}, true},
		"a later one":          {Place{1, 5}, Place{1, 6}, Place{1, 6}, false},
		"a later one, chunked": {Place{1, 5}, Place{1, 4}, Place{1, 6}, false}, // the one at the place may be gone
		"a later ledger":       {Place{1, 5}, Place{2, 0}, Place{2, 0}, false},
		"of this ledger":       {Place{4, -1}, Place{4, 0}, Place{4, 0}, true},
		"of this one, chunked": {Place{4, -1}, Place{4, 0}, Place{4, 2}, true},
		"of a later one":       {Place{4, -1}, Place{5, 0}, Place{5, 0}, false},
		"its begin is gone":    {Place{4, -1}, Place{4, 1}, Place{4, 1}, false},
	} {
		if got := c.p.precedes(c.begin, c.end); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
