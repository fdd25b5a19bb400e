package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Values of Member.Reach, KeyAt.Wait and Status.Mode that code depends on.
const (
	ReachSelf       = "self"
	ReachAlive      = "alive"
	ReachUnknown    = "unknown"
	WaitsForNothing = "nothing"
	ModeStrict      = "strict"
)

// unnamedShownMax bounds the shown names of members that only gossip knows.
const unnamedShownMax = 3

// Disagreements lists in sentences the differences between the members' reports, and the
// members without a report; nothing when all agree. Members read the control log one by one, so
// for a moment after each change they are at different epochs: only a lasting difference is a
// fault.
func Disagreements(m Members) []string {
	found := []string{}
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	var unnamed []string
	for _, one := range m.Members {
		switch {
		case one.Unnamed:
			unnamed = append(unnamed, one.Name)
		case one.Error != "":
			say("%s does not answer: %s", one.Name, one.Error)
		}
	}
	if n := len(unnamed); n > 0 {
		say("gossip knows members that the control log does not name, as %s: they are just starting, or invented by a stranger", strings.Join(unnamed[:min(n, unnamedShownMax)], ", "))
	}
	if modes := saying(m, func(s *Status) string { return "ownership.mode " + s.Mode }); len(modes) > 1 {
		say("members differ in ownership.mode: %s", sentence(modes))
	}
	found = append(found, otherSettings(m)...)
	epochs := saying(m, func(s *Status) string { return "epoch " + s.Epoch })
	if len(epochs) > 1 {
		say("members differ in their epoch: %s; a member that stays behind cannot read the control log", sentence(epochs))
	}
	for _, at := range epochs {
		alike := Members{Members: slices.DeleteFunc(slices.Clone(m.Members), func(one Member) bool {
			return one.Status == nil || !slices.Contains(at.names, one.Name)
		})}
		if tables := saying(alike, func(s *Status) string { return "table " + s.Table }); len(tables) > 1 {
			say("at %s not all have the same table: %s; `router ring diff` shows the partitions", at.what, sentence(tables))
		}
	}
	return found
}

// otherSettings lists in sentences the settings in which members differ although they must agree, the topics
// that wait until all members list them, or that cannot be read, and the differences for which a router was
// refused.
func otherSettings(m Members) []string {
	var found []string
	var names []string
	topics := map[string][]string{}
	for _, one := range m.Members {
		if one.Status == nil {
			continue
		}
		names = slices.AppendSeq(names, maps.Keys(one.Status.Settings))
		maps.Copy(topics, one.Status.TopicsNotConsumed)
		for _, topic := range slices.Sorted(maps.Keys(one.Status.TopicsUnread)) {
			found = append(found, fmt.Sprintf("%s cannot read topic %s any more: %s", one.Name, topic, one.Status.TopicsUnread[topic]))
		}
		if one.Status.OtherSettings != "" {
			found = append(found, fmt.Sprintf("%s refused a router with other settings: %s", one.Name, one.Status.OtherSettings))
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		values := saying(m, func(s *Status) string {
			value, has := s.Settings[name]
			if !has {
				return ""
			}
			return fmt.Sprintf("%s %q", name, value)
		})
		if len(values) > 1 {
			found = append(found, "not all have the same settings: "+sentence(values))
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		found = append(found, fmt.Sprintf("topic %s is not consumed until it is listed by %s", topic, strings.Join(topics[topic], ", ")))
	}
	return found
}

// Protection describes the protection of the listeners of some members, the same for all of
// them.
type Protection struct {
	Members   []string
	Listeners string   // "app: loopback, peer: TLS, name orders, …"
	Exposed   []string // listeners that other machines reach, and that let them in
}

// Protections returns how the listeners of the members are protected: one for each way, the one of most members first.
// Members that do not tell have none.
func Protections(m Members) []Protection {
	exposed := map[string][]string{}
	var all []Protection
	for _, o := range saying(m, func(s *Status) string {
		var parts, open []string
		for _, l := range s.Listeners {
			parts = append(parts, l.Name+": "+l.ProtectedBy)
			if l.Exposed {
				open = append(open, l.Name)
			}
		}
		text := strings.Join(parts, " | ")
		exposed[text] = open
		return text
	}) {
		all = append(all, Protection{Members: o.names, Listeners: o.what, Exposed: exposed[o.what]})
	}
	return all
}

// opinion is a statement and the members that make it.
type opinion struct {
	what  string
	names []string
}

// saying groups the members that answered by their statements, the most numerous first. "" is no statement.
func saying(m Members, what func(*Status) string) []opinion {
	var all []opinion
	for _, one := range m.Members {
		if one.Status == nil {
			continue
		}
		said := what(one.Status)
		if said == "" {
			continue
		}
		i := slices.IndexFunc(all, func(o opinion) bool { return o.what == said })
		if i < 0 {
			i, all = len(all), append(all, opinion{what: said})
		}
		all[i].names = append(all[i].names, one.Name)
	}
	slices.SortStableFunc(all, func(a, b opinion) int { return len(b.names) - len(a.names) })
	return all
}

func sentence(opinions []opinion) string {
	parts := make([]string, len(opinions))
	for i, o := range opinions {
		parts[i] = fmt.Sprintf("%s say %s", strings.Join(o.names, ", "), o.what)
		if len(o.names) == 1 {
			parts[i] = fmt.Sprintf("%s says %s", o.names[0], o.what)
		}
	}
	return strings.Join(parts, "; ")
}

// Verdict summarises the counters of [Exclusivity].
type Verdict string

// The verdicts.
const (
	Kept        Verdict = "kept"         // nothing has happened that could break the promise
	AtRisk      Verdict = "at risk"      // a handler may have outlived its permission; fencing tokens tell
	Broken      Verdict = "broken"       // a bug, or handlers of one key overlapped
	NotPromised Verdict = "not promised" // ownership.mode is gossip
)

// Verdict judges a member by its own word, with the reasons: none for [Kept].
func (s Status) Verdict() (verdict Verdict, reasons []string) {
	e := s.Exclusivity
	verdict = Kept
	note := func(worst Verdict, n uint64, format string) {
		if n > 0 {
			verdict, reasons = worst, append(reasons, fmt.Sprintf(format, n))
		}
	}
	note(AtRisk, e.LateResults, "%d deliveries were answered after their deadline: the application does not obey it")
	note(AtRisk, e.ForcedDrains, "%d partitions were given up on while a delivery may have run: its handler outlasted ownership.drain_timeout, or the control log was lost")
	if e.Audit != nil {
		note(Broken, e.Audit.Overlaps, "%d pairs of handlers of one key ran at the same time")
	}
	note(Broken, e.InvariantFailures, "%d assertions did not hold: a bug; please report it")
	if s.Mode != ModeStrict {
		return NotPromised, append(reasons, "ownership.mode is "+s.Mode+": two members may run handlers of one key at once")
	}
	return verdict, reasons
}
