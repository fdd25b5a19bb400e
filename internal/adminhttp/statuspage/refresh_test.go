//go:build !race

package statuspage

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ringfence/router/internal/report"
)

// refresh is the work of the asked member for one refresh: the answers of all members are decoded, joined, judged and encoded.
func refresh(b testing.TB, answers [][]byte, lists [][]byte, g *group) int {
	for i, status := range decoded[report.Status](b, answers) {
		g.members.Members[i].Status = status
	}
	for _, which := range []string{"", "failing", "hot"} {
		at := report.KeysAt{}
		for _, one := range decoded[report.KeysAt](b, lists) {
			at.Keys, at.Counts.Selected = append(at.Keys, one.Keys...), at.Counts.Selected+200
		}
		at.Bound(report.KeysQuestion{Which: which, Limit: worstMax})
		g.keys[which] = report.Keys{Keys: at.Keys, Cut: at.Cut, Counts: report.KeyCounts{Keys: 10_000, Waiting: 9_992, Running: 8, Failing: 1}}
	}
	parts, err := encode(newSnapshot(look(b.Context(), g, true, nil)))
	if err != nil {
		b.Fatal(err)
	}
	return len(join(parts))
}

// decoded decodes what members have answered.
func decoded[T any](b testing.TB, answers [][]byte) []*T {
	all := make([]*T, len(answers))
	for i, answer := range answers {
		all[i] = new(T)
		if err := json.Unmarshal(answer, all[i]); err != nil {
			b.Fatal(err)
		}
	}
	return all
}

// busyGroup returns a group of 50 members with 10,000 waiting keys, and what its members answer.
func busyGroup(b testing.TB) (answers, lists [][]byte, g *group) {
	g = crowd(50, 10_000)
	for i := range g.members.Members {
		m := &g.members.Members[i]
		answer, err := json.Marshal(m.Status)
		if err != nil {
			b.Fatal(err)
		}
		list := report.KeysAt{}
		for j := range worstMax {
			list.Keys = append(list.Keys, report.ListedKey{
				Hash: fmt.Sprintf("%016x", 1000*i+j), Key: fmt.Sprintf("user-%d-%d", i, j), Owner: m.Name, At: m.Name, Wait: "slot", Seconds: 2, Age: float64(j), Behind: j, EventSeconds: float64(j),
			})
		}
		keys, err := json.Marshal(list)
		if err != nil {
			b.Fatal(err)
		}
		answers, lists = append(answers, answer), append(lists, keys)
	}
	return answers, lists, g
}

// Under 10,000 waiting keys and 50 members a refresh takes the asked member at most three times as long as decoding the answers takes alone, which is the least that it must do.
// make page runs this test. Other processes may disturb some of the tries.
func TestARefreshIsQuick(t *testing.T) {
	answers, lists, g := busyGroup(t)
	whole, decoding, size := time.Hour, time.Hour, 0
	for try := 0; try < 10 || whole > 3*decoding && try < 100; try++ {
		begun := time.Now()
		size = refresh(t, answers, lists, g)
		whole = min(whole, time.Since(begun))
		begun = time.Now()
		decoded[report.Status](t, answers)
		for range 3 {
			decoded[report.KeysAt](t, lists)
		}
		decoding = min(decoding, time.Since(begun))
	}
	if whole > 3*decoding || size > 256<<10 {
		t.Errorf("a refresh takes %v, decoding alone %v, and has %d bytes; want at most three times as long and 256 KiB", whole, decoding, size)
	}
	t.Logf("a refresh takes %v, decoding alone %v, and has %d bytes", whole, decoding, size)
}

func BenchmarkRefresh(b *testing.B) {
	answers, lists, g := busyGroup(b)
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(refresh(b, answers, lists, g)))
	}
}
