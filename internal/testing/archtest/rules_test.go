package archtest

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// words are what every stage may import: data, pure decisions, and the wire.
var words = []string{
	"ring", "internal/base/event", "internal/base/clock", "internal/outcome", "internal/ownership", "internal/base/invariant",
	"internal/base/identity", "internal/base/partition", "internal/base/setting", "proto",
}

// anywhere lists the packages that every package may import: a few lines that stand for a loop or a select.
var anywhere = []string{"internal/base/signal", "internal/base/backoff", "internal/testing/eventually"}

var stages = []string{"internal/source", "internal/key", "forward", "internal/mailbox", "internal/app"}

var anything = []string{"ring", "forward", "client", "internal", "proto"}

// arrows: cmd → node → pipeline → stages → words.
var arrows = map[string]arrow{
	"ring":                        {[]string{"internal/base/partition", "internal/base/setting"}, "the bottom: everybody routes by it"},
	"internal/base/clock":         {nil, "the bottom: an instant knows nothing"},
	"internal/base/invariant":     {nil, "the bottom: everybody asserts"},
	"internal/netx/untrusted":     {nil, "the bottom: strings, whoever has written them"},
	"internal/telemetry/loglimit": {[]string{"internal/base/clock"}, "how often a line is logged, whatever it says"},
	"internal/wire/framepool":     {nil, "the bottom: memory of frames, whatever is in them"},
	"internal/base/partition":     {nil, "the bottom: a key in, its partition out"},
	"internal/base/setting":       {nil, "the bottom: tags of fields, whatever they configure"},
	"internal/netx/reload":        {[]string{"internal/base/clock"}, "files, whatever is in them"},
	"internal/base/idlecpu":       {[]string{"internal/base/clock"}, "a process and its processors, whatever it does"},
	"internal/base/event":         {[]string{"internal/base/partition", "internal/base/clock"}, "shared words; an event names its partition, and one that is done the instant"},
	"internal/base/identity":      {nil, "the bottom: names and values, whatever they mean"},
	"internal/outcome":            {[]string{"internal/base/event"}, "pure: one result in, one outcome out"},
	"internal/mailbox/admission":  {[]string{"ring", "internal/base/event", "internal/base/clock"}, "pure: what it knows of members and topics it is told"},
	"internal/ownership":          {[]string{"ring", "internal/base/event", "internal/base/clock", "internal/base/identity", "internal/base/invariant", "internal/base/setting"}, "pure: who may act depends on records and instants only"},

	"internal/source": {
		slices.Concat(words, []string{"internal/broker/membroker", "internal/broker/pulsaradmin", "internal/broker/pulsarlog", "internal/broker/pulsarsend", "internal/netx/reload"}),
		"stages never import each other; they meet in internal/pipeline. The broker in memory and the admin API are no stages: they are what a broker is to the source",
	},
	"internal/source/sourcetest": {slices.Concat(words, []string{"internal/source"}), "the contract of every source, as tests that each of them runs"},
	"internal/key":               {[]string{"internal/base/event"}, "pure: an event in, its key out"},
	"forward":                    {slices.Concat(words, []string{"internal/wire/framepool", "internal/telemetry/loglimit", "internal/netx/untrusted"}), "stages never import each other; they meet in internal/pipeline"},
	"internal/mailbox":           {words, "stages never import each other; they meet in internal/pipeline"},
	"internal/app":               {slices.Concat(words, []string{"internal/wire/appwire", "internal/telemetry/loglimit", "internal/netx/untrusted"}), "stages never import each other; they meet in internal/pipeline"},

	"spec": {nil, "tests alone: journals on one side, the model on the other"},

	"internal/ownership/driver": {[]string{"ring", "internal/base/clock", "internal/ownership"}, "pure: inputs in, effects out, for whoever performs them"},
	"internal/ownership/inbox":  {[]string{"internal/base/event", "internal/base/clock"}, "pure: the deadline rule of the SDK, which the simulator drives too"},

	"internal/wire/appwire": {[]string{"internal/base/event", "internal/wire/framepool", "proto"}, "frames only; both ends of the application's stream share it"},

	"internal/controllog": {slices.Concat(words, []string{"internal/broker/pulsarsend", "internal/broker/pulsarlog"}), "carries the records of internal/ownership, whatever they decide"},
	"internal/controllog/claim": {
		slices.Concat(words, []string{"internal/controllog"}),
		"which group a subscription belongs to: it needs a log of records, and nothing of what the group does with its events",
	},
	"internal/membership": {slices.Concat(words, []string{"internal/netx/reload", "internal/telemetry/loglimit", "internal/netx/untrusted"}), "addresses and evidence; what follows from them is decided elsewhere"},

	"internal/netx/listen":       {[]string{"internal/base/clock", "internal/telemetry/loglimit"}, "who gets in, whatever is behind"},
	"internal/netx/mtls":         {[]string{"internal/netx/reload", "internal/netx/untrusted"}, "certificates, whatever they are for"},
	"internal/netx/mtls/tlstest": {nil, "makes certificates for tests, and nothing else"},

	"internal/pipeline": {slices.Concat(words, stages, []string{"internal/mailbox/admission"}), "the only place that sees two stages at work"},
	"internal/node": {
		slices.Concat(words, stages, []string{"internal/mailbox/admission", "internal/pipeline", "internal/controllog", "internal/controllog/claim", "internal/membership", "internal/report", "internal/base/stages", "internal/telemetry/loglimit", "internal/netx/untrusted"}),
		"one member: it builds the stages and hands them to internal/pipeline, which alone passes events between them",
	},
	"internal/config": {
		slices.Concat(words, stages, []string{"internal/controllog", "internal/membership", "internal/pipeline", "internal/telemetry", "internal/netx/listen", "internal/netx/reload", "internal/netx/mtls", "internal/netx/untrusted"}),
		"joins the Config structs of all packages, and uses nothing else of them but what judges a value",
	},
	"internal/telemetry":            {[]string{"internal/base/clock", "internal/base/setting"}, "knows how to show, not what"},
	"internal/telemetry/otlptest":   {nil, "reads what a test receives, and knows the protocol alone"},
	"internal/adminhttp":            {[]string{"internal/telemetry"}, "shows what it is given"},
	"internal/adminhttp/statuspage": {[]string{"internal/report"}, "shows what members say"},
	"internal/report":               {slices.Concat(words, []string{"internal/netx/untrusted"}), "what members say about themselves; the words come from internal/node, and who asks decides nothing"},
	"internal/base/signal":          {nil, "the bottom: a select with a default"},
	"internal/base/backoff":         {nil, "the bottom: delays between attempts, of anything"},
	"internal/base/stages":          {nil, "a stage is a function"},
	"internal/devtools/journal":     {[]string{"internal/base/clock", "internal/base/event"}, "evidence must not depend on the code under test"},
	"chaos/fencedsink":              {nil, "recipes for users' databases: a key and a number are all that they get of the router"},

	"client": {
		[]string{"internal/wire/appwire", "internal/base/clock", "internal/base/event", "internal/ownership/inbox", "proto"},
		"runs in the user's process: the wire and the clock of leases, nothing of the router",
	},
	"client/clienttest": {
		slices.Concat(words, []string{"client", "internal/app", "internal/wire/appwire"}),
		"the router that users test against is the real stream server over mailboxes of its own",
	},

	"deploy":          {nil, "files, and the tests of them"},
	"examples/orders": {[]string{"client"}, "shows what an application needs: the SDK, and nothing of the router"},

	"cmd/router":                            {anything, "wires; what it may not decide no import can show"},
	"internal/devtools/procgroup":           {[]string{"internal/base/clock", "internal/config"}, "processes of a group: it writes their settings, and runs nothing of the router itself"},
	"internal/devtools/dev":                 {anything, "drives the whole house from outside"},
	"internal/devtools/demo":                {anything, "drives the whole house from outside"},
	"internal/devtools/testapp":             {[]string{"client", "internal/base/event", "internal/devtools/journal"}, "an application: it knows the SDK, and nothing of the router"},
	"internal/broker/membroker":             {words, "stands in for Pulsar: below the source, so it knows nothing of it"},
	"internal/testing/sim":                  {anything, "drives the machines of the whole house in one event loop"},
	"internal/broker/entries/pulsarpb":      {nil, "the bottom: generated from Pulsar's protocol"},
	"internal/broker/entries/wire":          {[]string{"internal/broker/entries/pulsarpb", "internal/base/clock"}, "pure: bytes in, entries out; the connections that they come from know it, not it them"},
	"internal/broker/entries/wire/wiretest": {[]string{"internal/broker/entries/pulsarpb"}, "writes what the codec reads, and shares no code with it, so that an error in one is not repeated in the other"},
	"internal/broker/pulsaradmin":           {nil, "one call to the admin API, whoever asks"},
	"internal/broker/pulsarlog":             {nil, "a logger in front of a logger"},
	"internal/broker/pulsarsend":            {nil, "a timer in front of a callback, a context in front of a call, and which answers are the last"},
	"internal/broker/pulsartest":            {[]string{"internal/base/event", "internal/broker/pulsaradmin"}, "finds a broker for tests, and nothing else"},
	"attack": {
		[]string{"client", "internal/base/clock", "internal/base/event", "internal/devtools/journal", "internal/broker/pulsaradmin", "internal/broker/pulsarlog", "internal/devtools/testapp", "proto"},
		"a stranger: it knows the wire, the SDK and its own applications, and nothing of the router that it attacks",
	},
	"bench":                            {anything, "drives the whole house from outside"},
	"chaos":                            {append([]string{"chaos"}, anything...), "drives the whole house from outside"},
	"e2e":                              {anything, "drives the whole house from outside"},
	"internal/testing/archtest":        {nil, "reads files"},
	"internal/testing/eventually":      {nil, "a loop that asks"},
	"internal/testing/planted":         {nil, "the bottom: the patched files of any package ask it"},
	"internal/testing/planted/overlay": {nil, "reads files, and starts the go command"},
}

var libraries = []only{
	{
		"github.com/apache/pulsar-client-go",
		[]string{"internal/source", "internal/controllog", "internal/broker/pulsarlog", "internal/broker/pulsarsend", "internal/broker/pulsartest", "cmd", "attack", "bench", "e2e", "chaos", "internal/devtools/demo"},
		"its manners are dealt with in one place for data and in one for control; the others only produce load",
	},
	{
		"github.com/hashicorp/memberlist",
		[]string{"internal/membership"},
		"gossip gives addresses and evidence, and never decides",
	},
	{
		"go.opentelemetry.io/contrib",
		[]string{"internal/telemetry"},
		"where spans go is said once, by the environment; whoever makes some needs the API alone",
	},
	{
		"github.com/jackc/pgx",
		[]string{"chaos/fencedsink"},
		"databases are the business of applications, under test or not; the router must not hold one",
	},
	{
		"github.com/redis/go-redis",
		[]string{"chaos/fencedsink", "bench"},
		"the same; and the benchmark has Redis as the lock of one of the other ways",
	},
	{
		"github.com/buraksezer/consistent",
		[]string{"ring"},
		"it panics on bad input, and another version places partitions elsewhere",
	},
}

var pureFolders = []pure{
	{dir: "ring"},
	{dir: "internal/base/partition"},
	{dir: "internal/base/event", except: []string{"log/slog", "net/url"}, why: "a key hides itself from every log, percent-encoded too"},
	{dir: "internal/base/identity"},
	{dir: "internal/base/setting"},
	{dir: "internal/outcome"},
	{dir: "internal/key"},
	{dir: "internal/ownership"},
	{dir: "internal/ownership/inbox"},
	{dir: "internal/ownership/driver"},
	{dir: "internal/controllog/claim", impure: []string{"keeper.go", "read.go"}},
	{dir: "internal/mailbox", impure: []string{"mailboxes.go", "metrics.go"}},
	{dir: "internal/mailbox/admission"},
	{dir: "internal/broker/entries/wire"},
	{dir: "internal/app", impure: []string{"manual.go", "server.go", "session.go"}},
	{dir: "internal/node", impure: []string{"admit.go", "claims.go", "consume.go", "drain_cycle.go", "driver.go", "gossip_view.go", "health.go", "incarnation.go", "metrics.go", "node.go", "reach.go", "report.go", "shown.go", "steering.go"}},
	{dir: "internal/pipeline", impure: []string{"admit.go", "pipeline.go", "relayed.go", "scratch.go", "event_log.go", "traces.go", "observer.go"}},
	{dir: "internal/source", impure: []string{"copier.go", "copies.go", "holes.go", "mem.go", "outlet.go", "probe.go", "pulsar.go", "source.go", "tracing.go"}},
	{dir: "forward", impure: []string{"handover.go", "link.go", "pool.go", "server.go"}},
	{dir: "chaos", impure: []string{"app.go", "broker.go", "faults.go", "group.go", "inside.go", "inside_other.go", "joiner.go", "load.go", "main.go", "network.go", "process.go", "proxies.go", "refusals.go", "run.go"}},
}

// mayStartGoroutines lists the files that may hold a go statement, with why an
// errgroup or a WaitGroup does not do.
var mayStartGoroutines = map[string]string{
	"internal/base/stages/run.go":              "abandons a stage that does not drain, so nobody waits for all",
	"internal/broker/membroker/server.go":      "reads a stream whose Recv returns only when its handler has",
	"internal/source/pulsar.go":                "gives up on calls of Pulsar's client that take no context, so nobody waits for them",
	"internal/source/sourcetest/sourcetest.go": "tests in all but the name of the file: a call that must block is made beside the test",
	"client/client.go":                         "gives up on handlers that do not return, so nobody waits for the waiting",
}

func none(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

func TestImportArrows(t *testing.T)    { none(t, repository(t).strayImports(arrows)) }
func TestLibraries(t *testing.T)       { none(t, repository(t).strayLibraries(libraries)) }
func TestPureFiles(t *testing.T)       { none(t, repository(t).impurities(pureFolders)) }
func TestGoroutines(t *testing.T)      { none(t, repository(t).goroutines(mayStartGoroutines)) }
func TestPlanters(t *testing.T)        { none(t, repository(t).planters("internal/controllog/claim")) }
func TestPackageDocs(t *testing.T)     { none(t, repository(t).packageDocs()) }
func TestPublicNamesDocs(t *testing.T) { none(t, repository(t).undocumented()) }

func TestFileMap(t *testing.T) {
	architecture, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatalf("the file map of the repository cannot be read: %v", err)
	}
	none(t, repository(t).unmapped(string(architecture)))
}

// TestInvariantsHaveTheirTests: ARCHITECTURE.md names the test that holds each
// invariant as package.TestName; it must be there.
func TestInvariantsHaveTheirTests(t *testing.T) {
	architecture, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	none(t, repository(t).missingTests(string(architecture)))
}

// roomsMax bounds the folders directly below internal/, so that their list is read at a glance.
const roomsMax = 24

func TestRooms(t *testing.T) {
	rooms := map[string]bool{}
	for dir := range repository(t).packages() {
		if below, ok := strings.CutPrefix(dir, "internal/"); ok {
			rooms[strings.Split(below, "/")[0]] = true
		}
	}
	if len(rooms) > roomsMax {
		t.Errorf("internal/ has %d folders, want %d at most: %q", len(rooms), roomsMax, slices.Sorted(maps.Keys(rooms)))
	}
}

// notInTheSDK are libraries that the SDK must not bring into a user's program.
var notInTheSDK = []string{
	"github.com/hashicorp/memberlist", "github.com/buraksezer/consistent", "github.com/apache/pulsar-client-go", "github.com/prometheus",
}

func TestSDKLinksNoServer(t *testing.T) { none(t, repository(t).linked("client", notInTheSDK)) }

// testOnly are the requirements of go.mod that only tests need.
var testOnly = []string{"pgregory.net/rapid", "go.uber.org/goleak", "github.com/cockroachdb/datadriven"}

// TestRequirements: users of the router's module get the requirements of the router and of its
// tests, but none of the benchmark, the fault driver and the end-to-end tests.
func TestRequirements(t *testing.T) { none(t, repository(t).unneeded(testOnly)) }

// TestModules: lint and tests name every module.
func TestModules(t *testing.T) { none(t, repository(t).unnamedModules()) }

// plainWords are metaphors that names must not use, with the words to use. Actor, mailbox, lease and gate are the
// only ones that stay.
var plainWords = map[string]string{
	"door": "listener", "crew": "process group", "witness": "application", "hand": "claim or batch", "heir": "next owner", "newcomer": "joining member",
	"diary": "event log", "ear": "log hook", "nap": "delay", "lot": "parked", "guest": "relayed event", "pulse": "ping sender", "hearsay": "gossip view",
	"ward": "suspects", "desk": "outstanding", "speaker": "view", "stay": "drain cycle, or remain", "life": "incarnation", "mend": "fix, or transient",
}

// TestMetaphors: names use the field's words.
func TestMetaphors(t *testing.T) { none(t, repository(t).metaphors(plainWords)) }

// plainProse are words that neither comments nor documents use, with those to use instead.
var plainProse = map[string]string{
	"doors": "listeners", "crew": "process group", "witness": "application, or evidence", "heir": "next owner", "heirs": "next owners",
	"newcomer": "joining member", "newcomers": "joining members", "diary": "event log", "guest": "relayed event", "guests": "relayed events", "desk": "Outstanding",
	"desks": "Outstanding", "ward": "suspects", "hearsay": "gossip", "mend": "fix", "mends": "fixes", "mended": "fixed", "poisonous": "poison-pill",
}

// TestProse: comments and documents use the field's words.
func TestProse(t *testing.T) { none(t, repository(t).prose(plainProse)) }
