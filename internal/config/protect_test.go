package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/config"
)

// Settings that leave a listener exposed, or protect it only in part, are refused with a reason.
func TestListenersThatAreRefused(t *testing.T) {
	half := "cert_file: /c, key_file: /k, ca_file: /a"
	for name, test := range map[string]struct{ file, want string }{
		"application on all addresses": {`app: {listen: "0.0.0.0:16650"}`, `app.listen = "0.0.0.0:16650", want a loopback address or unix:PATH, or app.tls set: other machines can reach it`},
		"application on one of them":   {`app: {listen: "10.0.0.7:16650"}`, "other machines can reach it"},
		"application on a name":        {`app: {listen: "router:16650"}`, "other machines can reach it"},
		"application with half a TLS":  {`app: {listen: "0.0.0.0:16650", tls: {` + half + `}}`, `app.tls.name = "", want a value if app.tls.cert_file or app.tls.key_file or app.tls.ca_file is set`},
		"peers with half a TLS":        {`peer: {tls: {name: orders}}`, `router.yaml:1: peer.tls.cert_file = "", want a value if`},
		"peers of a CA":                {`peer: {tls: {` + half + `}}`, `router.yaml:1: peer.tls.name = "", want a value if`},
		"peers without TLS":            {`peer: {connections_max: 9}`, `peer.listen = "0.0.0.0:16651", want a loopback address, or peer.tls set`},
		"peers on one address":         {`peer: {listen: "10.0.0.7:16651"}`, "or peer.insecure true"},
		"gossip without keys":          {`gossip: {rejoins_max: 9}`, `gossip.listen = "0.0.0.0:16652", want a loopback address, or gossip.encryption_keys_file set`},
		"gossip that takes the clear":  {`gossip: {encryption_keys_file: /k, verify_incoming: false}`, "or gossip.insecure true"},
		"debug page for others":        {`debug: {listen: "0.0.0.0:16654"}`, "debug.listen"},
		"calls of others":              {`lane: {listen: "0.0.0.0:1"}`, `lane.listen = "0.0.0.0:1", want a loopback address, or lane.token_file and lane.tls set: other machines can reach it`},
		"calls with a token alone":     {`lane: {listen: "10.0.0.7:1", token_file: /t}`, `lane.listen = "10.0.0.7:1", want a loopback address, or`},
		"calls of everybody by TLS":    {`lane: {listen: ":1", tls: {cert_file: /c, key_file: /k}}`, `lane.listen = ":1", want a loopback address, or`},
		"calls without a key":          {`lane: {listen: "127.0.0.1:1", tls: {cert_file: /c}}`, `lane.tls.key_file = "", want a value if lane.tls.cert_file is set`},
		"two tokens":                   {`admin: {token: a, token_file: /b}`, `admin.token_file = "/b", want empty if admin.token`},
		"a drain with and without":     {`admin: {drain_token: a, drain_open: true}`, "admin.drain_open = true, want false if admin.drain_token is set"},
		"two keys":                     {`gossip: {encryption_keys: MDEyMzQ1Njc4OWFiY2RlZg==, encryption_keys_file: /b}`, `gossip.encryption_keys_file = "/b", want empty if gossip.encryption_keys`},
		"gossip that drops itself":     {`gossip: {verify_outgoing: false}`, "gossip.verify_incoming = true, want false while gossip.verify_outgoing is false"},
		"two names at Pulsar":          {`pulsar: {token: a, oauth2: {issuer_url: "https://i", key_file: /k}}`, `pulsar.oauth2.issuer_url = "https://i", want empty if pulsar.token`},
		"a secret in the clear":        {`pulsar: {oauth2: {issuer_url: "http://i", key_file: /k}}`, `pulsar.oauth2.issuer_url = "http://i", want https://HOST`},
		"TLS without TLS":              {`pulsar: {tls: {ca_file: /a}}`, `pulsar.url = "pulsar://127.0.0.1:6650", want pulsar+ssl://HOST:PORT if`},
		"a certificate without a key":  {`pulsar: {url: "pulsar+ssl://b:6651", tls: {cert_file: /a}}`, `pulsar.tls.key_file = "", want a value if pulsar.tls.cert_file`},
		"permissions that are none":    {`app: {socket_mode: rw}`, `app.socket_mode = "rw", want permissions in octal`},
		"an owner who is none":         {`app: {socket_owner: app}`, `app.socket_owner = "app", want UID:GID`},
		"peers on a socket":            {`peer: {listen: "unix:16651"}`, `peer.listen = "unix:16651", want HOST:PORT`},
		"a page on a socket":           {`admin: {listen: "unix:16653"}`, `admin.listen = "unix:16653", want HOST:PORT`},
		"calls on a socket":            {`lane: {listen: "unix:16655"}`, `lane.listen = "unix:16655", want HOST:PORT`},
		"debug page on a socket":       {`debug: {listen: "unix:16654"}`, `debug.listen = "unix:16654", want HOST:PORT`},
		"a socket with a long path":    {`app: {listen: "unix:/run/` + strings.Repeat("x", 200) + `"}`, "want a path of at most 107 bytes"},
		"no connections":               {`admin: {connections_max: 0}`, "admin.connections_max = 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(config.Sources{File: yamlFile(t, test.file), Environ: bare})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestListenersThatAreTaken(t *testing.T) {
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
		`lane: {listen: "off"}`, `lane: {listen: "[::1]:1"}`, `lane: {listen: "0.0.0.0:1", token_file: /t, tls: {cert_file: /c, key_file: /k}}`,
	} {
		if _, err := config.Load(config.Sources{File: yamlFile(t, file), Environ: enough}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Listeners names the protection of each listener. A router starts if each listener is protected, or its settings allow it to be
// exposed.
func TestListeners(t *testing.T) {
	const files = "cert_file: /c, key_file: /k, ca_file: /a"
	for name, test := range map[string]struct {
		file string
		want map[string]string
		open []string // exposed
	}{
		"as they are by default": {
			want: map[string]string{"app": "loopback", "peer": "nothing (insecure)", "gossip": "nothing (insecure)", "admin": "loopback"},
			open: []string{"peer", "gossip"},
		},
		"all on loopback": {
			file: `{app: {listen: "127.0.0.1:1"}, peer: {listen: "[::1]:2"}, gossip: {listen: "127.0.0.1:3"}}`,
			want: map[string]string{"app": "loopback", "peer": "loopback", "gossip": "loopback"},
		},
		"certificates and keys": {
			file: `
app: {listen: "0.0.0.0:1", tls: {` + files + `, name: orders-app}}
peer: {tls: {` + files + `, name: "spiffe://c/ns/shop"}}
gossip: {encryption_keys_file: /k}
admin: {token_file: /t}`,
			want: map[string]string{"app": "TLS, name orders-app", "peer": "TLS, name spiffe://c/ns/shop", "gossip": "keys", "admin": "loopback; token"},
		},
		"keys in a setting": {
			file: `gossip: {encryption_keys: MDEyMzQ1Njc4OWFiY2RlZg==}`,
			want: map[string]string{"gossip": "keys"},
			open: []string{"peer"},
		},
		"a socket": {
			file: `app: {listen: "unix:/run/app.sock", socket_mode: "0660", socket_owner: ":2000"}`,
			want: map[string]string{"app": "socket 0660, owner :2000"},
			open: []string{"peer", "gossip"},
		},
		"loopback with certificates": {
			file: `app: {listen: "localhost:1", tls: {` + files + `, name: orders-app}}`,
			want: map[string]string{"app": "loopback; TLS, name orders-app"},
			open: []string{"peer", "gossip"},
		},
		"a token of workers": {
			file: `app: {token_file: /t}`,
			want: map[string]string{"app": "loopback; token"},
			open: []string{"peer", "gossip"},
		},
		"a token of workers beside certificates": {
			file: `app: {listen: "0.0.0.0:1", token_file: /t, tls: {` + files + `, name: orders-app}}`,
			want: map[string]string{"app": "TLS, name orders-app; token"},
			open: []string{"peer", "gossip"},
		},
		"keys that may be left out": {
			file: `gossip: {encryption_keys_file: /k, verify_incoming: false}`,
			want: map[string]string{"gossip": "nothing (insecure: gossip.verify_incoming is false)"},
			open: []string{"peer", "gossip"},
		},
		"admin with TLS": {
			file: `admin: {listen: "0.0.0.0:16653", tls: {cert_file: /c, key_file: /k}}`,
			want: map[string]string{"admin": "TLS; probes and metrics only, but on loopback"},
			open: []string{"peer", "gossip"},
		},
		"admin with TLS and a token, debug beside": {
			file: `{admin: {listen: "0.0.0.0:16653", token: 0123456789abcdef, tls: {cert_file: /c, key_file: /k}}, debug: {listen: "127.0.0.1:4"}}`,
			want: map[string]string{"admin": "TLS; token", "debug": "loopback; token"},
			open: []string{"peer", "gossip"},
		},
		"admin for probes": {
			file: `admin: {listen: "0.0.0.0:16653", token_file: /t}`,
			want: map[string]string{"admin": "probes and metrics only"},
			open: []string{"peer", "gossip"},
		},
		"admin with a token in the clear": {
			file: `admin: {listen: "0.0.0.0:16653", token_file: /t, insecure: true}`,
			want: map[string]string{"admin": "token in the clear (insecure)"},
			open: []string{"peer", "gossip", "admin"},
		},
		"calls on loopback": {
			file: `lane: {listen: "127.0.0.1:1", token_file: /t}`,
			want: map[string]string{"lane": "loopback; token"},
			open: []string{"peer", "gossip"},
		},
		"calls from elsewhere": {
			file: `lane: {listen: "0.0.0.0:1", token_file: /t, tls: {cert_file: /c, key_file: /k}}`,
			want: map[string]string{"lane": "TLS; token"},
			open: []string{"peer", "gossip"},
		},
		"admin with nothing": {
			file: `admin: {listen: "0.0.0.0:16653", insecure: true}`,
			want: map[string]string{"admin": "nothing (insecure); changes from loopback only"},
			open: []string{"peer", "gossip", "admin"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			environ := slices.Clone(bare)
			for _, exposed := range test.open {
				environ = append(environ, config.EnvPrefix+strings.ToUpper(exposed)+"__INSECURE=true")
			}
			var open []string
			listed := 0
			for _, l := range load(t, config.Sources{File: yamlFile(t, test.file), Environ: environ}).Listeners() {
				if want, ok := test.want[l.Name]; ok {
					listed++
					if l.ProtectedBy != want {
						t.Errorf("%s is protected by %q, want %q", l.Name, l.ProtectedBy, want)
					}
				}
				if l.Exposed {
					open = append(open, l.Name)
				}
			}
			if listed != len(test.want) {
				t.Errorf("%d of %d listeners are listed", listed, len(test.want))
			}
			if !slices.Equal(open, test.open) {
				t.Errorf("%q are exposed, want %q", open, test.open)
			}
		})
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
