package statuspage

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/report"
)

// view is the data of page.html. Everything in it is ready for display.
type view struct {
	Nonce  string
	Group  string
	Asked  report.View
	Gossip bool

	Banners []banner
	Tiles   []tile
	Members []memberView
	Ring    ringView
	Waits   []wait
	Records []record

	Protections []report.Protection
}

// banner is a sentence across the page.
type banner struct{ Class, Text string }

// tile is one of the large numbers at the top of the page.
type tile struct{ Title, Value, Note, Class string }

// memberView is a row of the table of members.
type memberView struct {
	Name, Color       string
	State, Why, Class string
	Version           string
	Incarnation       string
	Position          string
	Epoch             string
	Lease             string
	Answers           bool
	Partitions        int // that it should act for
	Gates             report.Gates
	Workers           int
	Events            report.Events
	Oldest            string
	Running           int
}

// record is a member's report about its exclusivity.
type record struct {
	Name, Verdict, Class string
	Reasons              []string
	For                  string
	report.Exclusivity
}

// The CSS classes: the severity for a person.
const (
	classGood = "good"
	classBusy = "busy" // a change is under way
	classBad  = "bad"
)

func newView(s seen) view {
	v := view{Asked: s.members.View}
	colors := colorsOf(s.members.Members)
	v.Ring, v.Waits = newRing(s, colors), waitsOf(s, colors)
	for _, m := range s.members.Members {
		v.Members = append(v.Members, viewOf(m, colors[m.Name], waitFor(v.Waits, m.Name)))
		if m.Status != nil {
			v.Group = cmp.Or(v.Group, m.Status.Group)
			v.Gossip = v.Gossip || m.Status.Mode != report.ModeStrict
			v.Records = append(v.Records, recordOf(m))
		}
	}
	v.Protections = report.Protections(s.members)
	v.Banners = bannersOf(s.members, v)
	v.Tiles = tilesOf(s.members, v)
	return v
}

// hues is the number of colours, far enough apart to be distinguishable.
const hues = 13

// colorsOf assigns a colour to each name. It depends on the name alone, so that a member keeps its
// colour when another one joins or leaves, unless two names have the same colour.
func colorsOf(members []report.Member) map[string]string {
	colors, taken := make(map[string]string), make(map[uint32]bool)
	for _, m := range members {
		if colors[m.Name] != "" {
			continue
		}
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(m.Name)) // never fails
		hue := sum.Sum32() % hues
		for taken[hue] && len(taken) < hues {
			hue = (hue + 1) % hues
		}
		taken[hue] = true
		const first, last, step = 35, 325, 5 // red is reserved for faults; neighbours differ widely
		colors[m.Name] = fmt.Sprintf("hsl(%d 60%% 50%%)", first+hue*step%hues*(last-first)/(hues-1))
	}
	return colors
}

// viewOf shows a member for which so many partitions wait.
func viewOf(m report.Member, color string, waiting int) memberView {
	state, why, class := stateOf(m, waiting)
	v := memberView{
		Name: m.Name, Color: color, State: state, Why: why, Class: class, Incarnation: m.Incarnation, Partitions: m.Partitions,
	}
	s := m.Status
	if s == nil {
		return v
	}
	v.Answers, v.Version, v.Position, v.Epoch, v.Gates, v.Workers, v.Events = true, s.Version, s.Position, s.Epoch, s.Gates, s.Workers, s.Events
	v.Lease = fmt.Sprintf("%.1f s", s.LeaseSeconds)
	if s.Mode != report.ModeStrict {
		v.Lease = "none"
	}
	v.Oldest = duration(max(s.Events.OldestSeconds, s.Events.OldestHereSeconds))
	return v
}

// stateOf describes a member's state in a word, and the consequences for its partitions and for
// partitions that wait for it in a sentence: the first that applies.
func stateOf(m report.Member, waiting int) (state, why, class string) {
	s := m.Status
	switch {
	case s == nil && !m.Listed && waiting > 0:
		return "gone", fmt.Sprintf("The table is without it, and %s still wait for it: until its lease has run out.", report.Plural(waiting, "partition")), classBusy
	case s == nil && !m.Listed:
		return "gone", "The table is without it. Gossip will forget it.", classBusy
	case s == nil && m.Reach == "dead":
		return "dead", fmt.Sprintf("It does not answer, and there is evidence that it is dead. The keys of its %d partitions wait until the others have agreed on a table without it, "+
			"and its lease has run out.", m.Partitions), classBad
	case s == nil:
		return "silent", fmt.Sprintf("It does not answer. It may still work on its %d partitions, or be gone: no other member takes them before its lease has expired. %s", m.Partitions, m.Error), classBad
	case s.Drained:
		return "drained", "It owns nothing and runs nothing, and may be stopped.", classBusy
	case s.Draining:
		return "draining", fmt.Sprintf("It leaves: %d deliveries run, %d events have no end yet.", s.Events.Running, s.Events.Unsettled), classBusy
	case s.Phase == "joining":
		return "joining", "It waits for the state of the group.", classBusy
	case s.Phase == "leaving" || s.Phase == "left":
		return "leaving", fmt.Sprintf("%d deliveries run.", s.Events.Running), classBusy
	case s.Phase == "stale":
		return "no lease", "It dispatches nothing until it has read one of its own Beats in the control log again.", classBad
	case !s.Listed && s.Workers == 0:
		return "idle", "No application is connected, so it owns nothing.", classBusy
	case !s.Listed:
		return "outside", "It is not in the table yet.", classBusy
	case s.Gates.Waiting > 0:
		return "taking over", fmt.Sprintf("%d of its partitions wait until every earlier owner is over: until that one has said that nothing of it runs any more, "+
			"or its lease has run out.", s.Gates.Waiting), classBusy
	case s.Gates.Draining > 0:
		return "handing over", fmt.Sprintf("%d partitions are no longer its own, and its handlers still run there.", s.Gates.Draining), classBusy
	}
	if c := s.Failing(); c != nil {
		return "not ready", c.Name + ": " + c.Error, classBad
	}
	return "ready", "", classGood
}

func recordOf(m report.Member) record {
	verdict, reasons := m.Status.Verdict()
	class := classBad
	switch verdict {
	case report.Kept:
		class = classGood
	case report.AtRisk:
		class = classBusy
	case report.Broken, report.NotPromised:
	}
	return record{
		Name: m.Name, Verdict: string(verdict), Class: class, Reasons: reasons,
		For: duration(m.Status.Exclusivity.Seconds), Exclusivity: m.Status.Exclusivity,
	}
}

func bannersOf(members report.Members, v view) []banner {
	var all []banner
	if v.Gossip {
		all = append(all, banner{classBad, "Not exclusive: ownership.mode is gossip. Two members may run handlers of one key at once " +
			"when members come, go or are paused, and fencing tokens are 0."})
	}
	for _, d := range members.Disagreements {
		all = append(all, banner{classBusy, d})
	}
	return all
}

func tilesOf(members report.Members, v view) []tile {
	ready, count, silent, unsettled, oldest, worst := 0, 0, 0, 0, 0.0, report.Kept
	for _, m := range members.Members {
		if m.Status != nil && m.Status.Failing() == nil {
			ready++
		}
		if m.Status == nil {
			if m.Listed {
				silent++
				count++
			}
			continue
		}
		count++
		unsettled += m.Status.Events.Unsettled
		oldest = max(oldest, m.Status.Events.OldestSeconds, m.Status.Events.OldestHereSeconds)
		if verdict, _ := m.Status.Verdict(); severity(verdict) > severity(worst) {
			worst = verdict
		}
	}
	open, total := v.Ring.count(open), v.Ring.Partitions
	return []tile{
		{"Members ready", fmt.Sprintf("%d of %d", ready, count), "", classIf(ready == count, classBusy)},
		{"Partitions open", fmt.Sprintf("%d of %d", open, total), notOpen(v.Ring), classIf(open == total && total > 0, classBusy)},
		{"Unsettled events", fmt.Sprint(unsettled), besides(silent, "received from Pulsar, without an end"), ""},
		{"Oldest event", duration(oldest), besides(silent, "since it was received, or came to its owner"), ""},
		{"Exclusivity", string(worst), besides(silent, "as far back as the counters of each member go"), classIf(worst == report.Kept, classBad)},
	}
}

// besides names the members that a sum does not include.
func besides(silent int, note string) string {
	if silent == 0 {
		return note
	}
	return fmt.Sprintf("%s; without %s", note, report.Plural(silent, "silent member"))
}

func notOpen(r ringView) string {
	var parts []string
	for _, s := range []gateState{waiting, closed, lapsed, silent} {
		if n := r.count(s); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

func severity(v report.Verdict) int {
	return slices.Index([]report.Verdict{report.Kept, report.AtRisk, report.NotPromised, report.Broken}, v)
}

func classIf(good bool, otherwise string) string {
	if good {
		return classGood
	}
	return otherwise
}

// duration is short enough for a table: 0 s, 0.4 s, 12 s, 3m20s, 5h4m.
func duration(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case seconds <= 0:
		return "none"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", seconds)
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", seconds)
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
