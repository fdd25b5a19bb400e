package testapp

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/devtools/journal"
)

func testimony(t *testing.T, path string) journal.Report {
	t.Helper()
	r, err := journal.Check([]journal.File{{Path: path}}, slices.Values([]string{"1"}))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestConduct(t *testing.T) {
	tests := map[string]struct {
		conduct string
		attempt int
		cut     bool // the context is cancelled after 10 ms
		wantErr string
		want    func(journal.Report) uint64 // the one that has to be 1
	}{
		"works":                  {want: func(r journal.Report) uint64 { return r.Done }},
		"is cut":                 {cut: true, conduct: "slow:1h", wantErr: "key is lost", want: func(r journal.Report) uint64 { return r.Cancelled }},
		"fails":                  {conduct: "fail:2", attempt: 2, wantErr: "told to fail", want: func(r journal.Report) uint64 { return r.Failed }},
		"fails no more":          {conduct: "fail:2", attempt: 3, want: func(r journal.Report) uint64 { return r.Done }},
		"rejects":                {conduct: "reject", wantErr: "told to reject", want: func(r journal.Report) uint64 { return r.Rejected }},
		"is slow":                {conduct: "slow:5ms", want: func(r journal.Report) uint64 { return r.Done }},
		"is deaf":                {conduct: "deaf:50ms", cut: true, want: func(r journal.Report) uint64 { return r.Done }},
		"is told nonsense":       {conduct: "dance", wantErr: "no such conduct", want: func(r journal.Report) uint64 { return r.Failed }},
		"is told half a conduct": {conduct: "slow", wantErr: "no such conduct", want: func(r journal.Report) uint64 { return r.Failed }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "journal")
				file, err := journal.Create(path)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				w := New(Config{WorkMin: time.Millisecond, WorkMax: 3 * time.Millisecond}, file)
				ctx := t.Context()
				if test.cut {
					var cancel context.CancelCauseFunc
					ctx, cancel = context.WithCancelCause(ctx)
					defer time.AfterFunc(10*time.Millisecond, func() { cancel(client.ErrKeyLost) }).Stop()
				}
				err = w.Work(ctx, Event{Name: "1", Key: "k", Attempt: test.attempt, Conduct: test.conduct})
				if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
					t.Errorf("error = %v, want %q", err, test.wantErr)
				}
				if r := testimony(t, path); test.want(r) != 1 || r.Started != 1 || r.Unfinished != 0 {
					t.Errorf("the journal has %+v", r)
				}
			})
		})
	}
}

func TestPanicIsWrittenDown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	file, err := journal.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := New(Config{}, file)
	defer func() {
		if r, ok := recover().(error); !ok || !errors.Is(r, errPanic) {
			t.Errorf("recovered %v, want %v", r, errPanic)
		}
		if r := testimony(t, path); r.Failed != 1 || r.Unfinished != 0 {
			t.Errorf("the journal has %+v, want one failure", r)
		}
	}()
	_ = w.Work(t.Context(), Event{Name: "1", Key: "k", Attempt: 1, Conduct: "panic:1"})
}

func TestNoWorkWithoutAJournal(t *testing.T) {
	file, err := journal.Create(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	w := New(Config{}, file)
	if err := w.Work(t.Context(), Event{Name: "1", Key: "k", Attempt: 1}); err == nil || w.Over() != 0 {
		t.Errorf("error = %v after %d handlings, want one and none", err, w.Over())
	}
}
