package statuspage

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/report"
)

// snapshot is the data of the page. Everything in it is ready for display, bounded and printable.
type snapshot struct {
	Head        head           `json:"head"`
	Problems    problems       `json:"problems"`
	Tiles       []tile         `json:"tiles"`
	Worst       keyTable       `json:"worst"`
	Failing     keyTable       `json:"failing"`
	Hot         keyTable       `json:"hot"`
	Lane        laneTable      `json:"lane"`
	Schedules   schedulesTable `json:"schedules"`
	Members     memberTable    `json:"members"`
	Ring        ringView       `json:"ring"`
	Waits       []wait         `json:"waits"`
	Records     []record       `json:"records"`
	Protections []protections  `json:"protections"`
}

// head says who tells, and up to where it has read.
type head struct {
	Group    string `json:"group"`
	Member   string `json:"member"`
	Position string `json:"position"`
	Epoch    string `json:"epoch"`
}

// tile is one of the large numbers at the top of the page.
type tile struct {
	Title string `json:"title"`
	Value string `json:"value"`
	Note  string `json:"note"`
	Class string `json:"class"`
}

// memberTable has the members, those with problems first.
type memberTable struct {
	Rows []memberView `json:"rows"`
	Note string       `json:"note"` // what is not shown
}

// memberView is a row of the table of members.
type memberView struct {
	Name        string `json:"name"`
	Color       string `json:"color"`
	State       string `json:"state"`
	Why         string `json:"why"`
	Class       string `json:"class"`
	Version     string `json:"version"`
	Incarnation string `json:"incarnation"`
	Position    string `json:"position"`
	Lease       string `json:"lease"`
	Partitions  string `json:"partitions"` // open, of those that it should act for
	Workers     string `json:"workers"`
	Rate        string `json:"rate"`
	Running     string `json:"running"`
	Unsettled   string `json:"unsettled"`
	Oldest      string `json:"oldest"`
}

// record is a member's report about its exclusivity.
type record struct {
	Name    string   `json:"name"`
	Verdict string   `json:"verdict"`
	Class   string   `json:"class"`
	Reasons []string `json:"reasons"`
	For     string   `json:"for"`
	Counts  []uint64 `json:"counts"` // failed assertions, forced drains, late results, log lost, leases run out

	Overlaps string `json:"overlaps"` // of how many handlings
	Order    string `json:"order"`    // events that began after a later one of their key, of how many, by cause
}

// protections says what keeps strangers from the listeners of some members.
type protections struct {
	Members   string `json:"members"`
	Listeners string `json:"listeners"`
	Exposed   string `json:"exposed"`
}

// The severities, as classes of the style.
const (
	classGood = "good"
	classBusy = "busy" // a change is under way, or somebody should look at it
	classBad  = "bad"
)

func newSnapshot(s seen) snapshot {
	colors := colorsOf(s.members.Members)
	v := snapshot{Head: head{Member: untrusted.Text(s.members.Member), Position: s.members.Position, Epoch: s.members.Epoch}, Records: []record{}, Protections: []protections{}}
	v.Ring, v.Waits = newRing(s, colors), waitsOf(s, colors)
	for _, m := range s.members.Members {
		v.Members.Rows = append(v.Members.Rows, viewOf(m, colors[m.Name], waitFor(v.Waits, m.Name)))
		if m.Status != nil {
			v.Head.Group = cmp.Or(v.Head.Group, untrusted.Text(m.Status.Group))
			v.Records = append(v.Records, recordOf(m))
		}
	}
	bytes := keyBytesMax
	v.Worst, v.Failing, v.Hot = worstKeys(s.keys.worst, &bytes), failingKeys(s.keys.failing, &bytes), hotKeys(s.keys.hot, &bytes)
	v.Lane, v.Schedules = laneOf(s.members.Members, colors), schedulesOf(s.members, colors)
	v.Problems, v.Tiles = problemsOf(s, &v), tilesOf(s, v.Ring)
	v.bound()
	for _, p := range report.Protections(s.members) {
		v.Protections = append(v.Protections, protections{
			Members: cut(strings.Join(p.Members, ", ")), Listeners: cut(p.Listeners), Exposed: cut(strings.Join(p.Exposed, ", ")),
		})
	}
	v.Protections = v.Protections[:min(len(v.Protections), protectionsMax)]
	return v
}

// bound cuts the lists to what the page shows, the worst first.
func (v *snapshot) bound() {
	slices.SortStableFunc(v.Members.Rows, func(a, b memberView) int { return severity(b.Class) - severity(a.Class) })
	slices.SortStableFunc(v.Records, func(a, b record) int { return severity(b.Class) - severity(a.Class) })
	if n := len(v.Members.Rows); n > membersMax {
		v.Members.Rows = v.Members.Rows[:membersMax]
		v.Members.Note = fmt.Sprintf("%d of %d members, those with problems first: `router members` shows all", membersMax, n)
	}
	v.Records = v.Records[:min(len(v.Records), membersMax)]
	v.Waits = v.Waits[:min(len(v.Waits), waitsMax)]
}

// encode returns the parts of a snapshot as JSON. All of its fields are parts.
func encode(v snapshot) ([]part, error) {
	var parts []part
	for _, one := range []struct {
		name string
		data any
	}{
		{"head", v.Head},
		{"problems", v.Problems},
		{"tiles", v.Tiles},
		{"worst", v.Worst},
		{"failing", v.Failing},
		{"hot", v.Hot},
		{"lane", v.Lane},
		{"schedules", v.Schedules},
		{"members", v.Members},
		{"ring", v.Ring},
		{"waits", v.Waits},
		{"records", v.Records},
		{"protections", v.Protections},
	} {
		text, err := json.Marshal(one.data)
		if err != nil {
			return nil, fmt.Errorf("statuspage: encode %s: %w", one.name, err)
		}
		parts = append(parts, part{one.name, text})
	}
	return parts, nil
}

// sentenceMax is how many bytes of a sentence of a member are shown.
const sentenceMax = 400

// cut makes a sentence printable and bounds it.
func cut(text string) string { return untrusted.Short(text, sentenceMax) }

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
		colors[m.Name] = fmt.Sprintf("hsl(%d 45%% 55%%)", first+hue*step%hues*(last-first)/(hues-1))
	}
	return colors
}

// viewOf shows a member for which so many partitions wait.
func viewOf(m report.Member, color string, waiting int) memberView {
	state, why, class := stateOf(m, waiting)
	v := memberView{
		Name: untrusted.Text(m.Name), Color: color, State: state, Why: cut(why), Class: class, Incarnation: untrusted.Short(m.Incarnation, 8),
		Partitions: fmt.Sprintf("%d", m.Partitions),
	}
	s := m.Status
	if s == nil {
		return v
	}
	v.Version, v.Position = untrusted.Text(s.Version), untrusted.Text(s.Position)
	v.Partitions = fmt.Sprintf("%d of %d", s.Gates.Open, m.Partitions)
	v.Lease = fmt.Sprintf("%.1f s", s.LeaseSeconds)
	if s.Mode != report.ModeStrict {
		v.Lease = "none"
	}
	v.Workers, v.Running, v.Unsettled = number(s.Workers), number(s.Events.Running), number(s.Events.Unsettled)
	v.Rate = perSecond(s.Rates.Done)
	v.Oldest = duration(max(s.Events.OldestSeconds, s.Events.OldestHereSeconds))
	return v
}

// stateOf describes a member's state in a word, and the consequences for its partitions and for
// partitions that wait for it in a sentence: the first that applies.
func stateOf(m report.Member, waiting int) (state, why, class string) {
	s := m.Status
	switch {
	case s == nil && m.Unnamed:
		return "not asked", "Only gossip lists this member: it is just starting, or a stranger invented it.", classBusy
	case s == nil && !m.Listed && waiting > 0:
		return "gone", fmt.Sprintf("The table no longer lists this member, but %s still wait until its lease has expired.", report.Plural(waiting, "partition")), classBusy
	case s == nil && !m.Listed:
		return "gone", "The table no longer lists this member. Gossip will forget it.", classBusy
	case s == nil && m.Reach == "dead":
		return "dead", fmt.Sprintf("It does not answer, and there is evidence that it is dead. The keys of its %d partitions wait until the other members have agreed on a table without it, "+
			"and its lease has expired.", m.Partitions), classBad
	case s == nil:
		return "silent", fmt.Sprintf("It does not answer. It may still work on its %d partitions, or it may be gone: no other member takes them over before its lease has expired. %s", m.Partitions, m.Error), classBad
	case s.Drained:
		return "drained", "It owns no partition, runs no handler, and may be stopped.", classBusy
	case s.Draining:
		return "draining", fmt.Sprintf("It is leaving: %d deliveries are running, %d events are unfinished.", s.Events.Running, s.Events.Unsettled), classBusy
	case s.Phase == "joining":
		return "joining", "It waits for the state of the group." + because(s), classBusy
	case s.Phase == "leaving" || s.Phase == "left":
		return "leaving", fmt.Sprintf("%d deliveries are running.", s.Events.Running), classBusy
	case s.Phase == "stale":
		return "no lease", "It dispatches nothing until it has read back one of its own Beats from the control log." + because(s), classBad
	case !s.Listed && s.Workers == 0:
		return "idle", "No application is connected, so it owns nothing.", classBusy
	case !s.Listed:
		return "outside", "It is not in the table yet.", classBusy
	case s.Gates.Waiting > 0:
		return "taking over", fmt.Sprintf("%d of its partitions wait for the end of every earlier owner's tenure: until each earlier owner has reported that it runs nothing there, "+
			"or until its lease has expired.", s.Gates.Waiting), classBusy
	case s.Gates.Draining > 0:
		return "handing over", fmt.Sprintf("%d partitions have moved to other members, but its handlers still run there.", s.Gates.Draining), classBusy
	}
	if c := s.Failing(); c != nil {
		return "not ready", c.Name + ": " + c.Error, classBad
	}
	return "ready", "", classGood
}

// because returns why a member has no lease, by its first check that can tell, such as a broker that cannot be reached; "" if none does.
func because(s *report.Status) string {
	for _, c := range s.Checks {
		if c.Error != "" && slices.Contains([]string{"broker", "claim", "lease"}, c.Name) {
			return " " + c.Name + ": " + c.Error
		}
	}
	return ""
}

func recordOf(m report.Member) record {
	verdict, reasons := m.Status.Verdict()
	e := m.Status.Exclusivity
	r := record{
		Name: untrusted.Text(m.Name), Verdict: string(verdict), Class: classOfVerdict(verdict), Reasons: []string{}, For: duration(e.Seconds),
		Counts: []uint64{e.InvariantFailures, e.ForcedDrains, e.LateResults, e.LostTrust, e.LeaseLapses},
	}
	r.Overlaps, r.Order = auditWords(e.Audit)
	for _, reason := range reasons {
		r.Reasons = append(r.Reasons, cut(reason))
	}
	return r
}

// auditWords tells what the live auditor of a member has counted.
func auditWords(a *report.Audit) (overlaps, order string) {
	if a == nil {
		return "not looked for", "not measured"
	}
	total, causes := uint64(0), slices.SortedFunc(maps.Keys(a.Order.Inversions), func(x, y string) int {
		return cmp.Or(cmp.Compare(a.Order.Inversions[y], a.Order.Inversions[x]), strings.Compare(x, y))
	})
	var parts []string
	for _, cause := range causes {
		n := a.Order.Inversions[cause]
		if total += n; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", untrusted.Text(cause), number(int(n))))
		}
	}
	order = fmt.Sprintf("%s of %s", number(int(total)), number(int(a.Order.FirstHandlings)))
	if len(parts) > 0 {
		order += ": " + cut(strings.Join(parts, ", "))
	}
	return fmt.Sprintf("%s of %s", number(int(a.Overlaps)), number(int(a.Handlings))), order
}

func classOfVerdict(v report.Verdict) string {
	switch v {
	case report.Kept:
		return classGood
	case report.AtRisk:
		return classBusy
	case report.Broken, report.NotPromised:
	}
	return classBad
}

func tilesOf(s seen, ring ringView) []tile {
	g := sum(s.members)
	open, total := ring.count(open), ring.Partitions
	counts, stuck := s.keys.worst.Counts, stuckAmong(s.keys.worst.Keys)
	return []tile{
		{"Events handled", perSecond(g.rates.Done), besides(g.silent, perSecond(g.rates.Accepted)+" taken in"), ""},
		{"Retries", perSecond(g.rates.Retried + g.rates.Copied), besides(g.silent, "attempts that failed"), classIf(g.rates.Retried+g.rates.Copied == 0, "", classBusy)},
		{"Dead letters", perSecond(g.rates.Rejected), besides(g.silent, "rejected or given up"), classIf(g.rates.Rejected == 0, "", classBad)},
		{"Keys that wait", number(counts.Waiting), besides(g.silent, fmt.Sprintf("%s run, %s fail", number(counts.Running), number(counts.Failing))), classIf(counts.Failing == 0, "", classBusy)},
		{"Oldest event", duration(g.oldest), besides(g.silent, "since it came"), classIf(len(stuck) == 0, classIf(g.oldest < stuckAfter.Seconds(), "", classBusy), classBad)},
		{"Unsettled events", number(g.unsettled), besides(g.silent, "received, without an end"), ""},
		{"Keys on hold", number(g.onHold), "by operators", classIf(g.onHold == 0, "", classBusy)},
		{"Members ready", fmt.Sprintf("%d of %d", g.ready, g.members), "", classIf(g.ready == g.members, classGood, classBusy)},
		{"Partitions open", fmt.Sprintf("%s of %s", number(open), number(total)), notOpen(ring), classIf(open == total && total > 0, classGood, classBusy)},
		{"Exclusivity", string(g.worst), besides(g.silent, "since each member started"), classOfVerdict(g.worst)},
	}
}

// total is the sum over all members that answer.
type total struct {
	members, ready, silent, unsettled, onHold int
	oldest                                    float64
	rates                                     report.Rates
	worst                                     report.Verdict
}

func sum(members report.Members) total {
	g := total{worst: report.Kept}
	for _, m := range members.Members {
		s := m.Status
		if s == nil {
			if m.Listed {
				g.silent++
				g.members++
			}
			continue
		}
		g.members++
		if s.Failing() == nil {
			g.ready++
		}
		g.unsettled += s.Events.Unsettled
		g.oldest = max(g.oldest, s.Events.OldestSeconds, s.Events.OldestHereSeconds)
		if s.Acts != nil {
			g.onHold = max(g.onHold, s.Acts.HeldKeys) // each member counts those of the group
		}
		g.rates.Accepted += s.Rates.Accepted
		g.rates.Done += s.Rates.Done
		g.rates.Retried += s.Rates.Retried
		g.rates.Copied += s.Rates.Copied
		g.rates.Rejected += s.Rates.Rejected
		if verdict, _ := s.Verdict(); worse(verdict) > worse(g.worst) {
			g.worst = verdict
		}
	}
	return g
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

func worse(v report.Verdict) int {
	return slices.Index([]report.Verdict{report.Kept, report.AtRisk, report.NotPromised, report.Broken}, v)
}

// severity orders classes.
func severity(class string) int {
	return slices.Index([]string{classGood, "", classBusy, classBad}, class)
}

func classIf(condition bool, then, otherwise string) string {
	if condition {
		return then
	}
	return otherwise
}

// number has its digits in groups: 10,003.
func number(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// perSecond is a rate in three digits or whole numbers.
func perSecond(rate float64) string {
	switch {
	case rate == 0:
		return "0/s"
	case rate < 0.1:
		return "<0.1/s"
	case rate < 100:
		return fmt.Sprintf("%.1f/s", rate)
	}
	return number(int(rate+0.5)) + "/s"
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
