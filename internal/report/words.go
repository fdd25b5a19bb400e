package report

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Seconds is a duration for people: -, 12ms, 3.4s or 2m3.4s.
func Seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	d := time.Duration(s * float64(time.Second))
	if d.Abs() < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// Words tells the state of the key at its member in sentences: the one place that words them for people.
func (at *KeyAt) Words() []string {
	if at.Error != "" {
		return nil
	}
	var lines []string
	switch {
	case at.reserved():
		lines = append(lines, at.reservedWords())
	case at.Wait != WaitsForNothing && at.Call:
		lines = append(lines, fmt.Sprintf("waits for %s, for %s; a call%s came %s ago; %s behind it",
			waitWords(*at), Seconds(at.Seconds), at.callWords(), Seconds(at.Age), waiting(at.Queued, "event")))
	case at.Wait != WaitsForNothing:
		lines = append(lines, fmt.Sprintf("waits for %s, for %s; event %s came %s ago, failed %s; %d more wait behind it",
			waitWords(*at), Seconds(at.Seconds), at.Event, Seconds(at.Age), Plural(int(at.Failures), "time"), at.Queued))
		if at.LastError != "" {
			lines = append(lines, fmt.Sprintf("its newest failure: %q", at.LastError))
		}
	case len(at.Held) == 0:
		lines = append(lines, "no event of it waits or runs here; gate "+at.Gate)
	}
	if at.NoApplication && at.Wait != "worker" {
		lines = append(lines, "no application is connected: without one this member takes no events from the broker")
	}
	lines = append(lines, at.waitingWords()...)
	if h := at.Hold; h != nil && at.Gate != "closed" {
		lines = append(lines, holdWords(*h))
	}
	if at.Park != nil {
		lines = append(lines, ParkWords(*at.Park))
	}
	if at.Parking > 0 {
		lines = append(lines, fmt.Sprintf("copies %s of it to the parking topic", Plural(at.Parking, "event")))
	}
	for _, s := range at.Skips {
		lines = append(lines, SkipWords(s))
	}
	if at.MoreSkips > 0 {
		lines = append(lines, fmt.Sprintf("%d older skips are in effect: see router acts", at.MoreSkips))
	}
	for _, b := range at.Blockers {
		switch {
		case b.OwnApplication():
			lines = append(lines, "the gate waits for this member's own application, which still works under an earlier tenure")
		case b.Member == "":
			lines = append(lines, fmt.Sprintf("the gate waits for leases of the group's earlier log to expire, for at most %s", Seconds(b.Seconds)))
		default:
			lines = append(lines, fmt.Sprintf("the gate waits for %s, the owner since %s: until it says that nothing runs, or for %s of silence", b.Member, b.Start, Seconds(b.Seconds)))
		}
	}
	for _, h := range at.Held {
		lines = append(lines, fmt.Sprintf("holds %s that it has received: %s, the oldest for %s", Plural(h.Events, "event"), placeWords(h), Seconds(h.Seconds)))
	}
	return lines
}

// reservedWords tells of the reservation that holds the key.
func (at *KeyAt) reservedWords() string {
	words := "is reserved, for " + Seconds(at.Seconds)
	if at.Via != "" {
		words += ", through " + at.Via
	}
	if r := at.Reservation; r != nil {
		words += fmt.Sprintf(", fence %d.%d; it ends in %s unless its holder renews it", r.Token, r.Turn, Seconds(r.Left))
	}
	return words + "; " + waiting(at.Queued, "event") + " behind it"
}

// callWords tells of the call that runs, or is next.
func (at *KeyAt) callWords() string {
	words, ofCaller := "", ""
	if at.Method != "" {
		words = " of " + at.Method
	}
	if at.CallerWaits > 0 {
		ofCaller = "whose caller waits for " + Seconds(at.CallerWaits) + " more"
	}
	return words + clauses(madeAt(at.Via), ofCaller)
}

// waitingWords tells of the calls and reservations that wait.
func (at *KeyAt) waitingWords() (lines []string) {
	if calls := callsWords(at.Wait, at.Call && !at.reserved(), "", at.Calls); calls != "" {
		lines = append(lines, calls)
	}
	for _, w := range at.Waiting {
		what := "a reservation"
		if w.Method != "" {
			what = "a call of " + w.Method
		}
		line := fmt.Sprintf("%s%s has waited for %s and waits for %s more", what, clauses(madeAt(w.Via)), Seconds(w.Seconds), Seconds(w.Left))
		if w.Callers > 1 {
			line += fmt.Sprintf("; %d callers want its answer", w.Callers)
		}
		lines = append(lines, line)
	}
	if more := at.Calls - len(at.Waiting); len(at.Waiting) > 0 && more > 0 {
		lines = append(lines, fmt.Sprintf("%d more of these are not listed", more))
	}
	return lines
}

// madeAt names the member where a call or a reservation was asked for, "" if that is not known.
func madeAt(member string) string {
	if member == "" {
		return ""
	}
	return "made at " + member
}

// clauses puts what is told between commas.
func clauses(told ...string) string {
	told = slices.DeleteFunc(told, func(one string) bool { return one == "" })
	if len(told) == 0 {
		return ""
	}
	return ", " + strings.Join(told, ", ") + ","
}

// reserved reports whether what runs is a reservation: it is the work of no stream of an application, whose numbers begin with 1.
func (at *KeyAt) reserved() bool { return at.Wait == "handler" && at.Call && at.Worker == 0 }

// waitWords tells what the events of a key in a mailbox wait for.
func waitWords(at KeyAt) string {
	switch at.Wait {
	case "handler":
		if at.reserved() {
			return "the end of its reservation"
		}
		return fmt.Sprintf("the handler (worker %d)", at.Worker)
	case "retry":
		return "its next attempt, due in " + Seconds(at.RetryIn)
	case "gate":
		return "its gate"
	case "worker":
		return "an application: none is connected"
	case "slot":
		return "room at its worker, or the lease"
	case "hold":
		return "its release"
	case "park":
		return "its park, or the letters in the parking topic, which come first"
	}
	return at.Wait
}

// Reason tells what the events of a listed key wait for in its mailbox, or where they are that no mailbox has.
func (k *ListedKey) Reason() string {
	if k.InMailbox() {
		words := waitWords(KeyAt{Wait: k.Wait, Worker: k.Worker, RetryIn: k.RetryIn, Call: k.Call})
		if calls := callsWords(k.Wait, k.Call && !k.Reserved(), k.Method, k.Calls); calls != "" {
			words += "; " + calls
		}
		return words
	}
	return placeWords(Held{Place: k.Wait, With: k.With})
}

// callsWords tells of the calls and reservations of a key, "" if it has none. call says that the first one of the key is a call.
func callsWords(wait string, call bool, method string, waits int) string {
	runs := "a call runs"
	if method != "" {
		runs = "a call of " + method + " runs"
	}
	switch running := call && wait == "handler"; {
	case running && waits > 0:
		return runs + ", " + visitsWait(waits)
	case running:
		return runs
	case waits > 0:
		return visitsWait(waits)
	}
	return ""
}

// visitsWait says how many calls and reservations wait.
func visitsWait(n int) string {
	if n == 1 {
		return "1 call or reservation waits"
	}
	return fmt.Sprintf("%d calls or reservations wait", n)
}

// waiting says how many wait.
func waiting(n int, what string) string {
	if n == 1 {
		return "1 " + what + " waits"
	}
	return Plural(n, what) + " wait"
}

// placeWords tells where events are that no mailbox has.
func placeWords(h Held) string {
	switch h.Place {
	case "queued":
		return "queued for the stream to " + h.With
	case "sent":
		return "with " + h.With
	case "full":
		return "refused, since the mailbox of the key at " + h.With + " is full"
	case "delayed":
		return "sent again in a moment, since the owner has not read the newest epoch yet"
	case "refused":
		return "refused by the former owner; they wait for a newer epoch"
	}
	return h.Place
}

// holdWords tells who holds a key.
func holdWords(h Hold) string {
	return fmt.Sprintf("held until %s by %s because %q, since %s", TimeWords(h.Until), h.By, h.Reason, TimeWords(h.Since))
}

// ParkWords tells who has parked a key, or brings its letters back.
func ParkWords(k Park) string {
	what, more := "parked", ""
	if k.Unparking {
		what = "letters come back"
		if k.Letters > 0 {
			more = fmt.Sprintf("; %d handled here", k.Letters)
		}
		if k.Waits != "" {
			more += "; they wait: " + k.Waits
		}
	}
	return fmt.Sprintf("%s until %s by %s because %q, since %s (act %s)%s", what, TimeWords(k.Until), k.By, k.Reason, TimeWords(k.Since), k.ID, more)
}

// SkipWords tells what becomes of a skipped event.
func SkipWords(s Skip) string {
	return fmt.Sprintf("event %s %s; skipped by %s because %q, until %s (act %s)", s.Event, endWords(s.End), s.By, s.Reason, TimeWords(s.Until), s.ID)
}

// endWords describes the end of a skip.
func endWords(end string) string {
	switch end {
	case "dead_letter":
		return "went to the dead letter topic"
	case "done":
		return "is done: a handler that ran already had done it"
	case "":
		return "has not come to its end"
	}
	return "ended as " + end
}

// TimeWords is a time for people, in UTC.
func TimeWords(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
