package config

import (
	"strings"

	"github.com/ringfence/router/internal/netx/listen"
)

// Protection describes how one listener of a router is protected from strangers.
type Protection struct {
	Name        string // app, peer, gossip, admin, debug or lane
	Address     string // as in the settings
	ProtectedBy string // for people: "loopback", "TLS, name orders", "keys", "socket 0600", "nothing (insecure)"
	Exposed     bool   // other machines can connect to Address without a certificate or key
}

// Listeners returns the protection of every listener. A router starts only if none of them is exposed without
// the setting that allows it.
func (c Config) Listeners() []Protection {
	all := []Protection{c.appListener(), c.peerListener(), c.gossipListener(), c.adminListener()}
	if !c.Debug.Off() {
		all = append(all, c.debugListener())
	}
	if !c.Lane.Off() {
		all = append(all, c.laneListener())
	}
	return all
}

// insecure is the ProtectedBy of a listener that is exposed on purpose.
const insecure = "nothing (insecure)"

func (c Config) appListener() Protection {
	p := Protection{Name: "app", Address: c.App.Listen}
	local := listen.IsLocal(c.App.Listen)
	var by []string
	if _, ok := listen.UnixPath(c.App.Listen); ok {
		socket := "socket " + c.App.SocketMode
		if c.App.SocketOwner != "" {
			socket += ", owner " + c.App.SocketOwner
		}
		by = append(by, socket)
	} else if local {
		by = append(by, "loopback")
	}
	if c.App.TLS.Enabled() {
		by = append(by, "TLS, name "+c.App.TLS.Name)
	}
	p.Exposed = len(by) == 0 // a token alone would cross the network in the clear
	if c.App.TokenFile != "" {
		by = append(by, "token")
	}
	p.ProtectedBy = strings.Join(by, "; ")
	return p
}

func (c Config) peerListener() Protection {
	p := Protection{Name: "peer", Address: c.Peer.Listen}
	switch {
	case c.Peer.TLS.Enabled():
		p.ProtectedBy = "TLS, name " + c.Peer.TLS.Name
	case listen.IsLocal(c.Peer.Listen):
		p.ProtectedBy = "loopback"
	default:
		p.Exposed, p.ProtectedBy = true, insecure
	}
	return p
}

func (c Config) gossipListener() Protection {
	p := Protection{Name: "gossip", Address: c.Gossip.Listen}
	keys := c.Gossip.EncryptionKeys != "" || c.Gossip.EncryptionKeysFile != ""
	switch {
	case keys && c.Gossip.VerifyIncoming:
		p.ProtectedBy = "keys"
	case listen.IsLocal(c.Gossip.Listen):
		p.ProtectedBy = "loopback"
	case keys:
		p.Exposed, p.ProtectedBy = true, "nothing (insecure: gossip.verify_incoming is false)"
	default:
		p.Exposed, p.ProtectedBy = true, insecure
	}
	return p
}

func (c Config) adminListener() Protection {
	p := Protection{Name: "admin", Address: c.Admin.Listen}
	token := c.Admin.Token != "" || c.Admin.TokenFile != ""
	switch local := listen.IsLocal(c.Admin.Listen); {
	case c.Admin.TLS.Enabled() && token:
		p.ProtectedBy = "TLS; token"
	case c.Admin.TLS.Enabled():
		p.ProtectedBy = "TLS; probes and metrics only, but on loopback"
	case local && token:
		p.ProtectedBy = "loopback; token"
	case local:
		p.ProtectedBy = "loopback"
	case c.Admin.Insecure && token:
		p.Exposed, p.ProtectedBy = true, "token in the clear (insecure)"
	case c.Admin.Insecure:
		p.Exposed, p.ProtectedBy = true, "nothing (insecure); changes from loopback only"
	default:
		p.ProtectedBy = "probes and metrics only"
	}
	return p
}

func (c Config) debugListener() Protection {
	p := Protection{Name: "debug", Address: c.Debug.Listen, ProtectedBy: "loopback"}
	if c.Admin.Token != "" || c.Admin.TokenFile != "" {
		p.ProtectedBy += "; token"
	}
	return p
}

func (c Config) laneListener() Protection {
	p := Protection{Name: "lane", Address: c.Lane.Listen}
	local, token, encrypted := listen.IsLocal(c.Lane.Listen), c.Lane.TokenFile != "", c.Lane.TLS.Enabled()
	var by []string
	if local {
		by = append(by, "loopback")
	}
	if encrypted {
		by = append(by, "TLS")
	}
	if token {
		by = append(by, "token")
	}
	p.ProtectedBy, p.Exposed = strings.Join(by, "; "), !local && (!token || !encrypted)
	return p
}
