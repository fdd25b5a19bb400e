package archtest

import (
	"os"
	"slices"
	"testing"
)

// words are what every stage may import: data, pure decisions, and the wire.
var words = []string{
	"ring", "internal/event", "internal/clock", "internal/outcome", "internal/ownership", "internal/invariant",
	"internal/planted", "internal/identity", "proto",
}

var stages = []string{"internal/source", "internal/key", "forward", "internal/mailbox", "internal/app"}

var anything = []string{"ring", "forward", "client", "internal", "proto"}

// arrows: cmd → node → pipeline → stages → words.
var arrows = map[string]arrow{
	"ring":               {nil, "the bottom: everybody routes by it"},
	"internal/clock":     {[]string{"internal/planted"}, "the bottom: an instant knows nothing"},
	"internal/invariant": {nil, "the bottom: everybody asserts"},
	"internal/untrusted": {nil, "the bottom: strings, whoever has written them"},
	"internal/loglimit":  {[]string{"internal/clock"}, "how often a line is logged, whatever it says"},
	"internal/framepool": {nil, "the bottom: memory of frames, whatever is in them"},
	"internal/planted":   {nil, "the bottom: whoever has a rule that a test must see broken asks it"},
	"internal/reload":    {[]string{"internal/clock"}, "files, whatever is in them"},
	"internal/governor":  {[]string{"internal/clock"}, "a process and its processors, whatever it does"},
	"internal/event":     {[]string{"ring", "internal/clock"}, "shared words; an event names its partition, and one that is done the instant"},
	"internal/identity":  {nil, "the bottom: names and values, whatever they mean"},
	"internal/outcome":   {[]string{"internal/event"}, "pure: one result in, one outcome out"},
	"internal/admission": {[]string{"ring", "internal/event", "internal/clock", "internal/planted"}, "pure: what it knows of members and topics it is told"},
	"internal/ownership": {[]string{"ring", "internal/event", "internal/clock", "internal/identity", "internal/invariant", "internal/planted"}, "pure: who may act depends on records and instants only"},

	"internal/source": {
		slices.Concat(words, []string{"internal/membroker", "internal/pulsaradmin", "internal/pulsarlog", "internal/pulsarsend", "internal/reload"}),
		"stages never import each other; they meet in internal/pipeline. The broker in memory and the admin API are no stages: they are what a broker is to the source",
	},
	"internal/source/sourcetest": {slices.Concat(words, []string{"internal/source"}), "the contract of every source, as tests that each of them runs"},
	"internal/key":               {[]string{"internal/event"}, "pure: an event in, its key out"},
	"forward":                    {slices.Concat(words, []string{"internal/framepool", "internal/loglimit", "internal/untrusted"}), "stages never import each other; they meet in internal/pipeline"},
	"internal/mailbox":           {words, "stages never import each other; they meet in internal/pipeline"},
	"internal/app":               {slices.Concat(words, []string{"internal/appwire", "internal/loglimit", "internal/untrusted"}), "stages never import each other; they meet in internal/pipeline"},

	"internal/inbox": {[]string{"internal/event", "internal/clock", "internal/planted"}, "pure: the deadline rule of the SDK, which the simulator drives too"},

	"internal/appwire": {[]string{"internal/event", "internal/framepool", "proto"}, "frames only; both ends of the application's stream share it"},

	"internal/controllog": {slices.Concat(words, []string{"internal/pulsarsend", "internal/pulsarlog"}), "carries the records of internal/ownership, whatever they decide"},
	"internal/claim": {
		slices.Concat(words, []string{"internal/controllog"}),
		"which group a subscription belongs to: it needs a log of records, and nothing of what the group does with its events",
	},
	"internal/membership": {slices.Concat(words, []string{"internal/reload", "internal/loglimit", "internal/untrusted"}), "addresses and evidence; what follows from them is decided elsewhere"},

	"internal/doors":           {[]string{"internal/clock", "internal/loglimit"}, "who gets in, whatever is behind"},
	"internal/tlsconf":         {[]string{"internal/reload", "internal/untrusted"}, "certificates, whatever they are for"},
	"internal/tlsconf/tlstest": {nil, "makes certificates for tests, and nothing else"},

	"internal/pipeline": {slices.Concat(words, stages, []string{"internal/admission"}), "the only place that sees two stages at work"},
	"internal/node": {
		slices.Concat(words, stages, []string{"internal/admission", "internal/pipeline", "internal/controllog", "internal/claim", "internal/membership", "internal/report", "internal/run", "internal/loglimit", "internal/untrusted"}),
		"one member: it builds the stages and hands them to internal/pipeline, which alone passes events between them",
	},
	"internal/config": {
		slices.Concat(words, stages, []string{"internal/controllog", "internal/membership", "internal/pipeline", "internal/telemetry", "internal/doors", "internal/reload", "internal/tlsconf"}),
		"joins the Config structs of all packages, and uses nothing else of them",
	},
	"internal/telemetry": {[]string{"internal/clock"}, "knows how to show, not what"},
	"internal/admin":     {[]string{"internal/report"}, "shows what members say"},
	"internal/report":    {slices.Concat(words, []string{"internal/untrusted"}), "what members say about themselves; the words come from internal/node, and who asks decides nothing"},
	"internal/run":       {nil, "a stage is a function"},
	"internal/journal":   {[]string{"internal/clock", "internal/event"}, "a witness must not know the accused"},
	"internal/sink":      {nil, "recipes for users' databases: a key and a number are all that they get of the router"},

	"client": {
		[]string{"client/internal", "internal/appwire", "internal/clock", "internal/event", "internal/inbox", "proto"},
		"runs in the user's process: the wire and the clock of leases, nothing of the router",
	},
	"client/internal/hook": {[]string{"internal/clock"}, "lets tests reach into the SDK"},
	"client/clienttest": {
		slices.Concat(words, []string{"client", "internal/app", "internal/appwire"}),
		"the router that users test against is the real stream server over mailboxes of its own",
	},

	"deploy":          {nil, "files, and the tests of them"},
	"examples/orders": {[]string{"client"}, "shows what an application needs: the SDK, and nothing of the router"},

	"cmd/router":           {anything, "wires; what it may not decide no import can show"},
	"internal/crew":        {[]string{"internal/clock", "internal/config"}, "processes of a group: it writes their settings, and runs nothing of the router itself"},
	"internal/dev":         {anything, "drives the whole house from outside"},
	"internal/demo":        {anything, "drives the whole house from outside"},
	"internal/witness":     {[]string{"client", "internal/event", "internal/journal"}, "an application: it knows the SDK, and nothing of the router"},
	"internal/membroker":   {words, "stands in for Pulsar: below the source, so it knows nothing of it"},
	"internal/sim":         {anything, "drives the machines of the whole house in one event loop"},
	"internal/pulsaradmin": {nil, "one call to the admin API, whoever asks"},
	"internal/pulsarlog":   {nil, "a logger in front of a logger"},
	"internal/pulsarsend":  {nil, "a timer in front of a callback, a context in front of a call, and which answers are the last"},
	"internal/pulsartest":  {[]string{"internal/event", "internal/pulsaradmin"}, "finds a broker for tests, and nothing else"},
	"attack": {
		[]string{"client", "internal/clock", "internal/event", "internal/journal", "internal/pulsaradmin", "internal/pulsarlog", "internal/witness", "proto"},
		"a stranger: it knows the wire, the SDK and its own applications, and nothing of the router that it attacks",
	},
	"bench":             {anything, "drives the whole house from outside"},
	"chaos":             {anything, "drives the whole house from outside"},
	"e2e":               {anything, "drives the whole house from outside"},
	"internal/archtest": {nil, "reads files"},
}

var libraries = []only{
	{
		"github.com/apache/pulsar-client-go",
		[]string{"internal/source", "internal/controllog", "internal/pulsarlog", "internal/pulsarsend", "internal/pulsartest", "cmd", "attack", "bench", "e2e", "chaos", "internal/demo"},
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
		[]string{"internal/sink"},
		"databases are the business of applications, under test or not; the router must not hold one",
	},
	{
		"github.com/redis/go-redis",
		[]string{"internal/sink", "bench"},
		"the same; and the benchmark has Redis as the lock of one of the other ways",
	},
	{
		"github.com/buraksezer/consistent",
		[]string{"ring"},
		"it panics on bad input, and another version places partitions elsewhere",
	},
}

var pureFiles = []pure{
	{dir: "ring", files: []string{"*.go"}},
	{dir: "internal/event", files: []string{"*.go"}, except: []string{"log/slog", "net/url"}, why: "a key hides itself from every log, percent-encoded too"},
	{dir: "internal/outcome", files: []string{"*.go"}},
	{dir: "internal/key", files: []string{"*.go"}},
	{dir: "internal/ownership", files: []string{"*.go"}},
	{dir: "internal/identity", files: []string{"*.go"}},
	{dir: "internal/claim", files: []string{"fold.go", "codec.go", "resource.go"}},
	{dir: "internal/admission", files: []string{"*.go"}},
	{dir: "internal/inbox", files: []string{"*.go"}},
	{dir: "internal/app", files: []string{"desk.go", "slots.go", "ward.go"}},
	{dir: "internal/node", files: []string{"gossip.go"}},
	{dir: "forward", files: []string{"table*.go", "held.go", "limits.go", "config.go", "proof.go"}},
	{dir: "internal/mailbox", files: []string{"boxes.go", "actor.go", "credits.go", "index.go", "slab.go", "unpin.go", "window.go", "workers.go", "config.go"}},
	{dir: "internal/source", files: []string{"ledger.go", "spill.go", "config.go", "seal.go"}},
	{dir: "chaos", files: []string{"plan.go", "publication.go", "analyse.go"}},
}

// mayStartGoroutines lists the files that may hold a go statement, with why an
// errgroup or a WaitGroup does not do.
var mayStartGoroutines = map[string]string{
	"internal/run/run.go":                      "abandons a stage that does not drain, so nobody waits for all",
	"internal/membroker/server.go":             "reads a stream whose Recv returns only when its handler has",
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
func TestPureFiles(t *testing.T)       { none(t, repository(t).impurities(pureFiles)) }
func TestGoroutines(t *testing.T)      { none(t, repository(t).goroutines(mayStartGoroutines)) }
func TestPlants(t *testing.T)          { none(t, repository(t).plants("internal/sim", "internal/claim")) }
func TestSwitches(t *testing.T)        { none(t, repository(t).switches("internal/planted")) }
func TestPackageDocs(t *testing.T)     { none(t, repository(t).packageDocs()) }
func TestPublicNamesDocs(t *testing.T) { none(t, repository(t).undocumented()) }

func TestFileMap(t *testing.T) {
	architecture, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatalf("the file map of the repository cannot be read: %v", err)
	}
	none(t, repository(t).unmapped(string(architecture)))
}

// TestInvariantsHaveTheirTests: ARCHITECTURE.md names the test that holds each
// invariant as package.TestName; it must be there.
func TestInvariantsHaveTheirTests(t *testing.T) {
	architecture, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	none(t, repository(t).missingTests(string(architecture)))
}
