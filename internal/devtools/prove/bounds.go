package prove

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A member may lie, or its routers may deliver one event again and again. These bounds keep the command's memory and time within a multiple of what the load explains.
// What is beyond them is counted and makes the verdict say so.
const (
	// handlingsEach is how often a member may handle an event of the group, on average. Without faults it is once at all members together.
	handlingsEach = 4
	// recordsLeast is the number of records about events, and of others, that a member may report in any proof.
	recordsLeast = 1000
	// recordsPerFault is the number of records of one member that a fault explains, those of processes that ended by themselves included.
	recordsPerFault = 20
	// runningMax is the number of handlings of one key, at about the same time, with which another one is compared.
	runningMax = 100

	wordBytesMax, textBytesMax = 20, 1000 // of a record
)

// recordsOf is how many records about events the load explains at one member: its own events, and two for each handling of any event.
func (c *conducting) recordsOf(member int) int {
	length := (c.o.For + besideMax).Seconds()
	return recordsLeast + int(length*float64(c.rate(member))) + 2*handlingsEach*int(length*float64(c.o.Rate))
}

// keep adds a record to those of its member, unless that has reported more than the load and the faults explain.
func (c *conducting) keep(member int, r *Record) bool {
	m := &c.run.Members[member]
	kept, most := &m.others, recordsLeast+recordsPerFault*len(c.run.Faults)
	switch r.Kind {
	case WasPublished, WasSent, HasStarted, HasEnded:
		kept, most = &m.ofEvents, c.recordsOf(member)
	}
	if *kept >= most {
		m.Refused++
		return false
	}
	*kept++
	r.Kind, r.Outcome, r.Text = cut(r.Kind, wordBytesMax), cut(r.Outcome, wordBytesMax), cut(r.Text, textBytesMax)
	if r.Fault != nil {
		r.Fault.Kind = cut(r.Fault.Kind, wordBytesMax)
	}
	m.Records = append(m.Records, *r)
	return true
}

// cut returns the beginning of a text that is too long, without the rest in memory.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:most]), "")
}

// Records are those of one answer. An answer with many more than a member sends at a time cannot be decoded, as a few bytes of JSON become a whole Record.
type Records []Record

const recordsDecodedMax = 4 * recordsPerAnswer

// UnmarshalJSON implements [json.Unmarshaler].
func (r *Records) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil { // the bracket, or null
		return err
	}
	*r = nil
	for d.More() {
		if len(*r) == recordsDecodedMax {
			return fmt.Errorf("an answer has more than %d records", recordsDecodedMax)
		}
		var one Record
		if err := d.Decode(&one); err != nil {
			return err
		}
		*r = append(*r, one)
	}
	return nil
}
