package entries

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// seeds holds the hosts that lookups begin with. Lookups switch to the next host only when a host fails.
type seeds struct {
	service

	cluster uint64 // names the cluster: ids of entries mean nothing in another one

	mu sync.Mutex // guards at
	at int        // index of the host to ask first
}

func newSeeds(of service) *seeds {
	name := fnv.New64a()
	for _, host := range of.hosts {
		_, _ = name.Write(append([]byte(host), ',')) // it never fails
	}
	return &seeds{service: of, cluster: name.Sum64()}
}

// connect returns a connection to one of the hosts, which are tried in turn.
func (s *seeds) connect(ctx context.Context, c *Client) (*conn, error) {
	var errs []error
	for range s.hosts {
		s.mu.Lock()
		at := s.at
		s.mu.Unlock()
		host := s.hosts[at]
		k, err := c.connect(ctx, slot{to: address{broker: host, dialed: host, tls: s.tls}})
		if err == nil {
			return k, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
		s.next(at)
	}
	return nil, errors.Join(errs...)
}

// next selects the host after a failed host.
func (s *seeds) next(failed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == failed {
		s.at = (failed + 1) % len(s.hosts)
	}
}

// redirectsMax bounds the brokers that one lookup asks.
const redirectsMax = 20

// lookup finds the broker that serves a topic partition.
func (c *Client) lookup(ctx context.Context, from *seeds, topic string) (address, error) {
	k, err := from.connect(ctx, c)
	if err != nil {
		return address{}, err
	}
	authoritative := false
	for range redirectsMax {
		answer, err := c.ask(ctx, k, topic, authoritative)
		if err != nil {
			return address{}, err
		}
		to, err := k.named(answer.GetBrokerServiceUrl(), answer.GetBrokerServiceUrlTls(), answer.GetProxyThroughServiceUrl())
		if err != nil {
			return address{}, fmt.Errorf("look up %s: %w", topic, err)
		}
		if answer.GetResponse() == pulsarpb.CommandLookupTopicResponse_CONNECT {
			return to, nil
		}
		authoritative = answer.GetAuthoritative()
		if k, err = c.connect(ctx, slot{to: to}); err != nil {
			return address{}, err
		}
	}
	return address{}, fmt.Errorf("entries: look up %s: %d brokers redirect to one another", topic, redirectsMax)
}

// ask asks one broker.
func (c *Client) ask(ctx context.Context, k *conn, topic string, authoritative bool) (*pulsarpb.CommandLookupTopicResponse, error) {
	id := c.ids.Add(1)
	answer, err := k.request(ctx, id, &pulsarpb.BaseCommand{
		Type: pulsarpb.BaseCommand_LOOKUP.Enum(),
		LookupTopic: &pulsarpb.CommandLookupTopic{
			Topic: new(topic), RequestId: &id, Authoritative: &authoritative,
		},
	})
	if err != nil {
		return nil, err
	}
	r := answer.GetLookupTopicResponse()
	if r == nil || r.Response == nil || r.GetResponse() == pulsarpb.CommandLookupTopicResponse_FAILED {
		return nil, k.refusal("look up "+topic, answer)
	}
	return r, nil
}

// named returns the address of a broker that the broker of k names by its URLs. A proxied one is dialed at the host of k.
func (k *conn) named(plain, secure string, proxied bool) (address, error) {
	broker, err := parseBroker(plain, secure, k.to.tls)
	if err != nil {
		return address{}, err
	}
	to := address{broker: broker, dialed: broker, tls: k.to.tls}
	if proxied {
		to.dialed = k.to.dialed
	}
	return to, nil
}
