package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/testing/eventually"
)

const (
	heldConnections = 64 // the admin listener's default limit
	probesAsked     = 15
	probesMissedMax = 2 // in a row: a kubelet restarts the container after three
)

// holdOpen keeps one connection with a request whose announced body never comes, and reopens it
// when it is closed, until ctx ends. It returns the number of connections opened.
func holdOpen(ctx context.Context, address string) (opened int64) {
	var dialer net.Dialer
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			opened++
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_, err = fmt.Fprintf(conn, "POST /readyz HTTP/1.1\r\nHost: %s\r\nContent-Length: 10\r\n\r\n", address)
			if err == nil {
				_, _ = io.Copy(io.Discard, conn) // until it is closed
			}
			stop()
			_ = conn.Close()
		}
		if backoff.Sleep(ctx, 100*time.Millisecond) != nil {
			break
		}
	}
	return opened
}

// missedInARow asks the liveness probe as a kubelet would, twice a second, and returns the
// longest row of probes that were not answered in time.
func (r *router) missedInARow(ctx context.Context, probes int) (row, answered int) {
	now := 0
	for range probes {
		code, _, err := askAt(ctx, r.admin(), http.MethodGet, "/livez", "")
		now++
		if err == nil && code == http.StatusOK {
			now = 0
			answered++
		}
		row = max(row, now)
		if backoff.Sleep(ctx, 500*time.Millisecond) != nil {
			break
		}
	}
	return row, answered
}

// unsentBodies: connections of strangers leave room for probes and for drains.
var unsentBodies = with(nil, "bodies", func(ctx context.Context, r *router) (finding, error) {
	attacking, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for range heldConnections {
		all.Go(func() { holdOpen(attacking, r.admin()) })
	}
	defer all.Wait()
	defer stop()
	if err := backoff.Sleep(ctx, 2*time.Second); err != nil {
		return finding{}, err
	}
	row, answered := r.missedInARow(ctx, probesAsked)
	drained := 0
	for range probesMissedMax + 1 {
		code, _, err := r.operator(ctx, http.MethodPost, "/drain", "")
		if err == nil && (code == http.StatusOK || code == http.StatusAccepted) {
			drained++
			break
		}
	}
	seen := fmt.Sprintf("/livez answered %d of %d, %d in a row unanswered; /drain with the token answered %d of 1", answered, probesAsked, row, drained)
	return finding{row > probesMissedMax || drained == 0, seen}, nil
})

// profilesAtOnce is the number of concurrent requests for a profile of one second, and
// profilesMax is the number of them that may be answered within three seconds.
const (
	profilesAtOnce = 8
	profilesMax    = 4
	profilesAsked  = 200
	profilesPause  = 15 * time.Second // longest pause between two profiles
)

const someProfile = "/debug/pprof/goroutine?debug=1"

// profiles: the debug page asks for the token and for its own name, makes few profiles at once, and can be off.
func profiles(ctx context.Context, l *lab) (finding, error) {
	rebound, err := l.rebound(ctx)
	if err != nil {
		return finding{}, err
	}
	return with(nil, "profiles", func(ctx context.Context, r *router) (finding, error) {
		stranger, bent := 0, 0
		for range profilesAsked / 2 {
			if code, _, err := askAt(ctx, r.debug(), http.MethodGet, someProfile, ""); err == nil && code == http.StatusOK {
				stranger++
			}
			code, _, err := askAt(ctx, r.debug(), http.MethodGet, someProfile, "", "Authorization", "Bearer "+adminToken, "Host", "evil.example")
			if err == nil && code == http.StatusOK {
				bent++
			}
		}
		code, said, err := askAt(ctx, r.debug(), http.MethodGet, someProfile, "", "Authorization", "Bearer "+adminToken)
		if err != nil || code != http.StatusOK {
			return finding{}, fmt.Errorf("no profile for an operator: %d %.100q %w", code, said, err)
		}
		atOnce := 0
		if err := eventually.Ask(ctx, profilesPause, "an operator gets another profile", func() error {
			if atOnce = r.profilesAtOnce(ctx); atOnce == 0 {
				return errors.New("none was made")
			}
			return nil
		}); err != nil {
			return finding{}, err
		}
		off, err := l.debugOff(ctx)
		if err != nil {
			return finding{}, err
		}
		seen := fmt.Sprintf("of %d profiles each a stranger without the token got %d, and a page that calls itself evil.example %d, without a token in the settings %d; %d of %d made at once; off switch: %s",
			profilesAsked/2, stranger, bent, rebound, atOnce, profilesAtOnce, off)
		return finding{stranger > 0 || bent > 0 || rebound > 0 || atOnce > profilesMax || off == "none", seen}, nil
	})(ctx, l)
}

// rebound returns how many profiles a page behind a rebound name gets of a router without a token.
func (l *lab) rebound(ctx context.Context) (got int, err error) {
	r, err := l.start(ctx, "rebound", nil, settings{"admin.token": ""})
	if err != nil {
		return 0, err
	}
	defer r.stop()
	for range profilesAsked / 2 {
		code, _, err := askAt(ctx, r.debug(), http.MethodGet, someProfile, "", "Host", "evil.example:16654")
		if err != nil {
			return 0, err
		}
		if code == http.StatusOK {
			got++
		}
	}
	return got, nil
}

// profilesAtOnce returns how many profiles of a second the debug page makes in three.
func (r *router) profilesAtOnce(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var made atomic.Int64
	var all sync.WaitGroup
	for range profilesAtOnce {
		all.Go(func() {
			code, _, err := askAt(ctx, r.debug(), http.MethodGet, "/debug/pprof/heap?seconds=1", "", "Authorization", "Bearer "+adminToken)
			if err == nil && code == http.StatusOK {
				made.Add(1)
			}
		})
	}
	all.Wait()
	return int(made.Load())
}

// debugOff returns the value of debug.listen that turns the page off, or none.
func (l *lab) debugOff(ctx context.Context) (string, error) {
	for _, value := range []string{"off", "none"} {
		s := minimal()
		s["debug.listen"] = value
		err := l.command(ctx, s, "config", "lint").Run()
		if err == nil {
			return value, nil
		}
		if l.exitCode(err) < 0 {
			return "", err
		}
	}
	return "none", nil
}

// lures are requests that a stranger's page, or a link, triggers in an operator's browser.
var lures = []struct {
	name, method, path string
	headers            []string
}{
	{"GET /undrain with Sec-Fetch-Site: none", http.MethodGet, "/undrain", []string{"Sec-Fetch-Site", "none"}},
	{"POST /drain with a foreign Origin", http.MethodPost, "/drain", []string{"Origin", "http://evil.example"}},
	{"POST /undrain from a sandbox", http.MethodPost, "/undrain", []string{"Origin", "null"}},
	{"PUT /log/level with a foreign Origin", http.MethodPut, "/log/level", []string{"Origin", "http://evil.example"}},
	{"GET /drain from another site", http.MethodGet, "/drain", []string{"Sec-Fetch-Site", "cross-site"}},
	{"GET /drain with Sec-Fetch-Site: none", http.MethodGet, "/drain", []string{"Sec-Fetch-Site", "none"}},
	{"an image of /drain in a page without TLS", http.MethodGet, "/drain", []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"}},
	{"POST of a hold with a foreign Origin", http.MethodPost, "/v1/acts/hold?key=k&by=b&reason=r", []string{"Origin", "http://evil.example"}},
	{"GET of a hold with Sec-Fetch-Site: none", http.MethodGet, "/v1/acts/hold?key=k&by=b&reason=r", []string{"Sec-Fetch-Site", "none"}},
	{"GET /undrain of a program", http.MethodGet, "/undrain", nil},
}

// browser: pages that an operator's browser opens change nothing. A program's POST does, and so
// does the kubelet's GET /drain, since its hooks cannot POST.
var browser = with(settings{"admin.token": ""}, "browser", func(ctx context.Context, r *router) (finding, error) {
	passes := func(method, path string, headers ...string) (bool, error) {
		body := ""
		if method == http.MethodPut {
			body = "info"
		}
		code, _, err := askAt(ctx, r.admin(), method, path, body, headers...)
		return code == http.StatusOK || code == http.StatusAccepted, err
	}
	var passed []string
	for _, lure := range lures {
		ok, err := passes(lure.method, lure.path, lure.headers...)
		if err != nil {
			return finding{}, err
		}
		if ok {
			passed = append(passed, lure.name)
		}
	}
	hook, err := passes(http.MethodGet, "/drain", "User-Agent", "kube-lifecycle/1.33")
	if err != nil || !hook {
		return finding{}, fmt.Errorf("GET /drain of a preStop hook does not pass: %w", err)
	}
	operator, err := passes(http.MethodPost, "/undrain")
	if err != nil || !operator {
		return finding{}, fmt.Errorf("POST /undrain of an operator does not pass: %w", err)
	}
	seen := fmt.Sprintf("%d of %d lures pass; a preStop hook's GET /drain and an operator's POST /undrain do", len(passed), len(lures))
	if len(passed) > 0 {
		seen = fmt.Sprintf("%d of %d lures pass: %s", len(passed), len(lures), strings.Join(passed, ", "))
	}
	return finding{len(passed) > 0, seen}, nil
})

const debugEvents = 20

// debugLevel: no level shows keys or payloads.
var debugLevel = with(nil, "debug", func(ctx context.Context, r *router) (finding, error) {
	code, said, err := r.operator(ctx, http.MethodPut, "/log/level", "debug")
	if err != nil || code != http.StatusOK {
		return finding{}, fmt.Errorf("PUT /log/level: %d %.100q %w", code, said, err)
	}
	const key, payload, property = "planted-key-of-alice", "planted-payload-of-alice", "planted-property-of-alice"
	var got atomic.Int64
	working, stop := context.WithCancel(ctx)
	defer stop()
	var worker errgroup.Group
	worker.Go(func() error {
		return r.work(working, func(_ context.Context, e *client.Event) error {
			got.Add(1)
			if strings.HasSuffix(e.Key, "0") {
				return client.Reject(errors.New("so that a copy is made"))
			}
			return nil
		})
	})
	if err := r.publish(ctx, debugEvents, func(i int) *pulsar.ProducerMessage {
		return &pulsar.ProducerMessage{Key: fmt.Sprint(key, i), Payload: []byte(fmt.Sprint(payload, i)), Properties: map[string]string{"name": property}}
	}); err != nil {
		return finding{}, err
	}
	handled := eventually.Ask(ctx, 30*time.Second, "the events are handled", func() error {
		if got.Load() < debugEvents {
			return fmt.Errorf("%d of %d", got.Load(), debugEvents)
		}
		return nil
	})
	paused := backoff.Sleep(ctx, 2*time.Second) // for the copies
	stop()
	if err := errors.Join(handled, paused, worker.Wait()); err != nil {
		return finding{}, err
	}
	log, err := os.ReadFile(r.log)
	if err != nil {
		return finding{}, err
	}
	keys, payloads, properties := occurrences(log, key), occurrences(log, payload), occurrences(log, property)
	lines := bytes.Count(log, []byte(`"level":"DEBUG"`))
	if lines == 0 {
		return finding{}, errors.New("no line of level debug was written: this proves nothing")
	}
	commands := bytes.Count(log, []byte("Received command: "))
	seen := fmt.Sprintf("%d lines of level debug for %d events, %d of commands that Pulsar's client received: keys %d times, payloads %d times, properties %d times", lines, debugEvents, commands, keys, payloads, properties)
	return finding{keys+payloads+properties > 0, seen}, nil
})

// occurrences counts a word in a log: as it is, as numbers of bytes, in hex and in base64.
func occurrences(log []byte, word string) int {
	numbers := strings.Trim(fmt.Sprintf("%d", []byte(word)), "[]")
	n := bytes.Count(log, []byte(word)) + bytes.Count(log, []byte(numbers)) + bytes.Count(log, []byte(hex.EncodeToString([]byte(word))))
	const group = 3 // bytes that base64 encodes together: the word may begin at any of them
	for skip := range group {
		whole := word[skip : len(word)-(len(word)-skip)%group]
		n += bytes.Count(log, []byte(base64.StdEncoding.EncodeToString([]byte(whole))))
	}
	return n
}
