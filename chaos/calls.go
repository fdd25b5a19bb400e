package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

// callMethod is the method of all calls, and callPrefix begins their names in journals, where events have numbers.
const (
	callMethod = "chaos"
	callPrefix = "call:"
)

// answer is the outcome of a call, as its caller knows it.
type answer string

// The answers. The first five are the outcomes of a router.
const (
	replied    answer = "replied"
	failed     answer = "failed"
	notRun     answer = "not_run"
	unknown    answer = "unknown"
	doneBefore answer = "done_before"
	givenUp    answer = "given_up" // the caller has ended it
)

// callMade is one call that was made, with all its repeats.
type callMade struct {
	once   bool // without an id
	tries  int
	answer answer // the last one
	code   string // of not_run and failed
	reply  string // of replied: the fence of the handling
}

// callLog is the callers' list of all calls, by their numbers.
type callLog struct{ made []callMade }

// callName is the name of a call: its payload, the name of its handlings in journals, and with once false also its id.
func callName(number int, once bool) string {
	if once {
		return fmt.Sprint(callPrefix, number)
	}
	return fmt.Sprint(callPrefix, number, "+id")
}

func isCall(event string) bool { return strings.HasPrefix(event, callPrefix) }

// callCounts are the calls of a run by what became of them.
type callCounts struct {
	Made     int            `json:"made"` // without repeats
	Once     int            `json:"once"` // without an id
	Repeats  int            `json:"repeats"`
	Answers  map[answer]int `json:"answers"`
	Codes    map[string]int `json:"codes,omitempty"` // of not_run
	Started  int            `json:"started"`         // handlings
	Handled  int            `json:"handled"`         // calls that were done at least once
	RanAgain int            `json:"ran_again"`       // calls with an id whose handler was started more than once

	// The broken promises.
	OnceAgain    int `json:"once_again"`    // calls without an id whose handler was started twice
	UnrunReplies int `json:"unrun_replies"` // answers of a handler that no journal has: replied, failed or done_before
	RunNotRun    int `json:"run_not_run"`   // calls without an id that have run, though their caller heard that they never would
	WrongReplies int `json:"wrong_replies"` // replies of another call
	Strange      int `json:"strange"`       // handlings of calls that nobody made
	examples
}

// examples are the first broken promises of one kind.
type examples struct {
	Examples []string `json:"broken,omitempty"`
}

const examplesMax = 10

func (e *examples) example(format string, args ...any) {
	if len(e.Examples) < examplesMax {
		e.Examples = append(e.Examples, fmt.Sprintf(format, args...))
	}
}

// broken counts a promise that is broken.
func (e *examples) broken(n *int, is bool, format string, args ...any) {
	if is {
		*n++
		e.example(format, args...)
	}
}

// handlings are those of one call in the journals.
type handlings struct {
	started int
	done    []event.Fence
}

// judgeCalls compares the callers' list with the journals at paths.
func judgeCalls(paths []string, log *callLog) (*callCounts, error) {
	c := &callCounts{Made: len(log.made), Answers: map[answer]int{}, Codes: map[string]int{}}
	type started struct {
		name  string
		fence event.Fence
	}
	calls, open := map[string]*handlings{}, map[at]started{}
	err := journal.Walk(paths, func(s journal.Step) error {
		here := at{s.File, s.Handling}
		if s.Outcome == 0 {
			if isCall(s.Event) {
				h := calls[s.Event]
				if h == nil {
					h = &handlings{}
					calls[s.Event] = h
				}
				h.started++
				c.Started++
				open[here] = started{s.Event, event.Fence{Token: s.Token, Turn: s.Turn}}
			}
			return nil
		}
		if of, ok := open[here]; ok && s.Outcome == journal.Done {
			calls[of.name].done = append(calls[of.name].done, of.fence)
		}
		delete(open, here)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for number, made := range log.made {
		name := callName(number, made.once)
		h := calls[name]
		if h == nil {
			h = &handlings{}
		}
		delete(calls, name)
		c.judge(name, made, h)
	}
	c.Strange = len(calls)
	for name := range calls {
		c.example("%s was handled, and nobody made it", name)
	}
	return c, nil
}

// judge counts one call.
func (c *callCounts) judge(name string, made callMade, h *handlings) {
	c.Answers[made.answer]++
	c.Repeats += max(0, made.tries-1)
	if made.answer == notRun {
		c.Codes[made.code]++
	}
	if len(h.done) > 0 {
		c.Handled++
	}
	if made.once {
		c.Once++
	}
	c.broken(&c.OnceAgain, made.once && h.started > 1, "%s has no id, and was started %d times", name, h.started)
	c.broken(&c.RunNotRun, made.once && made.answer == notRun && h.started > 0, "%s was started, and its caller heard that it never would be (%s)", name, made.code)
	if !made.once && h.started > 1 {
		c.RanAgain++
	}
	switch made.answer {
	case replied:
		isFence := func(f event.Fence) bool { return f.String() == made.reply }
		c.broken(&c.UnrunReplies, len(h.done) == 0, "%s was replied to, and no journal has a handling that was done", name)
		c.broken(&c.WrongReplies, len(h.done) > 0 && !slices.ContainsFunc(h.done, isFence), "%s has the reply %q, and was done under %v", name, made.reply, h.done)
	case doneBefore:
		c.broken(&c.UnrunReplies, len(h.done) == 0, "%s was done before, and no journal has a handling that was done", name)
	case failed:
		c.broken(&c.UnrunReplies, h.started == 0, "%s has failed, and no journal has a start", name)
	case notRun, unknown, givenUp:
	}
}

// write writes a line for each call: its name, tries, answer, code and reply.
func (l *callLog) write(w io.Writer) error {
	for number, made := range l.made {
		if _, err := fmt.Fprintf(w, "%s %d %s %q %q\n", callName(number, made.once), made.tries, made.answer, made.code, made.reply); err != nil {
			return err
		}
	}
	return nil
}
