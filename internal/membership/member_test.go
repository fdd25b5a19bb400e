package membership

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/ownership"
)

// A member's metadata arrives.
func TestMetaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		self := Member{
			Name:       rapid.StringMatching(`[A-Za-z0-9._-]{1,80}`).Draw(t, "name"),
			Inc:        ownership.Incarnation(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "inc")),
			GRPCAddr:   rapid.StringMatching(`[a-z0-9.-]{1,100}:[1-9][0-9]{0,3}`).Draw(t, "grpc"),
			GossipAddr: "127.0.0.1:1",
		}
		if self.Inc.IsZero() {
			self.Inc[0] = 1
		}
		meta, err := encodeMeta(self)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeMember(gossipName(self), self.GossipAddr, string(meta))
		if err != nil || got != self {
			t.Fatalf("got %+v, %v; want %+v", got, err, self)
		}
	})
}

// Nodes that are not understood are refused, whatever they send.
func TestDecodeMemberRefuses(t *testing.T) {
	inc := newInc()
	good, err := encodeMeta(Member{Inc: inc, GRPCAddr: "a:1"})
	if err != nil {
		t.Fatal(err)
	}
	name := "n/" + shortInc(inc)
	if _, err := decodeMember(name, "", string(good)); err != nil {
		t.Fatalf("a good one was refused: %v", err)
	}
	zero := append([]byte{metaVersion}, make([]byte, 16)...)
	for what, c := range map[string]struct{ name, meta string }{
		"no meta":             {name, ""},
		"short meta":          {name, string(good[:16])},
		"another version":     {name, "\x02" + string(good[1:])},
		"another incarnation": {"n/" + shortInc(newInc()), string(good)},
		"no name":             {"/" + shortInc(inc), string(good)},
		"bare name":           {"n", string(good)},
		"nobody":              {"n/0000000000000000", string(zero) + "a:1"},
		"escape codes":        {"n\x1b[31m/" + shortInc(inc), string(good)},
		"a name too long":     {strings.Repeat("n", 254) + "/" + shortInc(inc), string(good)},
		"a slash":             {"n/m/" + shortInc(inc), string(good)},
		"no gRPC address":     {name, string(good[:17])},
		"a socket":            {name, string(good[:17]) + "unix:/run/docker.sock"},
		"another scheme":      {name, string(good[:17]) + "dns:///metadata:80"},
		"no port":             {name, string(good[:17]) + "10.0.0.7"},
		"port 0":              {name, string(good[:17]) + "10.0.0.7:0"},
		"everybody":           {name, string(good[:17]) + "0.0.0.0:80"},
	} {
		if m, err := decodeMember(c.name, "", c.meta); err == nil {
			t.Errorf("%s: accepted as %+v", what, m)
		}
	}
}

// An address that gossip has no room for is refused at the start.
func TestMetaTooLong(t *testing.T) {
	room := memberlist.MetaMaxSize - 17
	for _, length := range []int{room, room + 1} {
		self := Member{Inc: newInc(), GRPCAddr: strings.Repeat("x", length)}
		_, err := New(testConfig("a"), self, nil, func(Evidence) {}, nil, quiet(), NewMetrics(prometheus.NewRegistry()))
		if fits := length == room; (err == nil) != fits {
			t.Errorf("a gRPC address of %d bytes: %v", length, err)
		}
	}
}

// Lines of memberlist keep their meaning: which are warnings, and which is suspicion.
func TestLogLines(t *testing.T) {
	var suspects []string
	logger := newLogger(quiet(), func(name string) { suspects = append(suspects, name) }, NewMetrics(prometheus.NewRegistry()))
	logger.Printf("[INFO] memberlist: Suspect n1/00ff has failed, no acks received")
	logger.Printf("[INFO] memberlist: Suspect of something else")
	if len(suspects) != 1 || suspects[0] != "n1/00ff" {
		t.Errorf("suspects = %q, want n1/00ff", suspects)
	}
	for line, want := range map[string]struct {
		level slog.Level
		text  string
	}{
		"[DEBUG] memberlist: a\n":     {slog.LevelDebug, "a"},
		"[INFO] memberlist: b":        {slog.LevelDebug, "b"},
		"[WARN] memberlist: c":        {slog.LevelWarn, "c"},
		"[ERR] memberlist: [d] e":     {slog.LevelWarn, "[d] e"},
		"[ERR] Failed to shutdown: x": {slog.LevelWarn, "Failed to shutdown: x"},
		"plain":                       {slog.LevelDebug, "plain"},
		"":                            {slog.LevelDebug, ""},
	} {
		if level, text := parseLine(line); level != want.level || text != want.text {
			t.Errorf("parseLine(%q) = %v, %q; want %v, %q", line, level, text, want.level, want.text)
		}
	}
}

// Validate accepts the defaults and names every field that is wrong.
func TestConfigValidate(t *testing.T) {
	if err := testConfig("a").Validate(); err != nil {
		t.Fatalf("a good config was refused: %v", err)
	}
	for field, spoil := range map[string]func(*Config){
		"strangers_max":  func(c *Config) { c.StrangersMax = 0 },
		"probe_interval": func(c *Config) { c.ProbeInterval = 0 },
		"rejoins_max":    func(c *Config) { c.RejoinsMax = 0 },
	} {
		cfg := testConfig("a")
		spoil(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: Validate = %v", field, err)
		}
	}
}
