package entries

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// provider returns a new token on each call.
type provider struct {
	inits, tokens, calls, closed atomic.Int32

	mu          sync.Mutex
	initError   error
	dataError   error
	hang        chan struct{} // nil: calls return
	certificate *tls.Certificate
}

func (p *provider) Init() error {
	p.inits.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.initError
}

func (p *provider) Name() string { return "token" }

func (p *provider) GetTLSCertificate() (*tls.Certificate, error) { return p.certificate, nil }

func (p *provider) set(hang chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hang = hang
}

func (p *provider) GetData() ([]byte, error) {
	p.calls.Add(1)
	p.mu.Lock()
	err, hang := p.dataError, p.hang
	p.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return fmt.Appendf(nil, "token %d", p.tokens.Add(1)), err
}

func (p *provider) Close() error {
	p.closed.Add(1)
	return nil
}

func (p *provider) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.ErrUnsupported
}
func (p *provider) Transport() http.RoundTripper          { return nil }
func (p *provider) WithTransport(http.RoundTripper) error { return errors.ErrUnsupported }

// shown makes a broker record the credentials that it receives.
func shown(b *fakebroker.Broker) func() []string {
	var mu sync.Mutex
	var seen []string
	before := b.Script
	b.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		mu.Lock()
		switch c.GetType() {
		case pulsarpb.BaseCommand_CONNECT:
			seen = append(seen, c.GetConnect().GetAuthMethodName()+"/"+string(c.GetConnect().GetAuthData()))
		case pulsarpb.BaseCommand_AUTH_RESPONSE:
			r := c.GetAuthResponse().GetResponse()
			seen = append(seen, "again "+r.GetAuthMethodName()+"/"+string(r.GetAuthData()))
		default:
		}
		mu.Unlock()
		return before != nil && before(l, c)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

func challenge() *pulsarpb.BaseCommand {
	return &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_AUTH_CHALLENGE.Enum(), AuthChallenge: new(pulsarpb.CommandAuthChallenge)}
}

// A broker that asks again, during the handshake or later, gets fresh credentials.
func TestCredentialsAreShown(t *testing.T) {
	bubble(t, func(r *rig) {
		p := new(provider)
		r.access.Auth = p
		a := r.cluster.Broker("a:6650")
		var link atomic.Pointer[fakebroker.Link]
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			link.Store(l)
			switch c.GetType() {
			case pulsarpb.BaseCommand_CONNECT:
				l.Send(challenge())
				return true
			case pulsarpb.BaseCommand_AUTH_RESPONSE:
				if p.tokens.Load() == 2 {
					l.Handle(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_CONNECT.Enum()})
				}
			default:
			}
			return false
		}
		seen := shown(a)
		r.subscribe()
		link.Load().Send(challenge())
		synctest.Wait()
		want := []string{"token/token 1", "again token/token 2", "again token/token 3"}
		if got := seen(); !slices.Equal(got, want) || p.inits.Load() != 1 {
			t.Errorf("broker received %q after %d inits, want %q after one init", got, p.inits.Load(), want)
		}
		r.publish(1)
		r.receive(1)
		r.client.Close()
		if p.closed.Load() != 1 {
			t.Error("the provider is not closed")
		}
		r.client = nil
	})
}

// A provider that was never initialized, as that of a client without a connection, is not closed: some, as our own of OAuth2, do not bear that.
func TestProviderWithoutInitIsNotClosed(t *testing.T) {
	bubble(t, func(r *rig) {
		p := new(provider)
		r.access.Auth = p
		r.open().Close()
		r.client = nil
		if p.inits.Load() != 0 || p.closed.Load() != 0 {
			t.Errorf("%d inits and %d closes, want none", p.inits.Load(), p.closed.Load())
		}
	})
}

func TestCredentialsAreRefused(t *testing.T) {
	bubble(t, func(r *rig) {
		r.access.Auth = new(provider)
		a := r.cluster.Broker("a:6650")
		var refuse atomic.Bool
		refuse.Store(true)
		var link atomic.Pointer[fakebroker.Link]
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			link.Store(l)
			if c.GetType() == pulsarpb.BaseCommand_CONNECT && refuse.Load() {
				l.Refuse(1<<64-1, pulsarpb.ServerError_AUTHENTICATION_ERROR, "token expired")
				return true
			}
			return false
		}
		r.cfg.URL = "pulsar://a"
		begun := time.Now()
		_, err := r.open().Subscribe(r.Context(), r.subscription())
		var auth *AuthError
		if !errors.As(err, &auth) || !strings.Contains(err.Error(), "token expired") || !strings.Contains(err.Error(), "look at pulsar.token") {
			t.Errorf("err = %v", err)
		}
		if time.Since(begun) != 0 || a.Dials() != 1 {
			t.Errorf("Subscribe took %v and %d attempts, want one attempt", time.Since(begun), a.Dials())
		}

		// Later the consumer retries: tokens expire, and are renewed.
		refuse.Store(false)
		r.subscribe()
		refuse.Store(true)
		link.Load().Refuse(1<<64-1, pulsarpb.ServerError_AUTHENTICATION_ERROR, "refresh failed")
		time.Sleep(time.Minute)
		refuse.Store(false)
		r.publish(1)
		r.receive(1)
	})
}

func TestThereAreNoCredentials(t *testing.T) {
	for name, spoil := range map[string]func(*provider){
		"init":  func(p *provider) { p.initError = errors.New("the issuer says no") },
		"data":  func(p *provider) { p.dataError = errors.New("the issuer says no") },
		"hangs": func(p *provider) { p.hang = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				p := new(provider)
				spoil(p)
				r.access.Auth = p
				r.cluster.Broker("a:6650")
				_, err := r.open().Subscribe(r.Context(), r.subscription())
				var auth *AuthError
				switch {
				case p.hang != nil && err == nil, p.hang == nil && (!errors.As(err, &auth) || !strings.Contains(err.Error(), "the issuer says no")):
					t.Errorf("err = %v", err)
				case strings.Contains(err.Error(), "the issuer") && p.inits.Load() < 2 && name == "init":
					t.Error("failed init is not retried")
				}
				if p.hang != nil {
					close(p.hang)
				}
				p.mu.Lock()
				p.initError, p.dataError, p.hang = nil, nil, nil
				p.mu.Unlock()
				r.subscribe()
			})
		})
	}
}

// A call of the provider that never returns does not keep the client from its brokers, and such calls do not pile up.
func TestOneHangingCallIsNotTheLast(t *testing.T) {
	bubble(t, func(r *rig) {
		p, hang := &provider{}, make(chan struct{})
		r.access.Auth = p
		a := r.cluster.Broker("a:6650")
		r.subscribe()
		r.publish(1)
		r.receive(1)
		before := p.calls.Load()
		p.set(hang)
		a.Cut()
		time.Sleep(time.Hour)
		if n := p.calls.Load() - before; n > 1+hungMax {
			t.Errorf("%d calls hang", n)
		}
		close(hang)
		time.Sleep(time.Minute)
		hang = make(chan struct{})
		defer close(hang)
		p.set(hang)
		a.Cut()
		time.Sleep(r.cfg.ConnectTimeout / 2)
		p.set(nil)
		time.Sleep(time.Minute)
		r.publish(1)
		r.receive(1)
	})
}

// When a peer hangs, calls end with their context, and Close is bounded.
func TestWhateverHangs(t *testing.T) {
	silent := func(kinds ...pulsarpb.BaseCommand_Type) func(*rig) func() {
		return func(r *rig) func() {
			r.cluster.Broker("a:6650").Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
				return slices.Contains(kinds, c.GetType())
			}
			return func() {}
		}
	}
	for name, hang := range map[string]func(*rig) func(){
		"connect":    silent(pulsarpb.BaseCommand_CONNECT),
		"lookup":     silent(pulsarpb.BaseCommand_LOOKUP),
		"subscribe":  silent(pulsarpb.BaseCommand_SUBSCRIBE),
		"close, too": silent(pulsarpb.BaseCommand_SUBSCRIBE, pulsarpb.BaseCommand_CLOSE_CONSUMER),
		"credentials": func(r *rig) func() {
			p := &provider{hang: make(chan struct{})}
			r.access.Auth = p
			r.cluster.Broker("a:6650")
			return func() { close(p.hang) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				defer hang(r)()
				ctx, cancel := context.WithCancel(r.Context())
				time.AfterFunc(time.Second, cancel)
				begun := time.Now()
				_, err := r.open().Subscribe(ctx, r.subscription())
				if !errors.Is(err, context.Canceled) || time.Since(begun) != time.Second {
					t.Errorf("Subscribe ended after %v: %v", time.Since(begun), err)
				}
				begun = time.Now()
				r.client.Close()
				if took := time.Since(begun); took > r.cfg.CloseTimeout {
					t.Errorf("Close took %v", took)
				}
				r.client = nil
			})
		})
	}
}

// A broker hangs when a consumer closes, or while it reconnects.
func TestClosingWhileABrokerHangs(t *testing.T) {
	for name, cut := range map[string]bool{"then": false, "before": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				a := r.cluster.Broker("a:6650")
				var hang atomic.Bool
				a.Script = func(*fakebroker.Link, *pulsarpb.BaseCommand) bool { return hang.Load() }
				c := r.subscribe()
				hang.Store(true)
				if cut {
					a.Cut()
					time.Sleep(time.Second)
				}
				begun := time.Now()
				c.Close()
				if took := time.Since(begun); took > r.cfg.CloseTimeout {
					t.Errorf("Close took %v, want at most %v", took, r.cfg.CloseTimeout)
				}
			})
		})
	}
}
