package archtest

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// words lists the packages that every stage may import: data, pure decisions, and the wire.
var words = []string{
	"ring", "internal/base/event", "internal/base/clock", "internal/outcome", "internal/ownership", "internal/base/invariant",
	"internal/base/identity", "internal/base/partition", "internal/base/setting", "internal/base/tally", "proto",
}

// anywhere lists the packages that every package may import: a few lines that stand for a loop or a select.
var anywhere = []string{"internal/base/signal", "internal/base/backoff", "internal/netx/greet", "internal/testing/eventually", "internal/testing/contention", "internal/testing/address", "internal/testing/written"}

var stages = []string{"internal/source", "internal/key", "forward", "internal/mailbox", "internal/app"}

var anything = []string{"ring", "forward", "client", "internal", "proto"}

// arrows: cmd → node → pipeline → stages → words.
var arrows = map[string]arrow{
	"ring":                        {[]string{"internal/base/partition", "internal/base/setting"}, "the bottom: all packages route by it"},
	"internal/base/clock":         {nil, "the bottom: instants alone"},
	"internal/base/tally":         {[]string{"internal/base/clock"}, "a count and an instant, independent of what is counted"},
	"internal/base/invariant":     {nil, "the bottom: all packages assert"},
	"internal/netx/untrusted":     {nil, "the bottom: strings from any source"},
	"internal/telemetry/loglimit": {[]string{"internal/base/clock"}, "the rate of log lines, independent of their text"},
	"internal/wire/framepool":     {nil, "the bottom: memory of frames, independent of their content"},
	"internal/wire/hotframe":      {[]string{"internal/base/event", "internal/base/clock", "internal/base/partition"}, "fields of frames, independent of their numbers; an event brings its data into the cache"},
	"internal/base/partition":     {nil, "the bottom: a key in, its partition out"},
	"internal/base/setting":       {nil, "the bottom: tags of fields, independent of their meaning"},
	"internal/netx/reload":        {[]string{"internal/base/clock"}, "files, independent of their content"},
	"internal/base/idlecpu":       {[]string{"internal/base/clock"}, "a process and its processors, independent of its work"},
	"internal/base/timerslack":    {nil, "a process and its timers, independent of its work"},
	"internal/base/event":         {[]string{"internal/base/partition", "internal/base/clock"}, "shared words; an event names its partition, and a finished one its instant"},
	"internal/base/identity":      {nil, "the bottom: names and values, independent of their meaning"},
	"internal/outcome":            {[]string{"internal/base/event"}, "pure: one result in, one outcome out"},
	"internal/mailbox/admission":  {[]string{"ring", "internal/base/event", "internal/base/clock"}, "pure: its knowledge of members and topics comes by arguments"},
	"internal/ownership":          {[]string{"ring", "internal/base/event", "internal/base/clock", "internal/base/identity", "internal/base/invariant", "internal/base/setting"}, "pure: who may act depends on records and instants only"},

	"internal/source": {
		slices.Concat(words, []string{"internal/broker/entries", "internal/broker/entries/wire", "internal/broker/membroker", "internal/broker/pulsaradmin", "internal/broker/pulsarlog", "internal/broker/pulsarread", "internal/broker/pulsarsend", "internal/broker/topicname", "internal/netx/reload"}),
		"stages never import each other; they meet in internal/pipeline. The broker in memory and the admin API are not stages: they stand for a broker",
	},
	"internal/source/sourcetest": {slices.Concat(words, []string{"internal/source"}), "the contract of sources, as tests that each source runs"},
	"internal/key":               {[]string{"internal/base/event"}, "pure: an event in, its key out"},
	"forward":                    {slices.Concat(words, []string{"internal/wire/framepool", "internal/wire/hotframe", "internal/telemetry/loglimit", "internal/netx/untrusted"}), "stages never import each other; they meet in internal/pipeline"},
	"internal/history":           {[]string{"ring", "internal/base/event", "internal/base/clock"}, "remembers what it is told; nothing is decided by it"},
	"internal/history/hotkeys":   {[]string{"ring"}, "pure: keys and times in, the greatest out"},
	"internal/mailbox":           {slices.Concat(words, []string{"internal/history", "internal/history/hotkeys"}), "stages never import each other; they meet in internal/pipeline"},
	"internal/app":               {slices.Concat(words, []string{"internal/wire/appwire", "internal/telemetry/loglimit", "internal/netx/untrusted"}), "stages never import each other; they meet in internal/pipeline"},
	"internal/app/lane":          {words, "a face of the router to callers: who the owner of a key is, and how a call gets there, is behind its Sender"},

	"spec": {nil, "tests alone: journals on one side, the model on the other"},

	"internal/ownership/driver": {[]string{"ring", "internal/base/clock", "internal/ownership"}, "pure: inputs in, effects out; node and sim perform them"},
	"internal/ownership/inbox":  {[]string{"internal/base/event", "internal/base/clock"}, "pure: the deadline rule of the SDK, which the simulator drives too"},

	"internal/wire/appwire": {[]string{"internal/base/event", "internal/base/clock", "internal/base/partition", "internal/wire/framepool", "internal/wire/hotframe", "proto"}, "frames only; both ends of the application's stream share it"},

	"internal/controllog": {slices.Concat(words, []string{"internal/broker/entries", "internal/broker/entries/wire", "internal/broker/pulsarsend", "internal/broker/pulsarlog", "internal/telemetry/loglimit", "internal/wire/hotframe"}), "carries the records of internal/ownership, independent of their meaning"},
	"internal/controllog/claim": {
		slices.Concat(words, []string{"internal/controllog", "internal/broker/topicname", "internal/wire/hotframe"}),
		"the group of a subscription: it needs a log of records, and nothing of the group's work",
	},
	"internal/deadletter": {
		[]string{"ring", "internal/base/event", "internal/broker/entries", "internal/broker/entries/wire", "internal/broker/pulsarread", "internal/broker/pulsarsend", "internal/broker/topicname", "internal/key", "internal/netx/untrusted", "internal/source"},
		"works on topics from outside, beside running routers: of the source it knows the names that copies carry",
	},
	"internal/controllog/act": {
		slices.Concat(words, []string{"internal/controllog", "internal/telemetry/loglimit"}),
		"acts of operators on single keys: it needs a log of records, and mailboxes that hold keys",
	},
	"internal/membership": {slices.Concat(words, []string{"internal/netx/reload", "internal/telemetry/loglimit", "internal/netx/untrusted"}), "addresses and evidence; the decisions about them are made elsewhere"},

	"internal/netx/listen":       {[]string{"internal/base/clock", "internal/telemetry/loglimit"}, "admission of callers, independent of the service"},
	"internal/netx/mtls":         {[]string{"internal/netx/reload", "internal/netx/untrusted"}, "certificates for any listener"},
	"internal/netx/mtls/tlstest": {nil, "only makes certificates for tests"},

	"internal/pipeline":          {slices.Concat(words, stages, []string{"internal/mailbox/admission", "internal/history"}), "the only package that joins two stages"},
	"internal/pipeline/schedule": {[]string{"internal/base/backoff", "internal/base/event", "internal/base/partition", "internal/outcome"}, "pure: definitions, firings and times in, decisions out"},
	"internal/bridge":            {[]string{"client", "internal/base/clock", "internal/base/backoff"}, "an application: it knows the SDK, and nothing of the router"},
	"internal/node": {
		slices.Concat(words, stages, []string{"internal/mailbox/admission", "internal/history", "internal/history/hotkeys", "internal/pipeline", "internal/controllog", "internal/controllog/act", "internal/controllog/claim", "internal/membership", "internal/report", "internal/base/stages", "internal/telemetry/loglimit", "internal/netx/untrusted", "internal/audit", "internal/audit/exchange", "internal/audit/judge"}),
		"one member: it builds the stages and hands them to internal/pipeline, which alone passes events between them",
	},
	"internal/config": {
		slices.Concat(words, stages, []string{"internal/history", "internal/controllog", "internal/controllog/act", "internal/membership", "internal/pipeline", "internal/audit", "internal/telemetry", "internal/netx/listen", "internal/netx/reload", "internal/netx/mtls", "internal/netx/untrusted"}),
		"joins the Config structs of all packages, and uses nothing else of them but checks of values",
	},
	"internal/telemetry":            {[]string{"internal/base/clock", "internal/base/setting", "internal/base/signal", "internal/base/tally"}, "formats and exports, independent of the content"},
	"internal/telemetry/otlptest":   {nil, "reads the spans of a test, and knows the protocol alone"},
	"internal/adminhttp":            {[]string{"internal/telemetry"}, "shows the values that it is given"},
	"internal/adminhttp/statuspage": {[]string{"internal/report", "internal/base/clock", "internal/netx/untrusted"}, "shows the reports of members"},
	"internal/report":               {slices.Concat(words, []string{"internal/netx/untrusted"}), "the reports of members about themselves; they are made in internal/node, and readers decide nothing"},
	"internal/audit":                {[]string{"internal/base/event", "internal/base/partition", "internal/base/clock", "internal/base/setting"}, "pure: handlings in, overlaps out; it must not depend on the code that it judges"},
	"internal/audit/exchange":       {[]string{"internal/audit", "internal/base/event", "internal/base/partition", "internal/base/clock", "internal/wire/hotframe", "proto"}, "the wire of reports, also in the user's process"},
	"internal/audit/judge":          {[]string{"internal/audit", "internal/audit/exchange", "internal/base/event", "internal/base/partition", "internal/base/clock", "internal/netx/untrusted", "internal/telemetry/loglimit"}, "counts what internal/audit finds; it must not depend on the code that it judges"},
	"internal/audit/collect":        {[]string{"internal/audit", "internal/audit/exchange", "internal/audit/judge", "internal/base/clock", "internal/netx/untrusted"}, "a judge for handlers of others, and nothing of the router"},
	"internal/netx/greet":           {nil, "the bottom: a call to a listener, if there is one that wants it"},
	"internal/base/signal":          {nil, "the bottom: a select with a default"},
	"internal/base/backoff":         {nil, "the bottom: delays between attempts of any kind"},
	"internal/base/stages":          {nil, "a stage is a function"},
	"internal/devtools/journal":     {[]string{"internal/base/clock", "internal/base/event"}, "evidence must not depend on the code under test"},
	"chaos/fencedsink":              {nil, "recipes for users' databases: a key and a number are all that they get from the router"},

	"client": {
		[]string{"internal/audit", "internal/audit/exchange", "internal/wire/appwire", "internal/base/clock", "internal/base/partition", "internal/base/event", "internal/base/tally", "internal/ownership/inbox", "proto"},
		"runs in the user's process: the wire and the clock of leases, nothing of the router",
	},
	"client/clienttest": {
		slices.Concat(words, []string{"client", "internal/app", "internal/wire/appwire"}),
		"the router that users test against is the real stream server over mailboxes of its own",
	},

	"deploy":                     {nil, "files, and the tests of them"},
	"examples/bridge":            {[]string{"client", "client/clienttest", "internal/bridge", "internal/devtools/procgroup"}, "tests of applications in other languages"},
	"examples/orders":            {[]string{"client"}, "shows what an application needs: the SDK, and nothing of the router"},
	"examples/reservation-queue": {[]string{"client"}, "shows what an application needs: the SDK, and nothing of the router"},
	"examples/killed":            {[]string{"client", "internal/devtools/procgroup"}, "drives whole processes from outside"},
	"examples/killed/killedtest": {nil, "runs the command of an example as its documentation does"},
	"examples/saga":              {[]string{"client", "examples/killed"}, "shows what an application needs: the SDK, and nothing of the router"},
	"examples/singleton-job":     {[]string{"client", "examples/killed"}, "shows what an application needs: the SDK, and nothing of the router"},
	"examples/conformance":       {[]string{"client"}, "an application: it knows the SDK, and nothing of the router"},

	"cmd/router":                              {anything, "joins all parts; imports cannot show that it decides nothing"},
	"internal/devtools/procgroup":             {[]string{"internal/base/clock", "internal/config"}, "processes of a group: it writes their settings, and runs nothing of the router itself"},
	"internal/devtools/dev":                   {anything, "drives whole processes from outside"},
	"internal/devtools/prove":                 {anything, "drives whole processes from outside"},
	"internal/devtools/ends":                  {[]string{"internal/base/event", "internal/netx/untrusted", "internal/outcome"}, "what a member tells its parent of events: outcome alone says what follows a failure"},
	"internal/devtools/demo":                  {anything, "drives whole processes from outside"},
	"internal/devtools/conformance":           {[]string{"internal/base/clock", "proto"}, "evidence must not depend on the code under test: it knows the wire alone"},
	"internal/devtools/conformance/reference": {[]string{"internal/base/clock", "proto"}, "a worker on the bare protocol: it shares no code with the SDK, so that an error in one is not repeated in the other"},
	"internal/devtools/testapp":               {[]string{"client", "internal/base/event", "internal/devtools/journal"}, "an application: it knows the SDK, and nothing of the router"},
	"internal/broker/membroker":               {slices.Concat(words, []string{"internal/broker/topicname"}), "stands in for Pulsar, below the source"},
	"internal/testing/sim":                    {anything, "drives the machines of whole clusters in one event loop"},
	"internal/broker/topicname":               {nil, "the bottom: names in, names out"},
	"internal/broker/pulsaradmin":             {[]string{"internal/broker/topicname"}, "calls of the admin API, for any caller"},
	"internal/broker/pulsarlog":               {nil, "a logger in front of a logger"},
	"internal/broker/pulsarread":              {nil, "an option of the client's consumers"},
	"internal/broker/pulsarsend":              {[]string{"internal/base/clock"}, "a timer in front of a callback, a context in front of a call, and rules for producers that are lost"},
	"internal/broker/pulsartest":              {[]string{"internal/base/event", "internal/broker/pulsaradmin"}, "only finds a broker for tests"},
	"internal/broker/entries": {
		[]string{"internal/broker/entries/pulsarpb", "internal/broker/entries/wire", "internal/broker/pulsarsend", "internal/broker/topicname", "internal/base/clock", "internal/base/setting", "internal/telemetry/loglimit", "internal/netx/untrusted"},
		"sockets to brokers, below the source: it knows entries, and nothing of what becomes of their events",
	},
	"internal/broker/entries/fakebroker":    {[]string{"internal/broker/entries/pulsarpb", "internal/broker/entries/wire"}, "a broker to the tests of entries, which it knows nothing of"},
	"internal/broker/entries/pulsarpb":      {nil, "the bottom: generated from Pulsar's protocol"},
	"internal/broker/entries/wire":          {[]string{"internal/broker/entries/pulsarpb", "internal/base/clock"}, "pure: bytes in, entries out; it does not know the connections that they come from"},
	"internal/broker/entries/wire/wiretest": {[]string{"internal/broker/entries/pulsarpb"}, "writes the codec's input, and shares no code with it, so that an error in one is not repeated in the other"},
	"attack": {
		[]string{"client", "internal/base/clock", "internal/base/event", "internal/devtools/journal", "internal/broker/pulsaradmin", "internal/broker/pulsarlog", "internal/devtools/testapp", "proto"},
		"a stranger: it knows the wire, the SDK and its own applications, and nothing of the router that it attacks",
	},
	"bench":                            {anything, "drives whole processes from outside"},
	"bench/sdks":                       {anything, "plays the router to workers, with the router's own stream server"},
	"bench/sdks/bare":                  {[]string{"proto"}, "the plain stream: no SDK"},
	"bench/sdks/empty":                 {[]string{"client"}, "an application: it knows the SDK, and nothing of the router"},
	"chaos":                            {append([]string{"chaos"}, anything...), "drives whole processes from outside"},
	"e2e":                              {anything, "drives whole processes from outside"},
	"e2e/page":                         {anything, "serves the page of an invented group"},
	"internal/testing/address":         {nil, "a connection that holds a port"},
	"internal/testing/archtest":        {nil, "reads files"},
	"internal/testing/contention":      {nil, "a loop of benchmarks"},
	"internal/testing/eventually":      {nil, "a loop with a condition"},
	"internal/testing/planted":         {nil, "the bottom: patched files of any package import it"},
	"internal/testing/planted/overlay": {nil, "reads files, and starts the go command"},
	"internal/testing/written":         {nil, "a buffer with a lock"},
}

var libraries = []only{
	{
		"github.com/apache/pulsar-client-go",
		[]string{"internal/source", "internal/controllog", "internal/broker/pulsarlog", "internal/broker/pulsarread", "internal/broker/pulsarsend", "internal/broker/pulsartest", "internal/broker/entries", "internal/deadletter", "cmd", "attack", "bench", "e2e", "chaos", "internal/devtools/demo"},
		"its peculiarities are handled in one place for data and in one for control; all other packages only produce load",
	},
	{
		"github.com/hashicorp/memberlist",
		[]string{"internal/membership"},
		"gossip gives addresses and evidence, and never decides",
	},
	{
		"go.opentelemetry.io/contrib",
		[]string{"internal/telemetry"},
		"the destination of spans is set once, by the environment; code that makes spans needs the API alone",
	},
	{
		"github.com/jackc/pgx",
		[]string{"chaos/fencedsink"},
		"databases belong to applications, under test or not; the router must not use one",
	},
	{
		"github.com/redis/go-redis",
		[]string{"chaos/fencedsink", "bench"},
		"the same; and the benchmark uses Redis for the lock of one alternative",
	},
	{
		"github.com/buraksezer/consistent",
		[]string{"ring"},
		"it panics on bad input, and another version places partitions elsewhere",
	},
	{
		"github.com/robfig/cron",
		[]string{"internal/pipeline/schedule"},
		"it panics on some expressions, and its times are wrong where the clocks change: it is a parser only",
	},
}

var pureFolders = []pure{
	{dir: "ring"},
	{dir: "internal/base/partition"},
	{dir: "internal/base/event", except: []string{"log/slog", "net/url"}, why: "a key hides itself from every log, percent-encoded too"},
	{dir: "internal/base/identity"},
	{dir: "internal/base/setting"},
	{dir: "internal/base/tally"},
	{dir: "internal/outcome"},
	{dir: "internal/audit"},
	{dir: "internal/key"},
	{dir: "internal/ownership"},
	{dir: "internal/ownership/inbox"},
	{dir: "internal/ownership/driver"},
	{dir: "internal/controllog/act", impure: []string{"keeper.go", "visit.go", "ends.go", "http.go"}},
	{dir: "internal/controllog/claim", impure: []string{"keeper.go", "read.go"}},
	{dir: "internal/mailbox", impure: []string{"mailboxes.go", "metrics.go", "remember.go"}},
	{dir: "internal/mailbox/admission"},
	{dir: "internal/broker/entries", impure: []string{"acking.go", "address.go", "auth.go", "chunks.go", "client.go", "config.go", "conn.go", "consumer.go", "errors.go", "exists.go", "handshake.go", "lookup.go", "pool.go", "position.go", "queue.go", "read.go", "reader.go", "reconnect.go", "session.go", "write.go"}},
	{dir: "internal/broker/entries/wire"},
	{dir: "internal/app", impure: []string{"manual.go", "reservations.go", "server.go", "session.go", "writer.go"}},
	{dir: "internal/node", impure: []string{"acts.go", "admit.go", "audit.go", "claims.go", "consume.go", "drain_cycle.go", "driver.go", "gossip_view.go", "health.go", "incarnation.go", "metrics.go", "node.go", "parks.go", "reach.go", "report.go", "report_history.go", "report_keys.go", "rollout.go", "schedules.go", "shown.go", "steering.go", "unpark.go", "unpark_letter.go", "unpark_read.go"}},
	{dir: "internal/pipeline", impure: []string{"admit.go", "history.go", "pipeline.go", "relayed.go", "event_log.go", "traces.go", "observer.go"}},
	{dir: "internal/source", impure: []string{"copier.go", "copies.go", "discovery.go", "entryreader.go", "gauges.go", "holes.go", "keeper.go", "mem.go", "outlet.go", "parking.go", "parkingreader.go", "probe.go", "pulsar.go", "reader.go", "sdk.go", "share.go", "source.go", "timers.go", "tracing.go"}},
	{dir: "internal/pipeline/schedule"},
	{dir: "forward", impure: []string{"handover.go", "inbound.go", "link.go", "peer.go", "pool.go", "server.go"}},
	{dir: "chaos", impure: []string{"app.go", "broker.go", "callers.go", "faults.go", "foreign.go", "group.go", "holders.go", "inside.go", "inside_other.go", "joiner.go", "load.go", "main.go", "network.go", "process.go", "proxies.go", "refusals.go", "run.go", "schedules.go"}},
}

// mayStartGoroutines lists the files that may contain a go statement, with the reason why an
// errgroup or a WaitGroup does not suffice.
var mayStartGoroutines = map[string]string{
	"internal/base/stages/run.go":              "abandons a stage that does not drain, so it cannot wait for all",
	"internal/broker/membroker/server.go":      "reads a stream whose Recv returns only when its handler has",
	"internal/source/sdk.go":                   "gives up on calls of Pulsar's client that take no context, so it cannot wait for them",
	"internal/broker/entries/auth.go":          "gives up on calls of an authentication provider that take no context, so nobody waits for them",
	"internal/source/sourcetest/sourcetest.go": "a test in all but the file's name: a call that must block is made beside the test",
	"client/reserve.go":                        "renews what outlives the call that made it, and opens streams whose connection may hang; Release waits for them",
	"client/client.go":                         "gives up on handlers that do not return, so it cannot wait for the waiting goroutine",
}

func none(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

func TestImportArrows(t *testing.T) { none(t, repository(t).strayImports(arrows)) }
func TestLibraries(t *testing.T)    { none(t, repository(t).strayLibraries(libraries)) }
func TestPureFiles(t *testing.T)    { none(t, repository(t).impurities(pureFolders)) }
func TestGoroutines(t *testing.T)   { none(t, repository(t).goroutines(mayStartGoroutines)) }
func TestPlanters(t *testing.T) {
	none(t, repository(t).planters("internal/controllog/claim", "internal/pipeline/schedule", "internal/source"))
}
func TestPackageDocs(t *testing.T)     { none(t, repository(t).packageDocs()) }
func TestPublicNamesDocs(t *testing.T) { none(t, repository(t).undocumented()) }

func TestFileMap(t *testing.T) {
	architecture, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatalf("the file map of the repository cannot be read: %v", err)
	}
	none(t, repository(t).unmapped(string(architecture)))
}

// TestInvariantsHaveTheirTests: ARCHITECTURE.md names the tests of each invariant as
// package.TestName; they must exist.
func TestInvariantsHaveTheirTests(t *testing.T) {
	architecture, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	none(t, repository(t).missingTests(string(architecture)))
}

// roomsMax bounds the folders directly below internal/, so that their list stays readable.
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

// plainWords are metaphors that names must not use, with the words to use instead. Only actor, mailbox, lease and gate are
// allowed.
var plainWords = map[string]string{
	"door": "listener", "crew": "process group", "witness": "application", "hand": "claim or batch", "heir": "next owner", "newcomer": "joining member",
	"diary": "event log", "ear": "log hook", "nap": "delay", "lot": "parked", "guest": "relayed event", "pulse": "ping sender", "hearsay": "gossip view",
	"ward": "suspects", "desk": "outstanding", "speaker": "view", "stay": "drain cycle, or remain", "life": "incarnation", "mend": "fix, or transient",
}

// TestMetaphors: names use the field's words.
func TestMetaphors(t *testing.T) { none(t, repository(t).metaphors(plainWords)) }

// plainProse are words that comments and documents must not use, with the words to use instead.
var plainProse = map[string]string{
	"doors": "listeners", "crew": "process group", "witness": "application, or evidence", "heir": "next owner", "heirs": "next owners",
	"newcomer": "joining member", "newcomers": "joining members", "diary": "event log", "guest": "relayed event", "guests": "relayed events", "desk": "Outstanding",
	"desks": "Outstanding", "ward": "suspects", "hearsay": "gossip", "mend": "fix", "mends": "fixes", "mended": "fixed", "poisonous": "poison-pill",
}

// TestProse: comments and documents use the field's words.
func TestProse(t *testing.T) { none(t, repository(t).prose(plainProse)) }
