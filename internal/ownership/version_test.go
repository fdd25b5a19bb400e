package ownership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/identity"
)

// roll replaces every process of a group in turn.
func (w *world) roll(t *testing.T, between time.Duration) {
	t.Helper()
	for _, p := range w.procs {
		if !p.alive {
			continue
		}
		p.kill(true)
		w.start(p.name)
		for until := w.now + time.Minute; w.now < until && w.failure == ""; {
			w.runUntil(w.now + 100*time.Millisecond)
			if w.unrest() == "" && w.now > until-time.Minute+between {
				break
			}
		}
		if w.failure != "" {
			t.Fatal(w.failure)
		}
	}
}

// versions returns in which log version each living process believes the group to decide.
func (w *world) versions() string {
	text := ""
	for _, p := range w.procs {
		if p.alive && p.m.state != nil {
			text += fmt.Sprint(p.m.groupVersion())
		}
	}
	return text
}

// A group of the former release is replaced one by one. While one of its members lives, no member writes records that it cannot
// read, and the way back is open. Once the last one is gone the group decides in version 3, and knows its additions of all members.
func TestRollToANewerLogVersion(t *testing.T) {
	settings := identity.Of(identity.Setting{Name: "key.from", Value: "message_key"})
	for seed := range uint64(12) {
		w := newWorld(seed, DefaultTiming())
		w.brief, w.former, w.lateness = true, true, 0.002
		for i := range 3 {
			w.start(fmt.Sprintf("n%d", i))
		}
		w.runUntil(20 * time.Second)
		w.former, w.version, w.identity = false, LogVersionMin, settings
		w.roll(t, 5*time.Second) // forward, with control_log.version: 1
		if got := w.versions(); got != "111" {
			t.Fatalf("seed %d: log versions %s with control_log.version 1, want 111", seed, got)
		}
		w.former = true
		w.roll(t, 5*time.Second) // and back
		w.former, w.version = false, LogVersionMax
		w.roll(t, 5*time.Second)
		w.runUntil(w.now + 20*time.Second)
		if w.failure != "" {
			t.Fatalf("seed %d: %s", seed, w.failure)
		}
		if got := w.versions(); got != "333" {
			t.Fatalf("seed %d: log versions %s at the end, want 333", seed, got)
		}
		for _, p := range w.procs {
			if !p.alive {
				continue
			}
			if differ := settings.Against(p.m.state.Identity); len(differ) > 0 || p.m.state.Identity == nil {
				t.Errorf("seed %d: %s agrees on %v", seed, p.name, p.m.state.Identity)
			}
			for _, inc := range p.m.state.Members {
				if n, _ := p.m.state.Node(inc); n.LogVersion != LogVersionMax || len(n.PublicKey) != 32 || len(n.Topics) != 1 {
					t.Errorf("seed %d: %s knows of %s only %+v", seed, p.name, n.Name, n)
				}
			}
		}
		if w.stats["lost"] > 0 {
			t.Errorf("seed %d: %d LOST", seed, w.stats["lost"])
		}
	}
}

// Processes of different settings start at once: those of one identity form a group, all others end, and no member of
// the group does.
func TestColdStartsOfDifferingMembers(t *testing.T) {
	started := map[string]int{}
	for seed := range uint64(60) {
		w := newWorld(seed, DefaultTiming())
		w.brief, w.lateness = true, 0.05
		for i := range 4 {
			w.identity = identity.Of(identity.Setting{Name: "key.from", Value: fmt.Sprint("json:", i%2)})
			w.start(fmt.Sprintf("n%d", i))
		}
		w.runUntil(40 * time.Second)
		if w.failure != "" {
			t.Fatalf("seed %d: %s", seed, w.failure)
		}
		left := map[string]int{}
		for _, p := range w.procs {
			if !p.m.over {
				left[p.m.cfg.Identity[0].Value]++
			}
		}
		if len(left) != 1 {
			t.Fatalf("seed %d: living by identity: %v, want those of one", seed, left)
		}
		for value, n := range left {
			started[value]++
			if n != 2 {
				started["with one left"]++
			}
		}
	}
	t.Log(started)
	if started["json:0"] < 5 || started["json:1"] < 5 {
		t.Errorf("groups by identity: %v: these seeds have no race", started)
	}
}

// A Snap is written with references to topics only for a node whose Hello says that it reads them.
func TestSnapHasTheFormThatTheJoiningNodeReads(t *testing.T) {
	w := quietWorld(t, 1, DefaultTiming(), 1)
	var snaps []bool
	w.landed = func(_ Position, r Record) {
		if s, ok := r.Body.(*Snap); ok {
			snaps = append(snaps, s.TopicRefs)
		}
	}
	for i, reads := range []bool{false, true} {
		inc := Incarnation{0xF, byte(i)}
		w.hear(inc, &Hello{Node: Node{Name: fmt.Sprintf("f%d", i), Inc: inc, Lease: time.Second}, HashID: "h", Partitions: simPartitions, NeedState: true, TopicRefs: reads})
		w.runUntil(w.now + time.Second)
	}
	w.start("n1")
	w.runUntil(w.now + 3*time.Second)
	if want := []bool{false, true, true}; !slices.Equal(snaps, want) {
		t.Errorf("references in the Snaps: %v, want %v", snaps, want)
	}
}

// The first Epoch of version 2 lists the topics of all members, or of none if they are too many for a record.
func TestTopicsOfTheFirstEpochOfVersion2(t *testing.T) {
	topics := []string{strings.Repeat("t", epochTopicsBytesMax/4)}
	for n, want := range map[int]int{4: 4, 5: 0} {
		nodes := make([]Node, n)
		for i := range nodes {
			nodes[i] = Node{Inc: Incarnation{byte(i + 1)}, Topics: topics}
		}
		listed := 0
		for i, node := range withTopicsThatFit(nodes) {
			if len(node.Topics) > 0 {
				listed++
			}
			if node.Inc != nodes[i].Inc || len(nodes[i].Topics) == 0 {
				t.Errorf("node %d became %+v", i, node)
			}
		}
		if listed != want {
			t.Errorf("topics of %d of %d members, want of %d", listed, n, want)
		}
	}
}
