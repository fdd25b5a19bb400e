package main

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/devtools/prove"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/telemetry"
)

const proveHelp = `Prove, beside a running group, that its routers keep their promise.

Every member, with prove.enabled, starts a second router of the same binary, settings
and broker, in a group of its own, and a built-in handler. They handle events of a
topic of their own; the group's own events and applications are never touched. While
events flow, members of the second group are killed, stopped and drained, as their
own routers can do without root. Then the records of the handlers are judged:
overlaps, lost events, duplicates, fences, waits. The report is a page and a JSON
object in --out.

All members are reached through the one of --admin, with the admin token. The second
routers take memory, connections and CPU time beside the first ones, so this is for
staging. When this command dies, every member ends its part after 90 s.

The exit code is 0 only if every promise held, and something was shown: events were
handled, keys moved, and faults hit running handlers.`

// proveCommand is prove, with its hidden children.
func proveCommand() *cobra.Command {
	var a asker
	var yes bool
	o, out := prove.DefaultOptions(), "proof"
	cmd := &cobra.Command{
		Use: "prove", Short: "Prove beside a running group, with faults, that its routers keep their promise; writes a report",
		Long: proveHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Seed == 0 {
				o.Seed = newSeed()
			}
			if err := o.Validate(); err != nil {
				return usageError{err}
			}
			o.By = account()
			group, err := proveGroup(cmd.Context(), &a)
			if err != nil {
				return err
			}
			if !yes {
				return usageError{fmt.Errorf("this starts a second router and a handler beside each of %s, publishes %d events/s for %v, and kills and stops these processes: say --yes if %s is a staging group",
					strings.Join(group.Members, ", "), o.Rate, o.For, group.Name)}
			}
			if err := os.MkdirAll(out, 0o750); err != nil {
				return fmt.Errorf("--out: %w", err) // before anything begins
			}
			began := time.Now()
			run, err := prove.Conduct(cmd.Context(), o, group, (&page{out: cmd.OutOrStdout()}).line) // members tell most of its words
			if err != nil {
				return err
			}
			run.Began, run.Command = began, strings.Join(append([]string{"router"}, os.Args[1:]...), " ")
			return proved(cmd, prove.Judge(run), out)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.For, "for", o.For, "how long events are published; at most prove.for_max of each member")
	f.IntVar(&o.Rate, "rate", o.Rate, "events per second, of all members together; prove.rate_max bounds the share of each")
	f.IntVar(&o.Keys, "keys", o.Keys, "distinct keys; at most prove.keys_max")
	f.DurationVar(&o.Every, "every", o.Every, "least time from one fault to the next; one begins when the group has recovered from the last")
	f.StringSliceVar(&o.Kinds, "faults", o.Kinds, "kinds of faults")
	f.DurationVar(&o.LengthMax, "fault-max", o.LengthMax, "longest time for which a process is away or stopped")
	f.Uint64Var(&o.Seed, "seed", 0, "of the order of the faults, to repeat it; 0: any")
	f.StringVar(&out, "out", out, "folder for report.html and report.json")
	f.BoolVar(&yes, "yes", false, "begin")
	a.addTo(cmd)
	cmd.AddCommand(proveChildren()...)
	return cmd
}

func newSeed() uint64 {
	var random [4]byte
	_, _ = crand.Read(random[:]) // never fails
	return uint64(binary.BigEndian.Uint32(random[:])) + 1
}

// errProof says that a proof does not show what it should.
var errProof = errors.New("the proof does not show that every promise held: see the report")

// proved writes the report, and returns an error unless every promise held and something was shown.
func proved(cmd *cobra.Command, v *prove.Verdict, out string) error {
	text, err := prove.JSON(v)
	if err != nil {
		return err
	}
	html, err := prove.HTML(v)
	if err != nil {
		return err
	}
	p := page{out: cmd.OutOrStdout()}
	p.line("")
	for _, c := range v.Checks {
		result := map[string]string{"promise": "BROKEN", "exercise": "NO"}[c.Kind]
		if c.Held {
			result = "ok"
		}
		p.line("%-7s %s: %s", result, c.Name, c.Says)
	}
	for _, text := range append(v.Examples, v.Notes...) {
		p.line("%s", text)
	}
	shown, object := filepath.Join(out, "report.html"), filepath.Join(out, "report.json")
	if err := errors.Join(os.WriteFile(shown, html, 0o600), os.WriteFile(object, text, 0o600)); err != nil {
		return err
	}
	p.line("\nreport: %s, %s", shown, object)
	if !v.Held || !v.Exercised {
		return errProof
	}
	return nil
}

// proveGroup reaches the members of a group through one of them.
func proveGroup(ctx context.Context, a *asker) (prove.Group, error) {
	var m report.Members
	if err := a.get(ctx, "/v1/members", &m); err != nil {
		return prove.Group{}, err
	}
	var g prove.Group
	for _, one := range m.Members {
		switch {
		case one.Unnamed: // gossip alone knows it: it may be a stranger
			continue
		case one.Status == nil:
			return prove.Group{}, fmt.Errorf("%s does not answer (%s): a proof needs all members", one.Name, one.Error)
		case one.Reach == report.ReachSelf:
			g.Name, g.Version = one.Status.Group, one.Status.Version
		}
		g.Members = append(g.Members, one.Name)
	}
	g.Ask = func(ctx context.Context, member string, ask prove.Ask) (answer prove.Answer, err error) {
		text, err := json.Marshal(ask)
		if err != nil {
			return answer, err
		}
		query := url.Values{"ask": {string(text)}}
		if member != "" {
			query.Set("member", member)
		}
		_, text, err = a.call(ctx, http.MethodPost, "/v1/prove?"+query.Encode(), askTimeout)
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		return answer, err
	}
	return g, nil
}

// The hidden commands of the processes of a proof.
const (
	proveRoleMember  = "member"
	proveRoleHandler = "handler"
)

func proveChildren() []*cobra.Command {
	var memory string
	member := child(proveRoleMember, func(cmd *cobra.Command) error {
		loaded, err := load(cmd, "") // the settings come from the environment
		if err != nil {
			return err
		}
		through := throughPulsar(loaded.Config)
		if memory != "" {
			if through, err = throughMemory(loaded.Config, memory); err != nil {
				return err
			}
		}
		through.claims, through.acts = nil, nil // names of a proof are never used again
		return runAlone(cmd.Context(), loaded.Config, through)
	})
	member.Flags().StringVar(&memory, "broker", "", "")
	handler := child(proveRoleHandler, func(cmd *cobra.Command) error {
		loaded, err := load(cmd, "") // the settings of the router beside it
		if err != nil {
			return err
		}
		log, _, err := telemetry.NewLogger(os.Stderr, loaded.Log)
		if err != nil {
			return usageError{err}
		}
		return prove.Handle(cmd.Context(), cmd.Flags().Arg(0), os.Stdout, log.With("node", loaded.Node.Name, "component", "handler"))
	})
	handler.Args = oneArg("ENDPOINT")
	return []*cobra.Command{member, handler}
}

// newProver returns what takes part in proofs for a router, also if the settings do not allow any: then it says so.
func newProver(cfg config.Config, b broker, token func() string, registry *prometheus.Registry, log *slog.Logger) (*prove.Host, error) {
	executable, err := os.Executable()
	if err != nil && cfg.Prove.Enabled {
		return nil, fmt.Errorf("prove.enabled: %w", err)
	}
	member := []string{"prove", proveRoleMember}
	if b.memory != "" {
		member = append(member, "--broker", b.memory)
	}
	if cfg.Prove.Enabled {
		log.Warn("this router takes part in proofs: callers with the admin token, and members of the group, can make it start processes and publish events", "setting", "prove.enabled")
	}
	return prove.NewHost(prove.Environment{
		Executable: executable, Member: member, Handler: []string{"prove", proveRoleHandler}, Stderr: os.Stderr,
		Config: cfg, Token: token, Publisher: b.publisher, Clean: b.clean, Registry: registry, Log: log,
	}), nil
}

// pulsarPublisher publishes to a topic of a proof.
type pulsarPublisher struct {
	client   pulsar.Client
	producer pulsar.Producer
}

func newPulsarPublisher(auth *pulsarAuth, topic string) (prove.Publisher, error) {
	client, err := pulsar.NewClient(auth.quietOptions())
	if err != nil {
		return nil, err
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: pulsarsend.NoTimeout, BatchingMaxPublishDelay: 5 * time.Millisecond})
	if err != nil {
		client.Close()
		return nil, err
	}
	return &pulsarPublisher{client, producer}, nil
}

// Publish implements prove.Publisher.
func (p *pulsarPublisher) Publish(ctx context.Context, key string, payload []byte, sent func(error)) {
	p.producer.SendAsync(ctx, &pulsar.ProducerMessage{Key: key, Payload: payload}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { sent(err) })
}

// Close implements prove.Publisher.
func (p *pulsarPublisher) Close() {
	p.producer.Close()
	p.client.Close()
}

// cleanPulsar removes the topics of a proof: by the admin API if the settings have it, and else by removing their subscriptions,
// whereupon brokers remove topics without readers by default.
func cleanPulsar(ctx context.Context, auth *pulsarAuth, topics prove.Topics) (remain []string) {
	if auth.settings.AdminURL != "" {
		admin := auth.admin()
		for _, topic := range topics.All() {
			if err := deleteTopic(ctx, admin, topic); err != nil {
				remain = append(remain, fmt.Sprintf("%s (%v)", topic, err))
			}
		}
		return remain
	}
	options := auth.quietOptions()
	options.OperationTimeout = 2 * time.Second
	client, err := pulsar.NewClient(options)
	if err != nil {
		return topics.All()
	}
	defer client.Close()
	for _, s := range []struct {
		topic, name string
		kind        pulsar.SubscriptionType
	}{{topics.Events, topics.Subscription, pulsar.Shared}, {topics.Retry, topics.Subscription, pulsar.Shared}, {topics.Control, "__anchor", pulsar.Failover}} {
		consumer, err := pulsarread.Subscribe(client, pulsar.ConsumerOptions{Topic: s.topic, SubscriptionName: s.name, Type: s.kind, ReceiverQueueSize: 1})
		if err == nil {
			err = consumer.UnsubscribeForce()
			consumer.Close()
		}
		if err != nil {
			remain = append(remain, fmt.Sprintf("%s (%v)", s.topic, err))
			continue
		}
		remain = append(remain, s.topic+" (without subscriptions: the broker removes it, unless brokerDeleteInactiveTopicsEnabled is false; pulsar.admin_url lets the router do it)")
	}
	return append(remain, topics.DeadLetters+" (if there were dead letters: as the others)")
}

// deleteTopic deletes a topic, whether it has topic partitions or not, if it is there.
func deleteTopic(ctx context.Context, admin pulsaradmin.Client, topic string) error {
	path := pulsaradmin.TopicPath(topic)
	partitions, err := admin.Partitions(ctx, topic)
	if err != nil && !pulsaradmin.IsNotFound(err) {
		return err
	}
	if partitions > 0 {
		path += "/partitions" // brokers refuse this for a topic that has none
	}
	if _, err = admin.Do(ctx, http.MethodDelete, path+"?force=true", nil); pulsaradmin.IsNotFound(err) {
		return nil
	}
	return err
}

// memoryPublisher publishes to a broker in the memory of another process.
type memoryPublisher struct {
	conn   *grpc.ClientConn
	client *membroker.Client
	topic  string
}

func newMemoryPublisher(address, topic string) (prove.Publisher, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &memoryPublisher{conn, membroker.NewClient(conn), topic}, nil
}

// Publish implements prove.Publisher.
func (p *memoryPublisher) Publish(ctx context.Context, key string, payload []byte, sent func(error)) {
	_, err := p.client.Publish(ctx, p.topic, []membroker.Message{{Key: key, Payload: payload}})
	sent(err)
}

// Close implements prove.Publisher.
func (p *memoryPublisher) Close() { _ = p.conn.Close() } // nothing is in flight
