package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Rule is one thing that a worker must do.
type Rule struct {
	Name string `json:"rule"`
	Why  string `json:"why"` // one sentence
}

// rules are all rules, in the order of the report.
var rules = []Rule{
	{"hello", "The first frame is a Hello of at most 4 KiB with a max_in_flight of 1 to 100,000 and versions that include 1; no later frame is one."},
	{"declared", "Hello declares the capability conformant, so that routers do not name the worker as unchecked."},
	{"version", "A Welcome with a version that Hello did not offer ends the session; the worker dials again."},
	{"token", "The token file is read for each stream, and its content is sent without white space around it."},
	{"unknown", "Unknown fields, frames and capabilities are ignored."},
	{"pings", "Pings count from 1 without gaps and come at the interval of the Welcome, the first right after Hello."},
	{"receipts", "Each Deliveries frame gets its receipt, before its handlers have ended."},
	{"receipts-exact", "A receipt names a frame that was sent, and never an older one than an earlier receipt did."},
	{"first-pong", "Nothing starts before a Pong that answers a Ping with a positive remaining_ns."},
	{"deadline-from-ping", "A deadline counts from before its Ping was sent: a Pong that took longer than its remaining_ns lets nothing start."},
	{"deadline-moves", "A handler runs on while Pongs move its deadline."},
	{"deadline-cancels", "A handler is cancelled when its deadline has passed."},
	{"late-pong", "A Pong that is read after the deadline does not extend it."},
	{"ignored-cancel", "A handler that ignores its cancellation does not hold up the next delivery of its key."},
	{"revoke-waiting", "A revoked delivery that has not started is answered NOT_STARTED and never starts, whatever Pong follows."},
	{"revoke-earlier", "A Revoke applies to deliveries that arrived before it, not to later ones of its partitions."},
	{"revoke-running", "A Revoke freezes the deadline of a running delivery: later Pongs do not move it."},
	{"draining", "A Pong moves the deadlines of the revoked deliveries in its draining list."},
	{"revoke-single", "A running delivery in Revoke.delivery_ids is cancelled at once, and a waiting one does not start."},
	{"suspend", "Nothing starts between Suspend and Resume, and running handlers continue."},
	{"answers", "The kind of each answer is what the handler did, its reason is valid UTF-8 within reason_max_bytes, and a crash of a handler is a RETRY."},
	{"retry-after", "The delay that a handler asks for is in after_ms."},
	{"progress", "A handler's report of progress is sent with its delivery_id."},
	{"fence", "The fence of a delivery reaches its handler unchanged, and is that of this delivery."},
	{"intervals", "If the Welcome has the capability intervals, the answer of a handler that ran says when it started and how long it ran, by the boot clock; otherwise none does."},
	{"answered-once", "Each delivery is answered once, on the stream that it arrived on."},
	{"results-numbers", "Results frames count from 1 without gaps."},
	{"one-handler", "A key never runs in two handlers at once: a delivery is answered after its handler has ended."},
	{"batch", "A frame of 2,048 deliveries is handled, or of as many as max_in_flight lets in."},
	{"large", "Events of 8 MiB are handled."},
	{"in-flight", "As many deliveries as max_in_flight says can wait, and all are answered."},
	{"go-away", "After a GoAway the worker dials again, not before retry_after_ms."},
	{"silence", "A stream without a frame for 10 s is given up, its handlers end at their deadlines, and the worker dials again."},
	{"reconnect", "After a broken stream its waiting deliveries never start, and its answers are not sent on the new one."},
	{"old-deadline", "Pongs of a new stream do not move the deadlines of handlers of an older one."},
	{"frozen", "A process that was stopped until after its deadline starts nothing before the next Pong."},
	{"call-reply", "The answer of a call is DONE with the bytes that the handler of its method returned; that of an event has no reply."},
	{"call-method", "A call of a method without a handler starts nothing, and is answered NOT_STARTED with the code no_handler."},
	{"call-failure", "A call whose handler fails is answered RETRY with the reason and the handler's code, without a code if it gave none."},
	{"call-revoked", "A running call in Revoke.delivery_ids is cancelled at once and answered CANCELLED, and a waiting one does not start."},
	{"call-large", "A reply of 1 MiB is sent, a larger one is answered RETRY with the code too_large, and no frame has more than 2 MiB, however many replies wait."},
	{"timers", "The timers that a handler has set are published with Send, with key, name, payload, time and token, before the answer DONE is sent."},
	{"timers-ids", "The id of a timer is after/LEDGER:ENTRY:PARTITION:BATCH/N: the message id of the event that set it, and its number, from 0. It is the same in every run."},
	{"timers-failed", "A handler that fails publishes none of the timers that it has set."},
	{"timers-unsent", "A Send that fails makes the answer a RETRY; one that is refused with RESOURCE_EXHAUSTED is sent again; one that waits at the deadline is given up, and the answer is CANCELLED."},
	{"timer", "What a delivery says in its field timer reaches the handler: the name, and when it was due."},
	{"schedules", "Hello declares the schedule of the application once, with its name, its period and nothing else."},
	{"firing", "A firing reaches the handler of its schedule, and never that of events, with time, missed, attempt and fence; a failure is a RETRY, a rejection a REJECT, and a firing of an undeclared schedule a RETRY."},
	{"firing-timers", "The timers that the handler of a firing has set have the key schedule/NAME, and ids as those of an event have."},
	{"state", "A turn gets the state that the turn before it has left if their stream, token and generation are the same, and the generation is not 0. Otherwise it loads."},
	{"state-dropped", "No turn gets a state from before a turn that failed, was cancelled or did not ask for it, from before a Revoke of its partition, or from an earlier stream."},
	{"state-lost", "A handler that continues after its deadline leaves no state. No turn of its key gets or leaves one as long as it runs."},
	{"drain", "SIGTERM sends Drain; running handlers finish, waiting and later deliveries are answered NOT_STARTED, and the exit code is 0."},
	{"drain-receipt", "A draining worker keeps sending Pings, and half-closes after the receipt of its last Results frame."},
}

// Verdict is the result of one rule.
type Verdict struct {
	Rule
	Result Result `json:"result"`
	Reason string `json:"reason,omitempty"` // unless it passed
}

// Result tells whether a worker keeps a rule.
type Result string

// The results.
const (
	Pass    Result = "pass"
	Fail    Result = "fail"
	Skipped Result = "skipped" // not judged; the reason says why
	Absent  Result = "absent"  // not judged, since the worker does not declare the capability that the rule is about
)

// Options are what a run needs.
type Options struct {
	Command  []string      // the worker, and its arguments
	Only     []string      // rules to check; empty: all
	Patience time.Duration // how long the worker may take for each thing that it has to do
	Parallel int           // scenes side by side, each with a worker

	late    time.Duration // how long after a thing has happened a scene notices it, as on a busy machine; tests set it
	starves bool          // each handler whose deadline has to move loses its first lease, as on a busy machine; tests set it
}

// DefaultOptions returns the options of the command, without a worker.
func DefaultOptions() Options { return Options{Patience: 10 * time.Second, Parallel: 12} }

// Validate reports every option that makes no sense.
func (o Options) Validate() error {
	var errs []error
	if len(o.Command) == 0 {
		errs = append(errs, errors.New("no worker: put its command after --"))
	}
	for _, name := range o.Only {
		if !slices.ContainsFunc(rules, func(r Rule) bool { return r.Name == name }) {
			errs = append(errs, fmt.Errorf("--only: there is no rule %q; `router conformance --help` lists them", name))
		}
	}
	if o.Patience <= 0 {
		errs = append(errs, fmt.Errorf("--patience = %v, want more than 0", o.Patience))
	}
	if o.Parallel < 1 {
		errs = append(errs, fmt.Errorf("--parallel = %d, want >= 1", o.Parallel))
	}
	return errors.Join(errs...)
}

// errSystem is the error of systems without CLOCK_BOOTTIME.
var errSystem = fmt.Errorf("conformance: it compares the boot-time clocks of two processes, which %s lacks: run it on Linux", runtime.GOOS)

// Run checks a worker and returns a verdict for each rule that was asked for. The error says why
// there are no verdicts: the command cannot be started, or ctx has ended.
func Run(ctx context.Context, o Options) ([]Verdict, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if !supported {
		return nil, errSystem
	}
	var mu sync.Mutex
	verdicts := map[string]Verdict{}
	var failure error
	room := make(chan struct{}, o.Parallel)
	var all sync.WaitGroup
	for _, sc := range scenes {
		if !sc.checks(o.Only) {
			continue
		}
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			found, err := play(ctx, o, sc)
			mu.Lock()
			defer mu.Unlock()
			if failure == nil {
				failure = err
			}
			for _, v := range found {
				if old, ok := verdicts[v.Name]; !ok || v.worse(old) {
					verdicts[v.Name] = v
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(ctx.Err(), failure); err != nil {
		return nil, err
	}
	var report []Verdict
	for _, rule := range rules {
		if len(o.Only) == 0 || slices.Contains(o.Only, rule.Name) {
			v := verdicts[rule.Name]
			v.Rule = rule
			report = append(report, v)
		}
	}
	return report, nil
}

// worse reports whether v replaces the verdict of another scene about the same rule.
func (v Verdict) worse(than Verdict) bool {
	order := []Result{Pass, Absent, Skipped, Fail}
	return slices.Index(order, v.Result) > slices.Index(order, than.Result)
}

// scene checks the rules that it lists; it may find violations of others by the way. If it ends
// early, the rules that it has not judged are skipped.
type scene struct {
	rules []string
	play  func(*router)
	setup func(*router) // before the worker starts; may be nil
}

func (s scene) checks(only []string) bool {
	return len(only) == 0 || slices.ContainsFunc(s.rules, func(name string) bool { return slices.Contains(only, name) })
}

var scenes = slices.Concat(slowScenes, sessionScenes, deadlineScenes, revokeScenes, answerScenes, callScenes, timerScenes, scheduleScenes, stateScenes, loadScenes, processScenes)

// play runs one scene with a worker of its own.
func play(ctx context.Context, o Options, sc scene) ([]Verdict, error) {
	r, err := newRouter(ctx, o, sc)
	if err != nil {
		return nil, err
	}
	sc.play(r)
	r.close()
	return r.verdicts(sc.rules), nil
}

// verdicts returns the verdict of each rule that the scene was about, or found a violation of.
func (r *router) verdicts(about []string) []Verdict {
	var found []Verdict
	for _, rule := range rules {
		v := Verdict{Rule: rule, Result: Pass}
		reason, failed := r.failures[rule.Name]
		skip, skipped := r.skips[rule.Name]
		switch {
		case failed:
			v.Result, v.Reason = Fail, reason
		case !slices.Contains(about, rule.Name):
			continue
		case skipped:
			v.Result, v.Reason = Skipped, skip
		case r.absent != "":
			v.Result, v.Reason = Absent, r.absent
		case r.dead != "":
			v.Result, v.Reason = Skipped, "the scene ended early: "+r.dead+": "+r.failures[r.dead]
		}
		found = append(found, v)
	}
	return found
}

// Passed reports whether the worker keeps every rule that is about something that it declares.
func Passed(verdicts []Verdict) bool {
	return !slices.ContainsFunc(verdicts, func(v Verdict) bool { return v.Result != Pass && v.Result != Absent })
}

// Help lists the rules, one a line.
func Help() string {
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&b, "  %-19s %s\n", r.Name, r.Why)
	}
	return b.String()
}
