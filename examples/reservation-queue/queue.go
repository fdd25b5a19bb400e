package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/ringfence/router/client"
)

// queue is a folder that stands for your database: a file for each item that is closed, and a journal.
type queue struct{ dir *os.Root }

func openQueue(dir string) (*queue, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil { //nolint:gosec // who starts this names the folder
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	return &queue{root}, err
}

func (q *queue) isClosed(item string) bool {
	_, err := q.dir.Stat(item)
	return err == nil
}

// errClosed means that an item was closed twice: two clerks had it.
var errClosed = errors.New("the item is closed already")

// close closes an item. A database would write where the fence is greater than the stored one; a file that must not be there is as good for
// one write.
func (q *queue) close(item string, fence client.Fence) error {
	f, err := q.dir.OpenFile(item, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		q.note(item, "TWICE", fence)
		return errClosed
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(fence.String() + "\n")
	q.note(item, "closed", fence)
	return errors.Join(err, f.Close())
}

// note adds a line to the journal. A line is one write, so that those of several processes do not mix.
func (q *queue) note(item, what string, fence client.Fence) {
	f, err := q.dir.OpenFile("journal", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	_, _ = fmt.Fprintln(f, item, what, fence)
}
