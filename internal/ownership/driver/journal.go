package driver

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
)

// JournalBytesMax bounds a journal. At a Beat every 500 ms it takes hours to fill.
const JournalBytesMax = 64 << 20

// Journal is a machine whose steps are written down: one line of JSON for each, with the instant,
// the input and the effects. spec/ compares journals with the model. It is not safe for concurrent use.
type Journal struct {
	Machine
	Inc    ownership.Incarnation
	To     io.Writer
	Failed func(error) // told once when a line cannot be written, or has no room; none follows it

	written int
	failed  bool
}

type line struct {
	Inc     ownership.Incarnation
	Now     clock.Instant // ns
	Input   named
	Effects []named
}

// named is an input or effect and the name of its type.
type named struct {
	Type string
	Of   any
}

func nameOf(v any) named {
	_, name, _ := strings.Cut(fmt.Sprintf("%T", v), ".")
	return named{name, v}
}

// Step implements Machine. The line is written before the effects are performed.
func (j *Journal) Step(now clock.Instant, in ownership.Input) []ownership.Effect {
	effects := j.Machine.Step(now, in)
	if j.failed {
		return effects
	}
	l := line{j.Inc, now, nameOf(in), make([]named, len(effects))}
	for i, e := range effects {
		l.Effects[i] = nameOf(e)
	}
	text, err := json.Marshal(l)
	if j.written += len(text) + 1; err == nil && j.written > JournalBytesMax {
		err = fmt.Errorf("the journal is full: %d bytes", JournalBytesMax)
	}
	if err == nil {
		_, err = j.To.Write(append(text, '\n'))
	}
	if err != nil {
		j.failed = true
		j.Failed(err)
	}
	return effects
}
