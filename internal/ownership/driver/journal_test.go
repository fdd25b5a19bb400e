package driver_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
)

// A journal has a line for each step, and does not change the machine's effects.
func TestJournal(t *testing.T) {
	m := &script{effects: map[string][]ownership.Effect{"ownership.Tick": {ownership.Note{Count: 3}, ownership.Left{}}}}
	var to bytes.Buffer
	j := &driver.Journal{Machine: m, Inc: ownership.Incarnation{0xab}, To: &to, Failed: func(err error) { t.Error(err) }}
	effects := j.Step(7, ownership.Tick{})
	if !slices.Equal(effects, m.effects["ownership.Tick"]) {
		t.Errorf("effects %v", effects)
	}
	j.Step(8, ownership.AppReady{Ready: true})
	want := `{"Inc":"ab000000","Now":7,"Input":{"Type":"Tick","Of":{}},"Effects":[{"Type":"Note","Of":{`
	lines := strings.Split(to.String(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], want) || !strings.Contains(lines[1], `"Input":{"Type":"AppReady","Of":{"Ready":true}}`) {
		t.Errorf("the journal is\n%s", to.String())
	}
	for _, l := range lines[:2] {
		if !json.Valid([]byte(l)) {
			t.Errorf("no JSON: %s", l)
		}
	}
}

// failing fails from the second write on.
type failing struct{ writes int }

func (f *failing) Write(p []byte) (int, error) {
	if f.writes++; f.writes > 1 {
		return 0, errors.New("no space")
	}
	return len(p), nil
}

// A journal that cannot be written ends, with one error, and the machine continues.
func TestJournalFails(t *testing.T) {
	m := &script{}
	to := &failing{}
	var errs []error
	j := &driver.Journal{Machine: m, To: to, Failed: func(err error) { errs = append(errs, err) }}
	for range 4 {
		j.Step(0, ownership.Tick{})
	}
	if len(errs) != 1 || to.writes != 2 || len(m.steps) != 4 {
		t.Errorf("%v after %d writes and %d steps", errs, to.writes, len(m.steps))
	}
}

// A journal ends when it is full.
func TestJournalIsBounded(t *testing.T) {
	var to bytes.Buffer
	var errs []error
	j := &driver.Journal{Machine: &script{}, To: &to, Failed: func(err error) { errs = append(errs, err) }}
	for range 100 {
		j.Step(0, ownership.ReaderFailed{})
		j.Step(0, ownership.RecordRead{Record: ownership.Record{Group: strings.Repeat("x", 1<<20)}})
	}
	if len(errs) != 1 || to.Len() > driver.JournalBytesMax || to.Len() < driver.JournalBytesMax-(2<<20) {
		t.Errorf("%v after %d bytes", errs, to.Len())
	}
}
