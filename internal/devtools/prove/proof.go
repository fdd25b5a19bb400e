package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/report"
)

const (
	// besideMax is the time that a proof may take beside its plan: to form the group, to finish its events and to leave.
	besideMax = 5 * time.Minute
	// silenceMax is how long the command may be silent before a member ends the proof.
	silenceMax = 90 * time.Second

	lookEvery    = 100 * time.Millisecond // at readiness
	auditEvery   = 500 * time.Millisecond // at the router's report
	publishEvery = 20 * time.Millisecond
	askChildMax  = 2 * time.Second
	drainMax     = time.Minute

	restartAfter = time.Second // of a process that ended by itself
	restartsMax  = 20          // of those

	recordsPerAnswer = 8000 // of some 120 bytes each
	reportBytesMax   = 1 << 20
)

// proof is one proof at one member.
type proof struct {
	host     *Host
	run      string
	plan     Plan
	settings config.Config // of its router
	topics   Topics
	base     string // URL of its router's admin endpoint
	endpoint string // of its application port

	ctx   context.Context //nolint:containedctx // ends with the proof, from several sides
	stop  context.CancelCauseFunc
	over  chan struct{} // closed when nothing is left running
	tasks sync.WaitGroup
	group *procgroup.Group

	mu          sync.Mutex
	lastWord    clock.Instant // of the command
	load        bool
	unconfirmed int    // events sent, without the broker's answer
	busy        bool   // with a fault
	left        bool   // for good
	why         string // its router is not ready
	drained     bool
	router      *procgroup.Process
	handlers    *procgroup.Process
	process     int // number of handlers
	restarts    int
	records     []Record
	first       int // number of records[0]
	lost        int
	past        Audit // of incarnations that have ended
	present     Audit
	unsettled   int
}

func newProof(h *Host, run string, plan Plan) (*proof, error) {
	p := &proof{host: h, run: run, plan: plan, over: make(chan struct{}), lastWord: clock.Now(), why: "it starts"}
	chosen, err := freePorts(h.env.Config.Prove)
	if err != nil {
		return nil, err
	}
	p.settings, p.topics = settingsOf(h.env.Config, run, chosen)
	p.base, p.endpoint = "http://"+procgroup.Loopback(chosen.admin), procgroup.Loopback(chosen.app)
	environ := append(config.WithoutSettings(os.Environ()), p.settings.Environ()...)
	if file := p.settings.App.TokenFile; file != "" {
		environ = append(environ, client.TokenFileEnv+"="+file)
	}
	p.group = procgroup.New(procgroup.Config{
		Executable: h.env.Executable, Environ: environ, DieWithParent: true,
		Stderr: func(string) io.Writer { return h.env.Stderr },
		Ended:  p.endedByItself,
	})
	return p, nil
}

// begin runs the proof; over is called at its end.
func (p *proof) begin(over func()) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Duration(p.plan.Seconds*1e9)+besideMax, errors.New("its time is up"))
	p.ctx, p.stop = context.WithCancelCause(ctx)
	var whole sync.WaitGroup
	whole.Go(func() { // outlives the caller: it ends with the proof
		defer close(p.over)
		defer over()
		defer cancel()
		p.tasks.Go(p.watch)
		p.tasks.Go(p.publish)
		if err := p.startBoth(); err != nil {
			p.end(err.Error())
		}
		<-p.ctx.Done()
		p.group.StopAll()
		p.tasks.Wait()
		p.group.StopAll() // what a task has started meanwhile
		p.host.log.Warn("the proof has ended", "run", p.run, "reason", context.Cause(p.ctx))
	})
}

func (p *proof) end(why string) { p.stop(errors.New(why)) }

func (p *proof) heard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastWord = clock.Now()
}

// note adds a record. The caller holds the lock.
func (p *proof) note(r Record) {
	if len(p.records) >= p.host.env.Config.Prove.RecordsMax {
		p.lost++
		p.host.metrics.lost.Inc()
		return
	}
	p.records = append(p.records, r)
}

func (p *proof) noteNow(r Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.At == 0 {
		r.At = int64(clock.Shared())
	}
	p.note(r)
}

// poll tells what has happened since the command asked last.
func (p *proof) poll(ask *Ask, answer *Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load = ask.Load
	known := min(max(0, ask.From-p.first), len(p.records))
	p.records = slices.Delete(p.records, 0, known)
	p.first += known
	answer.Records = slices.Clone(p.records[:min(len(p.records), recordsPerAnswer)])
	answer.Next = p.first + len(answer.Records)
	answer.Pending = len(p.records) - len(answer.Records)
	answer.Unconfirmed = p.unconfirmed
	answer.Lost = p.lost
	answer.Ready, answer.Why, answer.Drained, answer.Unsettled = !p.busy && p.why == "", p.why, p.drained, p.unsettled
	if p.busy {
		answer.Why = "a fault is at work"
	}
	answer.Audit.add(p.past)
	answer.Audit.add(p.present)
}

// The processes.

func (p *proof) startBoth() error {
	if err := p.startRouter(); err != nil {
		return err
	}
	return p.startHandlers()
}

func (p *proof) startRouter() error {
	router, err := p.group.Start("router", func(string) {}, p.host.env.Member...)
	if err != nil {
		return fmt.Errorf("prove: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.router, p.why = router, "it starts"
	p.past.add(p.present)
	p.present = Audit{}
	return nil
}

func (p *proof) startHandlers() error {
	p.mu.Lock()
	p.process++
	number := p.process
	p.note(Record{Kind: HandlersBegan, At: int64(clock.Shared()), Process: number})
	p.mu.Unlock()
	handlers, err := p.group.Start("handlers", func(line string) { p.told(number, line) }, append(slices.Clone(p.host.env.Handler), p.endpoint)...)
	if err != nil {
		return fmt.Errorf("prove: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlers = handlers
	return nil
}

// told takes a line of the built-in handler.
func (p *proof) told(process int, line string) {
	var r Record
	if json.Unmarshal([]byte(line), &r) != nil || r.Kind != HasStarted && r.Kind != HasEnded {
		p.host.log.Warn("the built-in handler wrote a line that is not a record", "bytes", len(line))
		return
	}
	r.Process = process
	p.noteNow(r)
}

// endedByItself starts a process again that nobody has ended.
func (p *proof) endedByItself(process *procgroup.Process, err error) {
	if p.ctx.Err() != nil {
		return
	}
	p.noteNow(Record{Kind: EndedByItself, Text: err.Error()})
	p.mu.Lock()
	p.restarts++
	many, handlers, number := p.restarts > restartsMax, process == p.handlers, p.process
	if handlers {
		p.note(Record{Kind: WasKilled, At: int64(clock.Shared()), Process: number})
	}
	p.mu.Unlock()
	if many {
		p.end("its processes end again and again: " + err.Error())
		return
	}
	p.tasks.Go(func() {
		if backoff.Sleep(p.ctx, restartAfter) != nil {
			return
		}
		start := p.startRouter
		if handlers {
			start = p.startHandlers
		}
		if err := start(); err != nil {
			p.end(err.Error())
		}
	})
}

// watch looks at the router, and at the command's patience.
func (p *proof) watch() {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var audited clock.Instant
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-ticker.C:
		}
		p.mu.Lock()
		silence := clock.Now().Sub(p.lastWord)
		p.mu.Unlock()
		if silence > silenceMax {
			p.end(fmt.Sprintf("the command has said nothing for %v", silenceMax))
			return
		}
		code, text, err := p.ask(http.MethodGet, "/readyz", askChildMax)
		why := ""
		switch {
		case err != nil:
			why = err.Error()
		case code != http.StatusOK:
			why = strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", ", ")
		}
		p.mu.Lock()
		p.why = why
		p.mu.Unlock()
		if clock.Now().Sub(audited) > auditEvery {
			p.audit()
			audited = clock.Now()
		}
	}
}

// audit reads the findings of the router.
func (p *proof) audit() {
	p.mu.Lock()
	asked := p.router
	p.mu.Unlock()
	var s report.Status
	_, text, err := p.ask(http.MethodGet, "/v1/status", askChildMax)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return // killed, stopped or not yet there
	}
	found := Audit{
		InvariantFailures: s.Exclusivity.InvariantFailures, ForcedDrains: s.Exclusivity.ForcedDrains, LateResults: s.Exclusivity.LateResults,
		LostTrust: s.Exclusivity.LostTrust, LeaseLapses: s.Exclusivity.LeaseLapses,
	}
	if a := s.Exclusivity.Audit; a != nil {
		found.Handlings, found.Overlaps, found.Undecided = a.Handlings, a.Overlaps, a.Undecided
		for _, o := range a.Newest {
			found.Found = append(found.Found, Overlap{o.KeyHash, o.Fences, o.String()})
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.router == asked { // else another one has taken its place, which the numbers may be of
		found.found(p.present.Found) // the router shows only the newest
		p.present, p.unsettled = found, s.Events.Unsettled
	}
}

// ask asks the admin endpoint of the proof's router.
func (p *proof) ask(method, path string, timeout time.Duration) (code int, text []byte, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, p.base+path, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	if token := p.host.env.Token(); token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, errors.New("its router does not answer")
	}
	defer response.Body.Close()
	text, err = io.ReadAll(io.LimitReader(response.Body, reportBytesMax))
	return response.StatusCode, text, err
}

// The load.

// publish publishes events while the command wants it and fetches the records of those before.
func (p *proof) publish() {
	var publisher Publisher
	pauses := backoff.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		var err error
		if publisher, err = p.host.env.Publisher(p.topics.Events); err == nil {
			break
		}
		p.host.log.Warn("the topic of the proof cannot be opened", "topic", p.topics.Events, "error", err)
		if backoff.Sleep(p.ctx, pauses.Next()) != nil {
			return
		}
	}
	defer publisher.Close()
	ticker := time.NewTicker(publishEvery)
	defer ticker.Stop()
	newest, due, before := 0, 0.0, clock.Now()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-ticker.C:
		}
		now := clock.Now()
		due = min(due+now.Sub(before).Seconds()*float64(p.plan.Rate), float64(p.plan.Rate)) // a second's worth at most, after a pause
		before = now
		if !p.mayPublish() {
			due = 0
			continue
		}
		for ; due >= 1 && p.publishOne(publisher, newest+1); due-- {
			newest++
		}
	}
}

func (p *proof) mayPublish() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.load && len(p.records) < p.host.env.Config.Prove.RecordsMax/2
}

// publishOne reports whether the command still wants events.
func (p *proof) publishOne(publisher Publisher, n int) bool {
	p.mu.Lock()
	wanted := p.load
	if wanted {
		p.unconfirmed++
	}
	p.mu.Unlock()
	if !wanted {
		return false
	}
	event := EventOf(p.plan.Member, n)
	key := int(event * 0x9e3779b97f4a7c15 >> 33 % uint64(p.plan.Keys))
	text, _ := json.Marshal(payload{p.run, event, key}) // it has numbers and a short text
	at := int64(clock.Shared())
	p.host.metrics.events.Inc()
	publisher.Publish(p.ctx, keyName(key), text, func(err error) {
		r := Record{Kind: WasPublished, At: at, Event: event, Key: key}
		if err != nil {
			r.Kind = WasSent
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.note(r)
		p.unconfirmed--
	})
	return true
}

// The faults.

var errBusy = errors.New("another fault is at work here")

// inject begins a fault. It ends later.
func (p *proof) inject(f Fault) error {
	if f.Kind != Leave && !slices.Contains(Kinds, f.Kind) {
		return fmt.Errorf("no such fault: %.20q", f.Kind)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy || p.left {
		return errBusy
	}
	p.busy, p.left = true, f.Kind == Leave
	p.host.metrics.faults.WithLabelValues(f.Kind).Inc()
	p.host.log.Warn("the proof injects a fault", "run", p.run, "number", f.Number, "kind", f.Kind, "seconds", f.Seconds)
	p.note(Record{Kind: FaultBegan, At: int64(clock.Shared()), Fault: &f})
	p.tasks.Go(func() {
		if err := p.perform(f); err != nil && p.ctx.Err() == nil {
			p.noteNow(Record{Kind: EndedByItself, Text: fmt.Sprintf("fault %d (%s) failed: %v", f.Number, f.Kind, err)})
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy = false
		if !p.left {
			p.why = "it comes back" // until watch has looked
		}
		p.note(Record{Kind: FaultEnded, At: int64(clock.Shared()), Fault: &f})
	})
	return nil
}

func (p *proof) perform(f Fault) error {
	p.mu.Lock()
	router, handlers, number := p.router, p.handlers, p.process
	p.mu.Unlock()
	if router == nil || handlers == nil {
		return errors.New("its processes do not run")
	}
	length := time.Duration(f.Seconds * 1e9)
	switch f.Kind {
	case Kill:
		return errors.Join(p.killHandlers(handlers, number), kill(router), p.after(length, p.startBoth))
	case KillRouter:
		return errors.Join(kill(router), p.after(length, p.startRouter))
	case KillHandler:
		return errors.Join(p.killHandlers(handlers, number), p.after(length, p.startHandlers))
	case Pause:
		return p.pause(length, number, handlers, router)
	case PauseRouter:
		return p.pause(length, 0, router)
	case Drain, Leave:
		return p.drain(length, f.Kind == Leave)
	}
	return nil
}

func kill(router *procgroup.Process) error {
	_, err := router.Kill()
	return err
}

// killHandlers ends the handlers. All that they wrote is read before it returns.
func (p *proof) killHandlers(handlers *procgroup.Process, number int) error {
	at, err := handlers.Kill()
	if err == nil {
		p.noteNow(Record{Kind: WasKilled, At: int64(at), Process: number})
	}
	return err
}

// after waits, and starts something again.
func (p *proof) after(length time.Duration, start func() error) error {
	if err := backoff.Sleep(p.ctx, length); err != nil {
		return err
	}
	return start()
}

// pause stops processes for a time. number is that of the handlers among them, 0 if there are none.
func (p *proof) pause(length time.Duration, number int, processes ...*procgroup.Process) error {
	var from clock.Instant
	var errs []error
	for i, process := range processes {
		at, err := process.Pause()
		if i == 0 {
			from = at
		}
		errs = append(errs, err)
	}
	_ = backoff.Sleep(p.ctx, length) // the end of the proof ends the processes
	for _, process := range processes {
		until, err := process.Resume()
		errs = append(errs, err)
		if number != 0 && process == processes[0] {
			p.noteNow(Record{Kind: WasStopped, At: int64(from), Until: int64(until), Process: number})
		}
	}
	return errors.Join(errs...)
}

func (p *proof) drain(length time.Duration, forGood bool) error {
	code, text, err := p.ask(http.MethodPost, "/drain?wait="+drainMax.String(), drainMax+askChildMax)
	switch {
	case err != nil:
		return err
	case code != http.StatusOK:
		return fmt.Errorf("not drained after %v: %.200s", drainMax, strings.TrimSpace(string(text)))
	}
	if forGood {
		p.audit()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drained = true
		return nil
	}
	if err := backoff.Sleep(p.ctx, length); err != nil {
		return err
	}
	code, text, err = p.ask(http.MethodPost, "/undrain?wait=10s", 10*time.Second+askChildMax)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("it does not come back: %.200s", strings.TrimSpace(string(text)))
	}
	return err
}
