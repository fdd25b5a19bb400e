package statuspage

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/report"
)

// everybody is a caller without rights.
var everybody = Callers{
	MayNameKeys: func(*http.Request) bool { return false }, MayAct: func(*http.Request) bool { return false },
	Ending: func(*http.Request) <-chan struct{} { return nil },
}

// serve returns the handler of the page of a group.
func serve(group Group, callers Callers) http.Handler {
	mux := http.NewServeMux()
	for pattern, page := range New(group, callers).Handlers() {
		mux.Handle(pattern, page)
	}
	return mux
}

// The page runs its own script and style alone, needs nothing from elsewhere, and has no way to make markup of a text.
func TestTheDocumentIsSafe(t *testing.T) {
	w := httptest.NewRecorder()
	serve(&group{}, everybody).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	html, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	if w.Code != 200 || !strings.HasSuffix(strings.TrimSpace(html), "</html>") || strings.Contains(html, "/*page.") {
		t.Fatalf("status %d, %d bytes", w.Code, len(html))
	}
	inline := regexp.MustCompile(`(?s)<(script|style)>(.*?)</`).FindAllStringSubmatch(html, -1)
	if len(inline) != 2 || strings.Count(html, "<script") != 1 {
		t.Fatalf("%d scripts and styles, want one of each", len(inline))
	}
	for _, one := range inline {
		if want := one[1] + "-src '" + digest(one[2]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("the policy %q has no %s", policy, want)
		}
	}
	for _, want := range []string{"default-src 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q has no %s", policy, want)
		}
	}
	for _, bad := range []string{"unsafe", "http:", "https:", "*"} {
		if strings.Contains(policy, bad) {
			t.Errorf("the policy %q allows %s", policy, bad)
		}
	}
	if bad := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|DOMParser|document\.write|eval\(|new Function|localStorage|sessionStorage|document\.cookie`).FindString(pageJS); bad != "" {
		t.Errorf("the script uses %s", bad)
	}
	if bad := regexp.MustCompile(`(?:src|href|action)="?(?:https?:)?//|url\(|@import|\son\w+=|\sstyle=`).FindString(pageHTML + pageCSS); bad != "" {
		t.Errorf("the page has %q", bad)
	}
}

// hostile is a group whose every text is an attack.
func hostile() *group {
	const evil = "<img src=x onerror=alert(1)>\u202e\x1b[2J</script>"
	m := but(healthy(evil, 3), func(s *report.Status) {
		s.Group, s.Version, s.Position = evil, evil, evil
		s.Listeners = []report.Listener{{Name: "peer", ProtectedBy: evil, Exposed: true}}
		s.Checks = []report.Check{{Name: evil, Error: strings.Repeat(evil, 1000)}}
	})
	key := report.ListedKey{Hash: "00000000000000aa", Key: evil, Owner: evil, At: evil + "2", Wait: evil, With: evil, Seconds: 99, Failures: 5, Behind: 3}
	return &group{
		parts:   map[string][]report.Partition{"": owned(4093, "open", m.Name)},
		members: report.Members{View: report.View{Member: evil}, Members: []report.Member{m}, Disagreements: []string{evil}},
		keys: map[string]report.Keys{
			"": {Keys: []report.ListedKey{key}, Counts: report.KeyCounts{Failing: 1}, Silent: []string{evil}}, "failing": {Keys: []report.ListedKey{key}}, "hot": {Keys: []report.ListedKey{key}},
		},
	}
}

// Texts of members and producers are made printable and bounded: what the page shows cannot change the order of its letters either.
func TestTextsAreMadePrintable(t *testing.T) {
	w := httptest.NewRecorder()
	serve(hostile(), everybody).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/page", nil))
	var all map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || w.Code != 200 {
		t.Fatalf("status %d: %v", w.Code, err)
	}
	texts := 0
	var look func(where string, value any)
	look = func(where string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, inner := range value {
				look(where+"."+name, inner)
			}
		case []any:
			for _, inner := range value {
				look(where, inner)
			}
		case string:
			texts++
			if exact := strings.HasSuffix(where, ".key") || strings.HasSuffix(where, ".color"); !exact && (strings.ContainsAny(value, "\x1b\u202e\n") || len(value) > sentenceMax+200) {
				t.Errorf("%s is %.100q, of %d bytes", where, value, len(value))
			}
		}
	}
	look("", all)
	if texts < 60 {
		t.Errorf("only %d texts were looked at", texts)
	}
	if n := len(all["ring"].(map[string]any)["map"].([]any)); n != 4093 {
		t.Errorf("%d partitions, want 4093", n)
	}
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers %v", w.Header())
	}
}

// crowd is a group of many members, and of many keys of which one is stuck, one a poison pill and one hot.
func crowd(members, keys int) *group {
	g := &group{keys: map[string]report.Keys{}}
	var names []string
	for i := range members {
		m := healthy(fmt.Sprintf("orders-%02d", i), 4093/members)
		m.Status.Rates = report.Rates{Accepted: 41, Done: 40, Retried: 1.5, Rejected: 0.02}
		names, g.members.Members = append(names, m.Name), append(g.members.Members, m)
	}
	g.members.View = report.View{Member: names[0], Position: "12:3456", Epoch: "12:3000"}
	g.parts = map[string][]report.Partition{"": owned(4093, "open", names...)}
	counts := report.KeyCounts{Keys: keys, Waiting: keys - 8, Running: 8, Failing: 1, Selected: keys}
	now := 0.0
	pill := report.ListedKey{Hash: "00000000000000bb", Key: "user-pill", Partition: 7, Owner: names[0], At: names[0], Wait: "retry", RetryIn: 7.9, Seconds: 0.4, Age: 62, Failures: 5, Behind: 2}
	worst := []report.ListedKey{
		{Hash: "00000000000000aa", Key: "user-stuck", Partition: 9, Owner: names[1%members], At: names[1%members], Wait: "handler", Seconds: 124, Age: 124, Behind: 3, Worker: 1},
	}
	for i := 1; i < worstMax; i++ {
		worst = append(worst, report.ListedKey{Hash: fmt.Sprintf("%016x", 1000+i), Key: fmt.Sprintf("user-%d", i), Owner: names[i%members], At: names[i%members], Wait: "slot", Seconds: 2, Age: 3, Behind: 1})
	}
	g.keys[""] = report.Keys{Counts: counts, Keys: worst, Cut: keys - worstMax}
	g.keys["failing"] = report.Keys{Counts: counts, Keys: []report.ListedKey{pill}}
	g.keys["hot"] = report.Keys{Counts: counts, Keys: []report.ListedKey{
		{Hash: "00000000000000cc", Key: "user-hot", Partition: 8, Owner: names[0], At: names[0], Wait: "handler", Seconds: 0.1, Rate: 12.4, Busy: 1, OutgrowsIn: &now, Behind: 412},
		{Hash: "00000000000000dd", Key: "user-warm", Partition: 8, Owner: names[0], At: names[0], Wait: "handler", Seconds: 0.1, Rate: 2, Busy: 0.2},
	}}
	return g
}

// The first thing on the page is what is wrong: the stuck, the failing and the hot key among ten thousand, each with its reason.
func TestProblemsComeFirst(t *testing.T) {
	v := newSnapshot(look(t.Context(), crowd(50, 10_000), true, nil))
	var got []string
	for _, p := range v.Problems.Rows {
		got = append(got, p.Class+" "+p.Title+" "+p.Key.Key+": "+p.Text)
	}
	want := []string{
		"bad Stuck key user-stuck: partition 9 at orders-01: it waits for the handler (worker 1), for 2m4s; 3 wait behind it",
		"bad Failing key user-pill: partition 7 at orders-00: it waits for its next attempt, due in 7.9s; its event has failed 5 times; 2 wait behind it",
		"busy Hot key user-hot: partition 8 at orders-00: 12.4/s, busy 100 %. It gets more events than can be handled one at a time.",
	}
	if !slices.Equal(got, want) {
		t.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !strings.HasPrefix(v.Worst.Note, "The 50 worst of 10,000. ") {
		t.Errorf("the note says %q", v.Worst.Note)
	}
	if tile := tileOf(t, v, "Events handled"); tile.Value != "2,000/s" || tile.Note != "2,050/s taken in" {
		t.Errorf("%+v", tile)
	}
	if tile := tileOf(t, v, "Oldest event"); tile.Class != classBad {
		t.Errorf("with a stuck key: %+v", tile)
	}
}

// In the narrow table of hot keys a forecast is a few words, which the note below it explains once.
func TestForecastsAreShort(t *testing.T) {
	g := crowd(1, 100)
	soon := 90.0
	g.keys["hot"].Keys[1].OutgrowsIn = &soon
	g.keys["hot"] = report.Keys{Keys: append(g.keys["hot"].Keys, report.ListedKey{Hash: "00000000000000ee", Key: "user-calm", Rate: 1, Busy: 0.1})}
	v := newSnapshot(look(t.Context(), g, true, nil))
	var got []string
	for _, k := range v.Hot.Rows {
		got = append(got, k.Key+" "+k.Forecast)
	}
	if want := []string{"user-hot too many now", "user-warm too many in 1m30s", "user-calm "}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if !strings.Contains(v.Hot.Note, "Too many: the key is busy all the time, and gets more events than can be handled one at a time") {
		t.Errorf("the note says %q", v.Hot.Note)
	}
}

// Callers without the right see hashes, as everywhere.
func TestKeysAreNamedOnlyToWhoMayKnowThem(t *testing.T) {
	for _, named := range []bool{false, true} {
		asked := map[bool]int{}
		var mu sync.Mutex
		g := asking{crowd(1, 100), func(q report.KeysQuestion) {
			mu.Lock()
			asked[q.Named]++
			mu.Unlock()
		}}
		callers := everybody
		callers.MayNameKeys = func(*http.Request) bool { return named }
		serve(g, callers).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/v1/page", nil))
		if asked[named] != 3 || asked[!named] != 0 {
			t.Errorf("who may know keys: %v; asked for %v", named, asked)
		}
	}
}

// asking is a group that tells of questions about keys.
type asking struct {
	*group
	heard func(report.KeysQuestion)
}

func (g asking) Keys(ctx context.Context, q report.KeysQuestion) report.Keys {
	g.heard(q)
	return g.group.Keys(ctx, q)
}

// The names of all keys together are bounded: beyond it a row has the hash alone.
func TestNamesOfKeysAreBounded(t *testing.T) {
	g := crowd(1, 100)
	for i := range g.keys[""].Keys {
		g.keys[""].Keys[i].Key = strings.Repeat("k", 4096)
	}
	v := newSnapshot(look(t.Context(), g, true, nil))
	total := 0
	for _, k := range v.Worst.Rows {
		total += len(k.Key)
		if len(k.Label) > labelMax+len("…") || k.Hash == "" {
			t.Errorf("label %q of %q", k.Label, k.Hash)
		}
	}
	if total == 0 || total > keyBytesMax {
		t.Errorf("%d bytes of keys, want at most %d", total, keyBytesMax)
	}
}

// More of everything is cut, and the page says so.
func TestListsAreBounded(t *testing.T) {
	g := crowd(256, 10_000)
	for i := range g.members.Members[:200] {
		g.members.Members[255-i] = report.Member{Name: g.members.Members[255-i].Name, Listed: true, Reach: "unknown", Error: "refused"}
	}
	for i := range g.keys[""].Keys {
		g.keys[""].Keys[i].Wait, g.keys[""].Keys[i].Seconds = "handler", 99
	}
	v := newSnapshot(look(t.Context(), g, true, nil))
	if len(v.Members.Rows) != membersMax || v.Members.Rows[0].Class != classBad || !strings.HasPrefix(v.Members.Note, "100 of 256 members") {
		t.Errorf("%d members, %q", len(v.Members.Rows), v.Members.Note)
	}
	if p := v.Problems; len(p.Rows) != problemsMax || p.More == 0 {
		t.Errorf("%d problems and %d more", len(p.Rows), p.More)
	}
	if p := v.Problems.Rows[sameMax]; p.Title != "47 more stuck keys" || p.Class != classBad {
		t.Errorf("after three stuck keys: %+v", p)
	}
}

// A stream sends what has changed, at most once a second, and the members are asked once for all who watch.
func TestAStreamSendsWhatHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks sync.Map
		ending := make(chan struct{})
		callers := everybody
		callers.Ending = func(*http.Request) <-chan struct{} { return ending }
		page, begun := New(counted{crowd(2, 10), &looks}, callers), time.Now()
		page.hashed.now = func() clock.Instant { return clock.Instant(1 + time.Since(begun)) }
		events := make([][]map[string]json.RawMessage, 3)
		var streams sync.WaitGroup
		for i := range events {
			streams.Go(func() {
				w := httptest.NewRecorder()
				page.serveEvents(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/page/events", nil))
				lines := bufio.NewScanner(w.Body)
				lines.Buffer(nil, 1<<20)
				for lines.Scan() {
					if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
						var event map[string]json.RawMessage
						if err := json.Unmarshal([]byte(text), &event); err != nil {
							t.Error(err)
						}
						events[i] = append(events[i], event)
					}
				}
			})
		}
		time.Sleep(5500 * time.Millisecond)
		close(ending)
		streams.Wait()
		for _, got := range events {
			if len(got) != 6 || len(got[0]) != 14 || len(got[1]) != 0 {
				t.Fatalf("%d events, the first with %d parts, the second with %d; want 6, with 14 parts and none", len(got), len(got[0]), len(got[1]))
			}
		}
		if n, _ := looks.Load("members"); n != 6 {
			t.Errorf("the members were asked %v times for three streams", n)
		}
		if n, _ := looks.Load("hot"); n != 3 {
			t.Errorf("hot keys were asked for %v times, want every two seconds", n)
		}
	})
}

// counted counts what is asked.
type counted struct {
	*group
	asked *sync.Map
}

func (g counted) add(what string) {
	n, _ := g.asked.LoadOrStore(what, 0)
	g.asked.Store(what, n.(int)+1)
}

func (g counted) Members(ctx context.Context) report.Members {
	g.add("members")
	return g.group.Members(ctx)
}

func (g counted) Keys(ctx context.Context, q report.KeysQuestion) report.Keys {
	g.add(q.Which)
	return g.group.Keys(ctx, q)
}

// Streams are bounded in number and time.
func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New(crowd(1, 10), everybody)
		ask := func() int {
			w := httptest.NewRecorder()
			page.serveEvents(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/page/events", nil))
			return w.Code
		}
		var streams sync.WaitGroup
		begun := time.Now()
		for range streamsMax {
			streams.Go(func() {
				if code := ask(); code != http.StatusOK {
					t.Errorf("a stream gets %d", code)
				}
			})
		}
		synctest.Wait()
		if code := ask(); code != http.StatusTooManyRequests {
			t.Errorf("one stream more gets %d", code)
		}
		streams.Wait()
		if took := time.Since(begun); took != streamMax {
			t.Errorf("the streams ended after %v, want %v", took, streamMax)
		}
		gone, cancel := context.WithCancel(t.Context())
		streams.Go(func() {
			page.serveEvents(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, "GET", "/v1/page/events", nil))
		})
		cancel()
		streams.Wait()
	})
}

// A stream ends before its next event when the rights of its caller have changed, as when the token was replaced. The caller asks again, and gets what it may see then.
func TestAStreamEndsWithTheRightsOfItsCaller(t *testing.T) {
	for name, right := range map[string]func(*Callers) *func(*http.Request) bool{
		"names keys": func(c *Callers) *func(*http.Request) bool { return &c.MayNameKeys },
		"acts":       func(c *Callers) *func(*http.Request) bool { return &c.MayAct },
	} {
		synctest.Test(t, func(t *testing.T) {
			var revoked atomic.Bool
			callers := everybody
			*right(&callers) = func(*http.Request) bool { return !revoked.Load() }
			time.AfterFunc(2500*time.Millisecond, func() { revoked.Store(true) })
			begun, w := time.Now(), httptest.NewRecorder()
			New(crowd(1, 10), callers).serveEvents(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/page/events", nil))
			if took, events := time.Since(begun), strings.Count(w.Body.String(), "data: "); took > 5*time.Second || events != 3 {
				t.Errorf("the caller %s no more after 2.5 s: the stream had %d events and ended after %v", name, events, took)
			}
		})
	}
}

func TestAuditWords(t *testing.T) {
	for name, c := range map[string]struct {
		audit           *report.Audit
		overlaps, order string
	}{
		"off":     {nil, "not looked for", "not measured"},
		"nothing": {&report.Audit{Handlings: 1200, Order: report.Order{FirstHandlings: 1100, Inversions: map[string]uint64{"retry": 0}}}, "0 of 1,200", "0 of 1,100"},
		"some": {
			&report.Audit{Handlings: 5, Overlaps: 2, Order: report.Order{FirstHandlings: 4, Inversions: map[string]uint64{"retry": 1, "re\x1bceived": 2, "move": 1}}},
			"2 of 5", `4 of 4: re\x1bceived 2, move 1, retry 1`,
		},
	} {
		if overlaps, order := auditWords(c.audit); overlaps != c.overlaps || order != c.order {
			t.Errorf("%s: %q, %q", name, overlaps, order)
		}
	}
}
