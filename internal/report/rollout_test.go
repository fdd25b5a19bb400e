package report

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
)

// telling is a member that knows of moves.
type telling struct {
	aLocal
	words MoveWords
}

func (l telling) Members() []Member {
	return []Member{{Name: "a", Incarnation: "a1", Reach: ReachSelf}}
}
func (l telling) Rollout() RolloutAt { return RolloutAt{Words: l.words} }

// TestRollouts: words about one move are joined, moves that follow each other are one rollout, and a member that lost partitions and has no
// word is named.
func TestRollouts(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2026, 11, 25, 12, 0, second, 0, time.UTC) }
	words := MoveWords{
		{Member: "b", Incarnation: "b1", At: "1:9", Time: at(1), Reason: "leave a, join d", Partitions: 10, From: []string{"a"}, Gained: 6, Waited: 0.2},
		{Member: "c", Incarnation: "c1", At: "1:9", Time: at(0), Reason: "leave a, join d", Partitions: 10, From: []string{"a"}, Gained: 4, Waited: 0.1},
		{Member: "a", Incarnation: "a0", At: "1:9", Time: at(2), Reason: "leave a, join d", Partitions: 10, From: []string{"a"}, Lost: 10, Answered: 3, Cut: 1},
		{Member: "c", Incarnation: "c1", At: "1:12", Time: at(4), Reason: "silent b", Partitions: 6, From: []string{"b"}, Gained: 6, Waited: 0.1, Silent: 2.1, Unanswered: 5},
		{Member: "a", Incarnation: "a1", At: "1:90", Time: at(4).Add(RolloutGap), Reason: "join e", Partitions: 1, From: []string{"a"}, Lost: 1},
	}
	page := Handlers(NewGroup(telling{words: words}, nil, insecure.NewCredentials()), func(*http.Request) bool { return false })["GET /v1/rollouts"]
	ask := func(query string) (r Rollouts, code int) {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/rollouts"+query, nil))
		if w.Code == http.StatusOK {
			if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
		}
		return r, w.Code
	}
	if r, _ := ask(""); len(r.Rollouts) != 1 || r.Rollouts[0].Moves[0].Reason != "join e" {
		t.Errorf("the newest is %+v", r)
	}
	r, _ := ask("?last=5")
	if len(r.Rollouts) != 2 {
		t.Fatalf("%+v, want two", r)
	}
	one := r.Rollouts[1]
	if want := (MoveSum{Partitions: 16, Pause: 2.1, Answered: 3, Cut: 1, Unanswered: 5}); one.MoveSum != want || len(one.Moves) != 2 || !one.Begin.Equal(at(0)) || !one.End.Equal(at(4)) {
		t.Errorf("%+v, want %+v", one, want)
	}
	if !slices.Equal(one.Unknown, []string{"b"}) || len(one.Moves[0].Unknown) > 0 || len(one.Moves[0].Words) != 3 {
		t.Errorf("unknown is %q, and of the moves %+v", one.Unknown, one.Moves)
	}
	var came []string
	for _, m := range one.Members {
		came = append(came, strings.Repeat("left ", m.Left)+strings.Repeat("gone ", m.Gone)+strings.Repeat("joined ", m.Joined)+m.Name)
	}
	if got := strings.Join(came, ", "); got != "left a, gone b, c, joined d" {
		t.Errorf("the members are %s", got)
	}
	for _, query := range []string{"?last=0", "?last=101", "?last=x"} {
		if _, code := ask(query); code != http.StatusBadRequest {
			t.Errorf("%s: %d", query, code)
		}
	}
}

// TestRolloutsSumUp: moves that follow each other are one rollout, however long it takes, and its sums and those of its members are of all words.
func TestRolloutsSumUp(t *testing.T) {
	begin := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * (RolloutGap - time.Second)) }
	words := MoveWords{
		{Member: "b", Incarnation: "b1", At: "1:1", Time: at(0), Reason: "unreachable z", Partitions: 3, From: []string{"z", "y"}, Gained: 3, Waiting: 1, Waited: 1},
		{Member: "a", Incarnation: "a2", At: "1:1", Time: at(0).Add(time.Second), Reason: "unreachable z", Partitions: 3, From: []string{"y", "x"}, Forced: 2},
		{Member: "a", Incarnation: "a1", At: "1:1", Time: at(0).Add(time.Second), Reason: "unreachable z", Partitions: 3},
		{Member: "b", Incarnation: "b1", At: "1:2", Time: at(1), Reason: "join c", Partitions: 2, From: []string{"y"}, Lost: 2, Waiting: 2, Cut: 1, Forced: 1},
		{Member: "b", Incarnation: "b1", At: "1:3", Time: at(2), Reason: "leave c", Partitions: 1, Gained: 1, Silent: 2, Answered: 4, Unanswered: 5},
	}
	all := rolloutsOf(movesOf(words))
	if len(all) != 1 || len(all[0].Moves) != 3 {
		t.Fatalf("%+v, want one rollout of three moves", all)
	}
	r := all[0]
	if want := (MoveSum{Partitions: 6, Waiting: 3, Pause: 2, Answered: 4, Cut: 1, Forced: 3, Unanswered: 5}); r.MoveSum != want {
		t.Errorf("the rollout is %+v, want %+v", r.MoveSum, want)
	}
	if first := r.Moves[0]; !slices.Equal(first.Unknown, []string{"x", "y", "z"}) || first.Words[0].Incarnation != "a1" || first.Words[1].Incarnation != "a2" || first.Words[2].Member != "b" {
		t.Errorf("the first move is %+v", first)
	}
	if !slices.Equal(r.Unknown, []string{"x", "y", "z"}) {
		t.Errorf("unknown are %q", r.Unknown)
	}
	want := []RolloutMember{
		{Name: "a", MoveSum: MoveSum{Forced: 2}},
		{Name: "b", Gained: 4, Lost: 2, MoveSum: MoveSum{Partitions: 6, Waiting: 3, Pause: 2, Answered: 4, Cut: 1, Forced: 1, Unanswered: 5}},
		{Name: "c", Left: 1, Joined: 1},
		{Name: "z", Gone: 1},
	}
	if !slices.Equal(r.Members, want) {
		t.Errorf("the members are %+v, want %+v", r.Members, want)
	}
}

// inGroup is a member that knows of moves, and of others.
type inGroup struct {
	telling
	others []Member
}

func (l inGroup) Members() []Member { return append(l.telling.Members(), l.others...) }

// TestWordsOfOthers: of a member's own word and the copies that others have of it, its own counts. A member whose words are not those of a member is silent.
func TestWordsOfOthers(t *testing.T) {
	word := func(member string, lost int) MoveWord {
		return MoveWord{Member: member, Incarnation: member + "1", At: "1:1", Reason: "join c", Lost: lost}
	}
	serve := func(words ...MoveWord) string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		NewServer(telling{words: words}, nil).Register(server)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		return listener.Addr().String()
	}
	hostile := word("c", 7)
	hostile.Reason = strings.Repeat("x", moveTextMax+1)
	g := NewGroup(inGroup{telling{words: MoveWords{word("a", 1), word("b", 8)}}, []Member{
		{Name: "b", Incarnation: "b1", Reach: "alive", Address: serve(word("a", 9), word("b", 2))},
		{Name: "c", Incarnation: "c1", Reach: "alive", Address: serve(hostile)},
	}}, nil, insecure.NewCredentials())
	r := g.Rollouts(t.Context(), 1)
	if len(r.Silent) != 1 || !strings.HasPrefix(r.Silent[0], "c: report: a text of ") {
		t.Errorf("silent are %q", r.Silent)
	}
	if len(r.Rollouts) != 1 || len(r.Rollouts[0].Members) != 3 || r.Rollouts[0].Members[0].Lost != 1 || r.Rollouts[0].Members[1].Lost != 2 {
		t.Errorf("the rollouts are %+v, want those by the own words of a and b", r.Rollouts)
	}
}

// TestNewWordsReplaceOldOnes: a word of the same member about the same move takes the place of the earlier one. The newest words are kept.
func TestNewWordsReplaceOldOnes(t *testing.T) {
	var words MoveWords
	for i := range MoveWordsMax + 1 {
		words = words.Add(MoveWord{Incarnation: "a1", At: strconv.Itoa(i)})
	}
	words = words.Add(MoveWord{Incarnation: "a1", At: "1", Lost: 5}, MoveWord{Incarnation: "a1", At: "9", Lost: 6})
	if len(words) != MoveWordsMax || words[0].At != "1" || words[0].Lost != 5 || words[8].Lost != 6 {
		t.Errorf("%d words, the first is %+v", len(words), words[0])
	}
	words[0].Reason = strings.Repeat("x", moveWordBytes/2)
	if sent, err := DecodeMoves(EncodeMoves(words)); err != nil || len(sent) != MoveWordsMax/2 || sent[len(sent)-1].At != strconv.Itoa(MoveWordsMax) {
		t.Errorf("%d words are handed over, %v", len(sent), err)
	}
}

// TestHostileMoves: words of others are bounded in number and size.
func TestHostileMoves(t *testing.T) {
	long := strings.Repeat("x", moveTextMax+1)
	for name, text := range map[string][]byte{
		"no JSON":        []byte("{"),
		"too large":      bytes.Repeat([]byte(" "), moveWordBytes+1),
		"too many words": manyMoves(MoveWordsMax + 1),
		"a long reason":  []byte(`[{"reason":"` + long + `"}]`),
		"a long member":  []byte(`[{"member":"` + long + `"}]`),
		"a long one of":  []byte(`[{"incarnation":"` + long + `"}]`),
		"a long record":  []byte(`[{"position":"` + long + `"}]`),
		"no words":       []byte(`{}`),
		"words of text":  []byte(`["a"]`),
		"much space":     []byte(strings.Repeat(" ", moveWordBytes) + "[]"),
		"a long name":    []byte(`[{"from":["` + long + `"]}]`),
		"many members":   []byte(`[{"from":["a"` + strings.Repeat(`,"a"`, moveFromMax) + `]}]`),
	} {
		if words, err := DecodeMoves(text); err == nil {
			t.Errorf("%s: %d words are taken", name, len(words))
		}
	}
	w := MoveWord{Reason: long, From: make([]string, 2*moveFromMax)}
	w.Clip()
	if words, err := DecodeMoves(EncodeMoves(MoveWords{w})); err != nil || len(words) != 1 {
		t.Errorf("a clipped word: %+v, %v", words, err)
	}
	w = MoveWord{Reason: "x" + strings.Repeat("é", moveTextMax)} // any text that an Epoch has
	w.Clip()
	if words, err := DecodeMoves(EncodeMoves(MoveWords{w})); err != nil || len(words) != 1 {
		t.Errorf("a word clipped within a character: %+v, %v", words, err)
	}
	all := MoveWords(slices.Repeat([]MoveWord{w}, MoveWordsMax))
	if text := EncodeMoves(all); len(text) > moveWordBytes/2 {
		t.Errorf("%d bytes", len(text))
	}
	if _, err := DecodeMoves(EncodeMoves(all)); err != nil {
		t.Error(err)
	}
}

// manyMoves returns so many words.
func manyMoves(n int) []byte {
	text, _ := json.Marshal(make([]MoveWord, n))
	return text
}

// TestALongAnswerAboutMovesFits: in a large group with long names, the newest words fit into a report.
func TestALongAnswerAboutMovesFits(t *testing.T) {
	var words MoveWords
	for i := range MoveWordsMax {
		w := MoveWord{Member: strings.Repeat("m", 253), Incarnation: "i1", At: "1:" + strconv.Itoa(i), Reason: "join a"}
		for range moveFromMax {
			w.From = append(w.From, strings.Repeat("n", 60))
		}
		words = append(words, w)
	}
	answer, err := NewServer(telling{words: words}, nil).Report(t.Context(), &reportv1.ReportRequest{Subject: reportv1.Subject_SUBJECT_ROLLOUT})
	if err != nil || len(answer.GetJson()) > reportBytesMax {
		t.Fatalf("%d bytes, want %d at most: %v", len(answer.GetJson()), reportBytesMax, err)
	}
	var at RolloutAt
	if err := json.Unmarshal(answer.GetJson(), &at); err != nil || len(at.Words) < MoveWordsMax/4 || at.Words[len(at.Words)-1].At != words[MoveWordsMax-1].At {
		t.Errorf("%d words, %v", len(at.Words), err)
	}
}

// TestRolloutAtItsBound: the words of an answer have no more bytes than may be, however long one is.
func TestRolloutAtItsBound(t *testing.T) {
	at := RolloutAt{Words: MoveWords{{At: "1"}, {At: "2", Reason: strings.Repeat("x", moveReportBytes/2)}, {At: "3", Reason: strings.Repeat("x", moveReportBytes/3)}, {At: "4"}}}
	if at.Bound(); len(at.Words) != 4 {
		t.Errorf("%d words are left of those that fit", len(at.Words))
	}
	at.Words[1].Reason += at.Words[1].Reason
	if at.Bound(); len(at.Words) != 2 || at.Words[0].At != "3" {
		t.Errorf("%d words are left, want those after the long one", len(at.Words))
	}
}

// TestHostileMovesTakeLittleMemory: an answer with far more words than there may be is not decoded: it would take a hundred times its bytes.
func TestHostileMovesTakeLittleMemory(t *testing.T) {
	text := []byte(`{"words":[{}` + strings.Repeat(`,{}`, reportBytesMax/3-10) + `]}`)
	var at RolloutAt
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := json.Unmarshal(text, &at)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 4*reportBytesMax {
		t.Errorf("%d words take %d MiB, %v", len(at.Words), took>>20, err)
	}
	for _, text := range []string{`{}`, `{"words":null}`, `{"words":[]}`} {
		if err := json.Unmarshal([]byte(text), &at); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Members that leave hand over words of any length that may be: all that one member keeps of them fits into its answer. The newest
// count.
func TestWordsAreBoundedByTheirBytes(t *testing.T) {
	var all MoveWords
	var before int
	for n := range MoveWordsMax {
		w := MoveWord{Member: "m", Incarnation: "i", At: strconv.Itoa(n), Reason: strings.Repeat("r", moveTextMax)}
		for range moveFromMax {
			w.From = append(w.From, strings.Repeat("f", moveTextMax))
		}
		if err := w.check(); err != nil {
			t.Fatal(err)
		}
		all, before = all.Add(w), len(all)
		if newest := all[len(all)-1].At; newest != w.At {
			t.Fatalf("the newest word is %s, want %s", newest, w.At)
		}
	}
	if text, err := json.Marshal(all); err != nil || len(text) > moveReportBytes+moveReportBytes/8 || len(all) < before || len(all) < 40 {
		t.Errorf("%d words, %d before, of %d bytes, want at most about %d: %v", len(all), before, len(text), moveReportBytes, err)
	}
}
