package statuspage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/report"
)

// stuckAfter is how long the first event of a key may wait for one and the same thing, or its handler
// may run, before the page calls the key stuck.
const stuckAfter = 30 * time.Second

// failuresMany is how often an event has failed when the page calls its key a poison pill.
const failuresMany = 3

// Of the names of keys.
const (
	labelMax    = 80       // bytes that are shown
	keyBytesMax = 64 << 10 // of all names in one snapshot; further keys have their hashes alone
)

// keyTable is a list of keys, the worst first.
type keyTable struct {
	Rows []keyView `json:"rows"`
	Note string    `json:"note"` // how many there are, and what is not shown
}

// keyView is a row of a table of keys.
type keyView struct {
	keyRef
	Partition int    `json:"partition"`
	Owner     string `json:"owner"`
	State     string `json:"state"`
	Why       string `json:"why"`
	Class     string `json:"class"`
	Age       string `json:"age"`
	Failures  string `json:"failures"`
	Behind    string `json:"behind"`

	// Of hot keys.
	Rate string `json:"rate,omitempty"`
	Busy string `json:"busy,omitempty"`

	Forecast string `json:"forecast,omitempty"`
}

// keyRef names a key to the page, which can ask for it.
type keyRef struct {
	Label     string `json:"label"` // for people
	Hash      string `json:"hash"`
	Key       string `json:"key,omitempty"`
	KeyBase64 string `json:"key_base64,omitempty"` // instead of key, if that is not UTF-8
}

// refOf names a key, within what is left of the bytes for names.
func refOf(k *report.ListedKey, bytes *int) keyRef {
	ref := keyRef{Label: k.Hash, Hash: k.Hash}
	switch size := len(k.Key) + len(k.KeyBase64); {
	case size == 0:
		return ref
	case size > *bytes:
		ref.Label = untrusted.Short(k.Key+k.KeyBase64, labelMax)
		return ref
	default:
		*bytes -= size
	}
	ref.Key, ref.KeyBase64 = k.Key, k.KeyBase64
	ref.Label = untrusted.Short(k.Key, labelMax)
	if k.KeyBase64 != "" {
		ref.Label = "base64:" + untrusted.Short(k.KeyBase64, labelMax)
	}
	return ref
}

func rowOf(k *report.ListedKey, bytes *int) keyView {
	state, why, class := stateOfKey(k)
	v := keyView{
		keyRef: refOf(k, bytes), Partition: int(k.Partition), Owner: untrusted.Text(k.Owner), State: state, Why: cut(why), Class: class,
		Age: duration(k.Age), Failures: number(int(k.Failures)), Behind: number(k.Behind),
	}
	if k.At != k.Owner {
		v.Owner += ", events at " + untrusted.Text(k.At)
	}
	if k.Crashes > 0 {
		v.Failures += fmt.Sprintf(" (%d by a crash)", k.Crashes)
	}
	return v
}

// stuck reports whether a key has waited for the same thing for too long, for a reason that concerns this key or its
// partition. Holds and parks of an operator, reservations, and the delay of a retry are intended; a lack of workers
// concerns all keys of a member.
func stuck(k *report.ListedKey) bool {
	return !k.Reserved() && k.Seconds >= stuckAfter.Seconds() && !slices.Contains([]string{"hold", "park", "retry", "worker", "slot"}, k.Wait)
}

func stuckAmong(keys []report.ListedKey) (all []*report.ListedKey) {
	for i := range keys {
		if stuck(&keys[i]) {
			all = append(all, &keys[i])
		}
	}
	return all
}

func failing(k *report.ListedKey) bool { return k.Failures > 0 || k.Crashes > 0 }

// stateOfKey tells the state of a key in a word, and why it waits in a sentence.
func stateOfKey(k *report.ListedKey) (state, why, class string) {
	state, class = "waits", ""
	switch {
	case stuck(k):
		state, class = "stuck", classBad
	case k.Reserved():
		state, class = "reserved", classIf(k.Behind == 0 || k.Seconds < stuckAfter.Seconds(), "", classBusy)
	case k.Wait == "hold":
		state, class = "on hold", classBusy
	case k.Failures >= failuresMany || k.Crashes > 0:
		state, class = "failing", classBad
	case failing(k):
		state, class = "failing", classBusy
	case k.Wait == "handler":
		state = "runs"
	case k.Seconds >= stuckAfter.Seconds():
		class = classBusy
	}
	why = reasonOf(k)
	if failing(k) {
		why += fmt.Sprintf("; its event has failed %s", times(int(k.Failures)))
		if k.Crashes > 0 {
			why += fmt.Sprintf(", and %s crashed that had it", report.Plural(int(k.Crashes), "worker"))
		}
	}
	return state, why, class
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return number(n) + " times"
}

// reasonOf tells in a sentence what a key waits for, and for how long.
func reasonOf(k *report.ListedKey) string {
	switch {
	case !k.InMailbox():
		return fmt.Sprintf("its events are %s, for %s", k.Reason(), duration(k.Seconds))
	case k.Wait == "retry":
		return "it waits for " + k.Reason() // which says when it is due
	}
	return fmt.Sprintf("it waits for %s, for %s", k.Reason(), duration(k.Seconds))
}

func worstKeys(k report.Keys, bytes *int) keyTable {
	t := tableOf(k, bytes)
	t.Note = fmt.Sprintf("%s, %s wait and %s run; events of %s more are in no mailbox.", count(k.Counts.Keys, "key", "keys"), number(k.Counts.Waiting), number(k.Counts.Running), number(k.Counts.Unsent))
	if k.Cut > 0 {
		t.Note = fmt.Sprintf("The %d worst of %s. ", len(k.Keys), number(len(k.Keys)+k.Cut)) + t.Note
	}
	t.Note += silence(k)
	return t
}

func failingKeys(k report.Keys, bytes *int) keyTable {
	t := tableOf(k, bytes)
	t.Note = "No key fails."
	if len(k.Keys) > 0 {
		t.Note = "Keys whose first event has failed or has crashed a worker."
	}
	if k.Cut > 0 {
		t.Note += fmt.Sprintf(" The %d worst of %s.", len(k.Keys), number(len(k.Keys)+k.Cut))
	}
	t.Note += silence(k)
	return t
}

func hotKeys(k report.Keys, bytes *int) keyTable {
	t := tableOf(k, bytes)
	t.Note = "Figures of the last ten seconds. Too many: the key is busy all the time, and gets more events than can be handled one at a time." + silence(k)
	for i := range k.Keys {
		one, row := &k.Keys[i], &t.Rows[i]
		row.Rate, row.Busy = perSecond(one.Rate), fmt.Sprintf("%.0f %%", 100*one.Busy)
		row.State, row.Why, row.Class = "hot", "", ""
		if outgrows := one.OutgrowsIn; outgrows != nil {
			row.Forecast, row.Why, row.Class = forecast(*outgrows), outgrown(*outgrows), classBusy
		}
	}
	return t
}

// forecast is the short form of outgrown.
func forecast(in float64) string {
	if in <= 0 {
		return "too many now"
	}
	return "too many in " + duration(in)
}

func outgrown(in float64) string {
	if in <= 0 {
		return "It gets more events than can be handled one at a time."
	}
	return "If its load keeps growing like this, it will get more events than can be handled one at a time in " + duration(in) + "."
}

func tableOf(k report.Keys, bytes *int) keyTable {
	t := keyTable{Rows: []keyView{}}
	for i := range k.Keys {
		t.Rows = append(t.Rows, rowOf(&k.Keys[i], bytes))
	}
	return t
}

// silence names the members whose keys a list does not have.
func silence(k report.Keys) string {
	if len(k.Silent) == 0 {
		return ""
	}
	return " " + cut("Without the keys of "+strings.Join(k.Silent, "; ")+".")
}

// problems is what is wrong, the worst first.
type problems struct {
	Rows []problem `json:"rows"`
	More int       `json:"more"` // that are not shown
}

// problem is one thing that is wrong.
type problem struct {
	Title string  `json:"title"`
	Text  string  `json:"text"`
	Class string  `json:"class"`
	Key   *keyRef `json:"key,omitempty"`
}

// sameMax is how many keys with the same problem are shown one by one.
const sameMax = 3

// problemsOf lists what is wrong: with exclusivity, keys, members, and hot keys, and where members disagree.
func problemsOf(s seen, v *snapshot) problems {
	all := problems{Rows: []problem{}}
	note := func(class, title, text string, key *keyRef) {
		all.Rows = append(all.Rows, problem{Title: title, Text: cut(text), Class: class, Key: key})
	}
	if slices.ContainsFunc(s.members.Members, func(m report.Member) bool { return m.Status != nil && m.Status.Mode != report.ModeStrict }) {
		note(classBad, "Not exclusive", "ownership.mode is gossip. Two members may run handlers of one key at once when members join, leave or are paused, and fencing tokens are 0.", nil)
	}
	for _, r := range v.Records {
		if r.Verdict == string(report.Broken) || r.Verdict == string(report.AtRisk) {
			note(r.Class, "Exclusivity "+r.Verdict, r.Name+": "+strings.Join(r.Reasons, "; "), nil)
		}
	}
	keyProblems(v.Worst.Rows, "stuck", "Stuck key", note)
	rows := v.Failing.Rows
	if len(rows) == 0 {
		rows = v.Worst.Rows
	}
	keyProblems(rows, "failing", "Failing key", note)
	for _, m := range v.Members.Rows {
		if m.Class == classBad {
			note(classBad, "Member "+m.State, m.Name+": "+m.Why, nil)
		}
	}
	keyProblems(v.Hot.Rows, "hot", "Hot key", note)
	laneProblems(v.Lane.Rows, note)
	scheduleProblems(v.Schedules.Rows, note)
	for _, d := range s.members.Disagreements {
		note(classBusy, "Members disagree", d, nil)
	}
	slices.SortStableFunc(all.Rows, func(a, b problem) int { return severity(b.Class) - severity(a.Class) })
	if n := len(all.Rows); n > problemsMax {
		all.Rows, all.More = all.Rows[:problemsMax], n-problemsMax
	}
	return all
}

// keyProblems notes the first keys in a state that are not well, and how many there are besides in the list.
func keyProblems(rows []keyView, state, title string, note func(class, title, text string, key *keyRef)) {
	n, worst := 0, ""
	for i := range rows {
		row := &rows[i]
		if row.State != state || row.Class == "" {
			continue
		}
		if n++; n > sameMax {
			continue
		}
		if severity(row.Class) > severity(worst) {
			worst = row.Class
		}
		text := fmt.Sprintf("partition %d at %s: %s", row.Partition, row.Owner, row.Why)
		if state == "hot" {
			text = fmt.Sprintf("partition %d at %s: %s, busy %s. %s", row.Partition, row.Owner, row.Rate, row.Busy, row.Why)
		} else if row.Behind != "0" {
			text += fmt.Sprintf("; %s wait behind it", row.Behind)
		}
		note(row.Class, title, text, &row.keyRef)
	}
	if n > sameMax {
		note(worst, fmt.Sprintf("%d more %ss", n-sameMax, strings.ToLower(title[:1])+title[1:]), "See the lists of keys below.", nil)
	}
}
