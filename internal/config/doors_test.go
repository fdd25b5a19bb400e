package config_test

import (
	"strings"
	"testing"

	"github.com/ringfence/router/internal/config"
)

// What would leave a door open, or lock it half, is refused with a reason.
func TestDoorsThatAreRefused(t *testing.T) {
	half := "cert_file: /c, key_file: /k, ca_file: /a"
	for name, test := range map[string]struct{ file, want string }{
		"application on all addresses": {`app: {listen: "0.0.0.0:16650"}`, `app.listen = "0.0.0.0:16650" can be reached from other machines: want a loopback address or unix:PATH, or set app.tls`},
		"application on one of them":   {`app: {listen: "10.0.0.7:16650"}`, "can be reached from other machines"},
		"application on a name":        {`app: {listen: "router:16650"}`, "can be reached from other machines"},
		"application with half a TLS":  {`app: {listen: "0.0.0.0:16650", tls: {` + half + `}}`, "section app.tls: tlsconf: Name is not set"},
		"peers with half a TLS":        {`peer: {tls: {name: orders}}`, "section peer.tls: tlsconf: CertFile is not set"},
		"peers of a CA":                {`peer: {tls: {` + half + `}}`, "everybody would get in to whom the CA has given a certificate"},
		"debug page for others":        {`debug: {listen: "0.0.0.0:16654"}`, "debug.listen"},
		"two tokens":                   {`admin: {token: a, token_file: /b}`, "admin.token and admin.token_file are both set"},
		"a drain with and without":     {`admin: {drain_token: a, drain_open: true}`, "admin.drain_token and admin.drain_open are both set"},
		"two keys":                     {`gossip: {encryption_keys: MDEyMzQ1Njc4OWFiY2RlZg==, encryption_keys_file: /b}`, "gossip.encryption_keys and gossip.encryption_keys_file are both set"},
		"gossip that drops itself":     {`gossip: {verify_outgoing: false}`, "VerifyIncoming without VerifyOutgoing"},
		"two names at Pulsar":          {`pulsar: {token: a, oauth2: {issuer_url: "https://i", key_file: /k}}`, "pulsar.oauth2 and pulsar.token are both set"},
		"a secret in the clear":        {`pulsar: {oauth2: {issuer_url: "http://i", key_file: /k}}`, "pulsar.oauth2.issuer_url is not https"},
		"TLS without TLS":              {`pulsar: {tls: {ca_file: /a}}`, "pulsar.tls is set, and pulsar.url"},
		"a certificate without a key":  {`pulsar: {url: "pulsar+ssl://b:6651", tls: {cert_file: /a}}`, "go together"},
		"permissions that are none":    {`app: {socket_mode: rw}`, `SocketMode = "rw"`},
		"an owner who is none":         {`app: {socket_owner: app}`, `SocketOwner = "app"`},
		"no connections":               {`admin: {connections_max: 0}`, "admin.connections_max = 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(config.Sources{File: yamlFile(t, test.file), Environ: enough})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want a word about %q", err, test.want)
			}
		})
	}
}

func TestDoorsThatAreTaken(t *testing.T) {
	for _, file := range []string{
		`app: {listen: "127.0.0.1:1"}`, `app: {listen: "[::1]:1"}`, `app: {listen: "localhost:1"}`,
		`app: {listen: "unix:/run/ringfence/app.sock", socket_mode: "0660", socket_owner: ":2000"}`,
		`app: {listen: "0.0.0.0:1", tls: {cert_file: /c, key_file: /k, ca_file: /a, name: orders-app}}`,
		`peer: {tls: {cert_file: /c, key_file: /k, ca_file: /a, name: "spiffe://cluster.local/ns/shop/sa/orders"}}`,
		`pulsar: {url: "pulsar+ssl://b:6651", token_file: /t, tls: {ca_file: /a, name: broker.pulsar}}`,
		`pulsar: {url: "pulsar+ssl://b:6651", tls: {cert_file: /c, key_file: /k}}`,
		`pulsar: {oauth2: {issuer_url: "https://i", key_file: /k, audience: a, scope: "x y"}}`,
		`admin: {listen: "0.0.0.0:16653", token_file: /t, drain_open: true}`,
		`gossip: {encryption_keys_file: /k, verify_incoming: false, verify_outgoing: false}`,
	} {
		if _, err := config.Load(config.Sources{File: yamlFile(t, file), Environ: enough}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestSecretsHaveNoFlags(t *testing.T) {
	set := flags(t)
	for key, want := range map[string]bool{
		"pulsar.token": false, "admin.token": false, "admin.drain_token": false, "gossip.encryption_keys": false,
		"pulsar.token_file": true, "admin.token_file": true, "gossip.encryption_keys_file": true,
	} {
		if got := set.Lookup(key) != nil; got != want {
			t.Errorf("--%s is there: %v, want %v", key, got, want)
		}
	}
}
