//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/testing/eventually"
)

// proxyAPI is the address of a member's toxiproxy, inside its namespace.
const proxyAPI = "127.0.0.1:8474"

// proxies are a toxiproxy in the namespace of each member, between its router and Pulsar, and
// between its peers and its router. They slow down links, since the kernel here has no netem. Each
// takes the address of the broker on the loopback interface of its namespace, so that no process
// needs other settings.
type proxies struct{ group *group }

// startProxies starts them. They live until the group ends.
func startProxies(ctx context.Context, g *group) (*proxies, error) {
	_, port, found := strings.Cut(strings.TrimPrefix(g.broker.url, "pulsar://"), ":")
	if !found {
		return nil, fmt.Errorf("the broker's address is %q, want pulsar://HOST:PORT", g.broker.url)
	}
	type proxy struct {
		Name     string `json:"name"`
		Listen   string `json:"listen"`
		Upstream string `json:"upstream"`
		Enabled  bool   `json:"enabled"`
	}
	for _, m := range g.members {
		if err := command(ctx, "", "ip", "-n", m.name, "addr", "add", brokerIP+"/32", "dev", "lo"); err != nil {
			return nil, err
		}
		settings, err := json.Marshal([]proxy{
			{fromPulsar, brokerIP + ":" + port, backendIP + ":" + port, true},
			{fromPeers, memberIP(m.number) + ":16651", "127.0.0.1:16651", true},
		})
		if err != nil {
			return nil, err
		}
		file := filepath.Join(g.dir, m.name+"-toxiproxy.json")
		if err := os.WriteFile(file, settings, 0o644); err != nil {
			return nil, err
		}
		m.proxy = &process{
			namespace: m.name, log: filepath.Join(g.dir, m.name+"-toxiproxy.log"), ended: func(clock.Instant, bool) {},
			launch: func(int) (string, []string, []string) {
				return filepath.Join(g.dir, "toxiproxy"), []string{"-host", "127.0.0.1", "-port", "8474", "-config", file}, []string{"LOG_LEVEL=error"}
			},
		}
		if err := m.proxy.start(); err != nil {
			return nil, err
		}
		err = eventually.Ask(ctx, 30*time.Second, m.name+"'s proxies answer", func() error {
			return m.tellProxy(ctx, http.MethodGet, "/proxies/"+fromPulsar, nil)
		})
		if err != nil {
			return nil, err
		}
	}
	return &proxies{g}, nil
}

// slow slows down links of a member. Packets in flight at the end still arrive late.
func (p *proxies) slow(ctx context.Context, f fault) error {
	m := p.group.members[f.Member]
	links := []string{f.Variant}
	if f.Variant == fromAll {
		links = []string{fromPulsar, fromPeers}
	}
	type attributes struct {
		Latency int64 `json:"latency"` // in milliseconds, as the next
		Jitter  int64 `json:"jitter"`
	}
	type toxic struct {
		Name       string     `json:"name"`
		Type       string     `json:"type"`
		Stream     string     `json:"stream"`
		Attributes attributes `json:"attributes"`
	}
	var errs []error
	each := func(do func(link, stream string) error) {
		for _, link := range links {
			for _, stream := range []string{"upstream", "downstream"} {
				errs = append(errs, do(link, stream))
			}
		}
	}
	each(func(link, stream string) error {
		way := f.Delay / 2
		return m.tellProxy(ctx, http.MethodPost, "/proxies/"+link+"/toxics",
			toxic{stream, "latency", stream, attributes{way.Milliseconds(), way.Milliseconds() / 2}})
	})
	errs = append(errs, backoff.Sleep(ctx, f.Length))
	each(func(link, stream string) error {
		return m.tellProxy(context.WithoutCancel(ctx), http.MethodDelete, "/proxies/"+link+"/toxics/"+stream, nil)
	})
	return errors.Join(errs...)
}

// tellProxy calls the API of the member's toxiproxy.
func (m *member) tellProxy(ctx context.Context, method, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+proxyAPI+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	answer, err := m.admin.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s: toxiproxy: %s %s: %s", m.name, method, path, answer.Status)
	}
	return nil
}
