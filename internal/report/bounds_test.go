package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/base/event"
	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
	"github.com/ringfence/router/ring"
)

// local counts the calls.
type local struct{ statuses, partitions, keys atomic.Int64 }

func (l *local) Status() Status {
	l.statuses.Add(1)
	return Status{View: View{Member: "a"}}
}

func (l *local) Partitions(context.Context) Partitions {
	l.partitions.Add(1)
	return Partitions{View: View{Member: "a"}, Partitions: make([]Partition, ring.Partitions)}
}

func (l *local) Key(context.Context, event.Key) KeyAt {
	l.keys.Add(1)
	return KeyAt{}
}

func (l *local) Keys(context.Context, KeysQuestion) KeysAt {
	l.keys.Add(1)
	return KeysAt{}
}

func (l *local) Members() []Member                               { return []Member{{Name: "a", Reach: ReachSelf}} }
func (l *local) History(context.Context, ring.KeyHash) HistoryAt { return HistoryAt{} }
func (l *local) Rollout() RolloutAt                              { return RolloutAt{} }
func (l *local) Owner(ring.Partition) (*Member, int64)           { return nil, 0 }

// However many peers ask, a member makes its report four times a second at most.
func TestPeersShareAnAnswer(t *testing.T) {
	l := new(local)
	s := NewServer(l, nil)
	var asking sync.WaitGroup
	for range 60 {
		asking.Go(func() {
			for _, subject := range []reportv1.Subject{reportv1.Subject_SUBJECT_STATUS, reportv1.Subject_SUBJECT_PARTITIONS} {
				if answer, err := s.Report(t.Context(), &reportv1.ReportRequest{Subject: subject}); err != nil || len(answer.GetJson()) == 0 {
					t.Errorf("%v: %v", subject, err)
				}
			}
		})
	}
	asking.Wait()
	if l.statuses.Load() > 20 || l.partitions.Load() > 20 { // 60 each without; more than one each if this takes long
		t.Errorf("60 questions were worked out %d and %d times", l.statuses.Load(), l.partitions.Load())
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.status.turn <- struct{}{} // occupies the only turn
	if _, err := s.Report(gone, &reportv1.ReportRequest{Subject: reportv1.Subject_SUBJECT_STATUS}); err == nil {
		t.Error("a caller that has gone gets an answer")
	}
}

// Queries about keys get their turn; a query that would wait for too long is refused.
func TestKeyQuestionsTakeTurns(t *testing.T) {
	l := new(local)
	page := Handlers(NewGroup(l, nil, insecure.NewCredentials()), func(*http.Request) bool { return false })["GET /v1/keys"]
	ask := func(ctx context.Context) int {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/v1/keys?key=a", nil))
		return w.Code
	}
	if code := ask(t.Context()); code != http.StatusOK {
		t.Errorf("the first question: %d", code)
	}
	var refused atomic.Int64
	var asking sync.WaitGroup
	for range 300 {
		asking.Go(func() {
			switch code := ask(t.Context()); code {
			case http.StatusOK:
			case http.StatusTooManyRequests:
				refused.Add(1)
			default:
				t.Errorf("a question gets %d", code)
			}
		})
	}
	asking.Wait()
	if refused.Load() == 0 || l.keys.Load() == 0 {
		t.Errorf("%d were refused and %d answered of 300 at once", refused.Load(), l.keys.Load())
	}
	if codeOf(errors.Join(errTooMany)) != http.StatusTooManyRequests {
		t.Error("the error does not say that there are too many")
	}
}

// empty is the shortest item of a list of that name.
func empty(list string) string {
	if list == "says" || list == "from" {
		return `""`
	}
	return "{}"
}

// TestLongListsOfPeersAreNotRead: the longest answer of a peer takes no more memory than a list of the length that may be.
func TestLongListsOfPeersAreNotRead(t *testing.T) {
	words := map[string]any{
		"keys": new(KeysAt), "steps": new(HistoryAt), "partitions": new(Partitions),
		"skips": new(KeyAt), "blockers": new(KeyAt), "waiting_calls": new(KeyAt), "held": new(KeyAt), "says": new(KeyAt), "from": new(MoveWord),
		"schedules": new(Status), "unchecked_workers": new(Status), "listeners": new(Status), "checks": new(Status), "bounds": new(Visits), "newest": new(Audit),
	}
	for name, word := range words {
		text := []byte(`{"` + name + `":[` + strings.Repeat(empty(name)+",", reportBytesMax/3-100) + empty(name) + `]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := json.Unmarshal(text, word)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errTooLong) || took > 16<<20 {
			t.Errorf("%s: %v, and %d MB for an answer of %d", name, err, took>>20, len(text)>>20)
		}
	}
	for name, word := range words {
		text := `{"` + name + `":[` + empty(name) + `,` + empty(name) + `]}`
		if err := json.Unmarshal([]byte(text), word); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestListsOfPeersAtTheirBounds: the longest list of each kind is read whole, and one item more is refused.
func TestListsOfPeersAtTheirBounds(t *testing.T) {
	for name, list := range map[string]struct {
		most int
		word func() (word any, length func() int)
	}{
		"keys":       {KeysLimitMax, func() (any, func() int) { w := new(KeysAt); return w, func() int { return len(w.Keys) } }},
		"steps":      {HistoryStepsMax, func() (any, func() int) { w := new(HistoryAt); return w, func() int { return len(w.Steps) } }},
		"partitions": {ring.Partitions, func() (any, func() int) { w := new(Partitions); return w, func() int { return len(w.Partitions) } }},
		"skips":      {SkipsMax, func() (any, func() int) { w := new(KeyAt); return w, func() int { return len(w.Skips) } }},
		"schedules":  {SchedulesMax, func() (any, func() int) { w := new(Status); return w, func() int { return len(w.Schedules) } }},
		"words":      {MoveWordsMax, func() (any, func() int) { w := new(RolloutAt); return w, func() int { return len(w.Words) } }},
		"says":       {listMax, func() (any, func() int) { w := new(KeyAt); return w, func() int { return len(w.Says) } }},
	} {
		text := func(n int) []byte {
			return []byte(`{"` + name + `":[` + strings.TrimSuffix(strings.Repeat(empty(name)+",", n), ",") + `]}`)
		}
		word, length := list.word()
		if err := json.Unmarshal(text(list.most), word); err != nil || length() != list.most {
			t.Errorf("%s: %d of %d are read: %v", name, length(), list.most, err)
		}
		if err := json.Unmarshal([]byte(`{"`+name+`":null}`), word); err != nil || length() != 0 {
			t.Errorf("%s: %d are left of none: %v", name, length(), err)
		}
		if err := json.Unmarshal([]byte(`{"`+name+`":[]}`), word); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if again, err := json.Marshal(word); err != nil || bytes.Contains(again, []byte(`"`+name+`":null`)) {
			t.Errorf("%s: an empty list becomes none: %v", name, err)
		}
		for _, bad := range []string{`{}`, `1`, `[[]]`} {
			if err := json.Unmarshal([]byte(`{"`+name+`":`+bad+`}`), word); err == nil {
				t.Errorf("%s: %s is read", name, bad)
			}
		}
		if err := json.Unmarshal(text(list.most+1), word); !errors.Is(err, errTooLong) {
			t.Errorf("%s: %d items: %v", name, list.most+1, err)
		}
	}
}
