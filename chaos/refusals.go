package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// refusedSuffix is added to the path of a journal: there the application lists the
// writes that a sink has refused.
const refusedSuffix = ".refused"

// refusal is a claim or a write that a sink has refused: one line of that list.
type refusal struct {
	sink, what string
	key        event.Key // without spaces, as the publisher makes them
	fence      string    // as text
	event      string
	at         clock.Instant // when the application heard of it
}

// String is the line.
func (r refusal) String() string {
	return fmt.Sprintln(r.sink, r.what, r.key, r.fence, r.event, int64(r.at))
}

// readRefusals reads the list beside a journal.
func readRefusals(journal string) ([]refusal, error) {
	return readList(journal+refusedSuffix, func(line string) (r refusal, err error) {
		_, err = fmt.Sscan(line, &r.sink, &r.what, &r.key, &r.fence, &r.event, &r.at)
		return r, err
	})
}

// readList reads a list that lies beside a journal. A torn last line, which a kill leaves, is
// ignored; a list that is not there is empty.
func readList[T any](path string, read func(line string) (T, error)) (all []T, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	whole := content[:bytes.LastIndexByte(content, '\n')+1]
	lines := bufio.NewScanner(bytes.NewReader(whole))
	for lines.Scan() {
		one, err := read(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, lines.Text(), err)
		}
		all = append(all, one)
	}
	return all, errors.Join(err, lines.Err())
}

// refusedHoldsSuffix is added to the path of a holder's journal: there it lists what it asked for in vain.
const refusedHoldsSuffix = ".holds"

// refusedHold is a line of that list.
type refusedHold struct{ name, code string }

func (r refusedHold) String() string { return fmt.Sprintf("%s %q\n", r.name, r.code) }

// readRefusedHolds reads the list beside a journal.
func readRefusedHolds(journal string) ([]refusedHold, error) {
	return readList(journal+refusedHoldsSuffix, func(line string) (r refusedHold, err error) {
		_, err = fmt.Sscanf(line, "%s %q", &r.name, &r.code)
		return r, err
	})
}
