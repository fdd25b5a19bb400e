package forward

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/netx/untrusted"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// The protocol versions that this build speaks.
const (
	versionMin = 1
	versionMax = 1
)

// capabilitySets says that a consumer node reads sets of events that are done, and that its handles can be in one.
const capabilitySets = "done-sets"

// capabilityCalls says that an owner takes calls, and that a consumer node reads the answers.
const capabilityCalls = "calls"

// Identity is a member's description of itself in a Hello.
type Identity struct {
	Group       string
	HashID      string // the function from key to partition, as in ring.HashID
	Member      string // stable name
	Incarnation Peer
	Build       string // for the logs of others

	// Settings are the settings on which the members of a group must agree; nil compares none.
	Settings identity.Identity
	// Key authenticates Incarnation to peers: the control log has its public half. nil sends
	// no Proof.
	Key ed25519.PrivateKey
}

func (i Identity) hello(to Peer) *peerv1.Hello {
	h := &peerv1.Hello{
		Group:       i.Group,
		HashId:      i.HashID,
		Member:      i.Member,
		Incarnation: i.Incarnation[:],
		VersionMin:  versionMin,
		VersionMax:  versionMax,
		Build:       i.Build,

		Capabilities: []string{capabilitySets, capabilityCalls},
	}
	for _, s := range i.Settings {
		h.Identity = append(h.Identity, &peerv1.Setting{Name: s.Name, Value: s.Value})
	}
	if to != Local {
		h.ToIncarnation = to[:]
	}
	return h
}

// errRefused is the root of every reason not to work with a peer.
var errRefused = errors.New("forward: refused")

// errSettings is one of them: the settings differ. It ends only this stream, since outsiders
// may dial; only the control log and the claims topic can end a router.
var errSettings = errors.New("settings differ")

// check returns the reason why this member does not work with the sender of h, with a remedy;
// nil when it does.
func (i Identity) check(h *peerv1.Hello) (Peer, error) {
	refuse := func(format string, args ...any) (Peer, error) {
		return Peer{}, fmt.Errorf("%w: %s", errRefused, fmt.Sprintf(format, args...))
	}
	member := untrusted.Text(h.GetMember())
	var peer Peer
	switch {
	case len(h.GetIncarnation()) != len(peer):
		return refuse("a Hello with an incarnation of %d bytes, want %d", len(h.GetIncarnation()), len(peer))
	case h.GetGroup() != i.Group:
		return refuse("member %q is of group %q, this is group %q: give both the same group, or take the address out of the seeds", member, untrusted.Text(h.GetGroup()), i.Group)
	case h.GetHashId() != i.HashID:
		return refuse("member %q places keys by %q, this member by %q: stop all members, then start them with one build", member, untrusted.Text(h.GetHashId()), i.HashID)
	case h.GetVersionMin() > versionMax || h.GetVersionMax() < versionMin:
		return refuse("member %q speaks protocol versions %d to %d, this member %d to %d: update the older one, one minor release at a time",
			member, h.GetVersionMin(), h.GetVersionMax(), versionMin, versionMax)
	}
	if differ := i.Settings.Against(settingsOf(h)); len(differ) > 0 {
		return Peer{}, fmt.Errorf("%w: %w: member %q has other settings than this one (here): %s", errRefused, errSettings, member, peerText(differ.String()))
	}
	copy(peer[:], h.GetIncarnation())
	if to := h.GetToIncarnation(); len(to) > 0 && string(to) != string(i.Incarnation[:]) {
		return refuse("this is incarnation %s of member %q, not the one that was called: it has restarted; wait for the next epoch", i.Incarnation, i.Member)
	}
	return peer, nil
}

// settingsOf reads the settings of a Hello. Those that are out of bounds or order count as not said: they
// cannot be compared, and a Hello proves nothing.
func settingsOf(h *peerv1.Hello) identity.Identity {
	if len(h.GetIdentity()) > identity.SettingsMax {
		return nil
	}
	var settings identity.Identity
	for _, s := range h.GetIdentity() {
		settings = append(settings, identity.Setting{Name: s.GetName(), Value: s.GetValue()})
	}
	if settings.Validate() != nil {
		return nil
	}
	return settings
}

// peerText returns a peer's text for an error: without control characters, and cut.
func peerText(text string) string {
	if len(text) > peerTextMax {
		text = strings.ToValidUTF8(text[:peerTextMax], "") + "…"
	}
	return untrusted.Print(text)
}
