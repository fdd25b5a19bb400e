package entries

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// address holds the target of a connection: a broker, and the host that is dialed for it. The host is a proxy if the two differ.
type address struct {
	broker string // host:port
	dialed string
	tls    bool
}

func (a address) proxied() bool { return a.broker != a.dialed }

// String returns the broker for errors and logs.
func (a address) String() string {
	if a.proxied() {
		return words(a.broker) + " through " + a.dialed
	}
	return words(a.broker)
}

// service is a list of hosts that answer the same lookups.
type service struct {
	hosts []string // host:port, at least one
	tls   bool
}

const (
	plainScheme, plainPort = "pulsar://", "6650"
	tlsScheme, tlsPort     = "pulsar+ssl://", "6651"
)

// hostsMax bounds the hosts of a URL.
const hostsMax = 100

// parseService parses the URL of a service: a scheme, hosts with or without ports, separated by commas or semicolons, and no path.
func parseService(url string) (service, error) {
	rest, port, s := "", plainPort, service{}
	switch {
	case hasScheme(url, plainScheme):
		rest = url[len(plainScheme):]
	case hasScheme(url, tlsScheme):
		rest, port, s.tls = url[len(tlsScheme):], tlsPort, true
	default:
		return s, fmt.Errorf("entries: %q is not a broker URL: it begins neither with %s nor with %s", words(url), plainScheme, tlsScheme)
	}
	for _, host := range strings.FieldsFunc(strings.TrimSuffix(rest, "/"), func(r rune) bool { return r == ',' || r == ';' }) {
		full, err := withPort(host, port)
		if err != nil {
			return service{}, fmt.Errorf("entries: %q: %w", words(url), err)
		}
		s.hosts = append(s.hosts, full)
	}
	if len(s.hosts) == 0 || len(s.hosts) > hostsMax {
		return service{}, fmt.Errorf("entries: %q names %d hosts, want 1 to %d", words(url), len(s.hosts), hostsMax)
	}
	return s, nil
}

func hasScheme(url, scheme string) bool {
	return len(url) >= len(scheme) && strings.EqualFold(url[:len(scheme)], scheme)
}

var errHost = errors.New("not a host with a port")

func withPort(host, port string) (string, error) {
	if strings.ContainsAny(host, "/?#@% \t\r\n") {
		return "", errHost
	}
	name, given, err := net.SplitHostPort(host)
	if err != nil { // no port, or an invalid host
		name, given, err = net.SplitHostPort(host + ":" + port)
	}
	if err != nil || name == "" || given == "" {
		return "", errHost
	}
	return net.JoinHostPort(name, given), nil
}

// parseBroker parses the URL under which a broker names another broker: secure if tls is set, otherwise plain.
func parseBroker(plain, secure string, tls bool) (string, error) {
	url, kind := plain, "address"
	if tls {
		url, kind = secure, "address for TLS"
	}
	if url == "" {
		return "", fmt.Errorf("entries: the broker names another broker without its %s: do the brokers advertise one?", kind)
	}
	s, err := parseService(url)
	if err != nil {
		return "", err
	}
	if len(s.hosts) != 1 || s.tls != tls {
		return "", fmt.Errorf("entries: the broker names another broker as %q, want one host with the same scheme", words(url))
	}
	return s.hosts[0], nil
}
