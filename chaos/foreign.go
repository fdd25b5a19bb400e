//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
)

// scriptOf is the program of an application in another language. With the argument prepare it
// builds and fetches all that it needs.
func scriptOf(language string) string { return filepath.Join("chaos", "apps", language+".sh") }

// A foreign application has two processes, which a fault hits together: the program in its
// language, with the SDK's worker and handler, and this one, which writes the journal and the
// sinks for it. So the evidence is the same for all languages, and a program needs no clock that
// processes share. The program asks on its standard output, one JSON object in a line, and reads
// the answers from its standard input:
//
//	{"n":1,"do":"begin","event":"e-17","key":"user-3","fence":"0…01.0…02"}
//	{"n":1,"ok":true,"handling":17,"ms":0.25}           work so long, or until the key is lost
//	{"n":2,"do":"end","handling":17,"outcome":"done"}   or cancelled
//	{"n":2,"ok":true}                                   ok: false: fail, the key is somebody else's
//
// A handler asks before its first step and after its last one, and returns only after the answer,
// so the written interval contains the true one.
type question struct {
	N        uint64 `json:"n"`
	Do       string `json:"do"`
	Event    string `json:"event"`
	Key      string `json:"key"`
	Fence    string `json:"fence"`
	Handling uint64 `json:"handling"`
	Outcome  string `json:"outcome"`
}

type reply struct {
	N        uint64  `json:"n"`
	OK       bool    `json:"ok"`
	Handling uint64  `json:"handling,omitempty"`
	Ms       float64 `json:"ms,omitempty"`
}

// errCancelled says that the program's handler was cancelled.
var errCancelled = errors.New("the handler was cancelled")

// foreignGrace is how long the program may take to end.
const foreignGrace = 40 * time.Second

// serve runs the program until ctx ends.
func (a *application) serve(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, script)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = foreignGrace
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", script, err)
	}
	err = a.answerAll(context.WithoutCancel(ctx), stdout, stdin)
	if waited := cmd.Wait(); ctx.Err() == nil || err != nil {
		return errors.Join(err, fmt.Errorf("%s has ended: %w", script, errors.Join(waited, err)))
	}
	return nil
}

// answerAll answers questions until there are no more.
func (a *application) answerAll(ctx context.Context, questions io.Reader, answers io.Writer) error {
	var mu sync.Mutex // guards open and answers
	open := map[uint64]handling{}
	var running sync.WaitGroup
	defer running.Wait()
	lines := bufio.NewScanner(questions)
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		running.Go(func() { // the sinks can be slow
			r := reply{N: q.N}
			switch q.Do {
			case "begin":
				h, err := a.beginForeign(ctx, q)
				if err == nil {
					r.OK, r.Handling, r.Ms = true, uint64(h.Handling), float64(h.length)/float64(time.Millisecond)
					mu.Lock()
					open[r.Handling] = h
					mu.Unlock()
				}
			case "end":
				mu.Lock()
				h, ok := open[q.Handling]
				delete(open, q.Handling)
				mu.Unlock()
				var result error
				if q.Outcome != "done" {
					result = errCancelled
				}
				held := func() bool { return true } // the program has looked right before it asked
				r.OK = ok && a.end(ctx, h, result, held) == nil
			}
			text, _ := json.Marshal(r) // it cannot fail
			mu.Lock()
			defer mu.Unlock()
			_, _ = answers.Write(append(text, '\n')) // it fails if the program has ended
		})
	}
	return lines.Err()
}

func (a *application) beginForeign(ctx context.Context, q question) (handling, error) {
	fence, err := client.ParseFence(q.Fence)
	if err != nil {
		return handling{}, err
	}
	return a.begin(ctx, q.Event, q.Key, event.Fence(fence))
}
