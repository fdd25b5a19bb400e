package prove

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/report"
)

// Environment has what a [Host] needs of its router.
type Environment struct {
	Executable string        // this binary
	Member     []string      // its arguments that run a router with the settings of its environment
	Handler    []string      // its arguments that call [Handle] with the endpoint that follows
	Stderr     io.Writer     // of both
	Config     config.Config // of the router
	Token      func() string // of the admin endpoint; "": none

	// Publisher opens the topic of a proof.
	Publisher func(topic string) (Publisher, error)
	// Clean removes the topics of a proof that has ended, and returns those that may be left, with the reason.
	Clean func(ctx context.Context, topics Topics) (remain []string)

	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Publisher publishes events. Its methods are called by one goroutine.
type Publisher interface {
	// Publish calls sent once, from any goroutine: when the broker has the event, or with the reason why that is not known.
	Publish(ctx context.Context, key string, payload []byte, sent func(error))
	Close()
}

// Topics are those of a proof.
type Topics struct {
	Events, Retry, DeadLetters, Control string // full names
	Subscription                        string // of Events and Retry
}

// All lists them.
func (t Topics) All() []string { return []string{t.Events, t.Retry, t.DeadLetters, t.Control} }

// Host takes part in proofs for one router. It implements [report.Prover].
type Host struct {
	env     Environment
	log     *slog.Logger
	metrics metrics
	clockID string

	mu     sync.Mutex
	proof  *proof // nil: none runs
	closed bool
}

var _ report.Prover = (*Host)(nil)

type metrics struct {
	running prometheus.Gauge
	events  prometheus.Counter
	faults  *prometheus.CounterVec
	lost    prometheus.Counter
	refused prometheus.Counter
}

// NewHost returns the Host of a router. Call [Host.Close] at its end.
func NewHost(env Environment) *Host {
	with := promauto.With(env.Registry)
	h := &Host{
		env: env, log: env.Log.With("component", "prove"), clockID: ownClockID(),
		metrics: metrics{
			running: with.NewGauge(prometheus.GaugeOpts{Name: "ringfence_prove_running", Help: "1 while this router takes part in a proof (router prove)."}),
			events:  with.NewCounter(prometheus.CounterOpts{Name: "ringfence_prove_events_total", Help: "Events published to topics of proofs."}),
			faults:  with.NewCounterVec(prometheus.CounterOpts{Name: "ringfence_prove_faults_total", Help: "Faults injected into the processes of proofs, by kind."}, []string{"kind"}),
			lost:    with.NewCounter(prometheus.CounterOpts{Name: "ringfence_prove_records_lost_total", Help: "Records of a proof that the command did not fetch in time (prove.records_max): the proof fails."}),
			refused: with.NewCounter(prometheus.CounterOpts{Name: "ringfence_prove_refused_total", Help: "Steps of proofs that this router refused."}),
		},
	}
	for _, kind := range Kinds {
		h.metrics.faults.WithLabelValues(kind)
	}
	return h
}

// Close ends the proof that runs, if any, and waits until its processes have ended.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	p := h.proof
	h.mu.Unlock()
	if p != nil {
		p.end("the router ends")
		<-p.over
	}
}

// Prove implements [report.Prover].
func (h *Host) Prove(ctx context.Context, text []byte) ([]byte, error) {
	var ask Ask
	err := json.Unmarshal(text, &ask)
	if err == nil {
		err = ask.check()
	}
	answer := Answer{
		Member: h.env.Config.Node.Name, Enabled: h.env.Config.Prove.Enabled, ClockID: h.clockID,
		Limits: Limits{Seconds: h.env.Config.Prove.ForMax.Seconds(), Rate: h.env.Config.Prove.RateMax, Keys: h.env.Config.Prove.KeysMax},
	}
	if err == nil {
		err = h.take(ctx, &ask, &answer)
	}
	if err != nil {
		h.metrics.refused.Inc()
		answer.Error = err.Error()
	}
	answer.Now = int64(clock.Shared())
	return json.Marshal(answer)
}

// take takes one step.
func (h *Host) take(ctx context.Context, ask *Ask, answer *Answer) error {
	if !h.env.Config.Prove.Enabled {
		if ask.Do == DoLook {
			return nil
		}
		return fmt.Errorf("prove.enabled is false at %s", answer.Member)
	}
	switch ask.Do {
	case DoStart:
		return h.start(ask, answer)
	case DoClean:
		return h.clean(ctx, ask, answer)
	}
	h.mu.Lock()
	p := h.proof
	h.mu.Unlock()
	if p != nil {
		answer.Run = p.run
	}
	if ask.Do == DoLook {
		return nil
	}
	if p == nil || p.run != ask.Run {
		return fmt.Errorf("no proof %s runs at %s", ask.Run, answer.Member)
	}
	p.heard()
	switch ask.Do {
	case DoPoll:
		p.poll(ask, answer)
	case DoFault:
		return p.inject(*ask.Fault) //nolint:contextcheck // the fault outlasts the step that begins it
	case DoStop:
		p.end("the command has ended it")
		<-p.over
	}
	return nil
}

// start starts a proof; its processes are ready later.
func (h *Host) start(ask *Ask, answer *Answer) error {
	limits := answer.Limits
	switch plan := ask.Plan; {
	case h.env.Publisher == nil:
		return fmt.Errorf("the broker of %s is within its process, which no other reaches", answer.Member)
	case h.env.Config.Ownership.Mode != config.ModeStrict:
		return fmt.Errorf("ownership.mode is %s, which promises nothing that could be proved", h.env.Config.Ownership.Mode)
	case plan.Seconds > limits.Seconds:
		return fmt.Errorf("%v is longer than prove.for_max, %v", time.Duration(plan.Seconds*1e9), h.env.Config.Prove.ForMax)
	case plan.Rate > limits.Rate:
		return fmt.Errorf("%d events per second are more than prove.rate_max, %d", plan.Rate, limits.Rate)
	case plan.Keys > limits.Keys:
		return fmt.Errorf("%d keys are more than prove.keys_max, %d", plan.Keys, limits.Keys)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return fmt.Errorf("%s ends", answer.Member)
	case h.proof != nil:
		return fmt.Errorf("proof %s runs at %s, for another command", h.proof.run, answer.Member)
	}
	p, err := newProof(h, ask.Run, *ask.Plan)
	if err != nil {
		return err
	}
	h.proof = p
	h.metrics.running.Set(1)
	h.log.Warn("a proof has started", "run", p.run, "by", ask.Plan.By, "seconds", ask.Plan.Seconds, "events_per_second", ask.Plan.Rate, "topic", p.topics.Events)
	answer.Run = p.run
	p.begin(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.proof = nil
		h.metrics.running.Set(0)
	})
	return nil
}

// cleanTimeout bounds the removal of topics: the admin endpoint gives an answer ten seconds.
const cleanTimeout = 8 * time.Second

// clean removes the topics of a proof that has ended everywhere.
func (h *Host) clean(ctx context.Context, ask *Ask, answer *Answer) error {
	h.mu.Lock()
	running := h.proof != nil
	h.mu.Unlock()
	if running {
		return fmt.Errorf("a proof runs at %s", answer.Member)
	}
	_, topics := settingsOf(h.env.Config, ask.Run, ports{})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	answer.Remain = h.env.Clean(ctx, topics)
	return nil
}

// ownClockID names the clock that clock.Shared reads: equal in all processes of a machine.
func ownClockID() string {
	here := exchange.Here(new(audit.Wander))
	return hex.EncodeToString(here.ID[:])
}
