package membership

import (
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/telemetry/loglimit"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

const (
	settingsBytesMax = 64 << 10         // of the settings that another node tells
	settingsLogEvery = 10 * time.Second // between two lines about settings that differ: anybody may send them
	reasonShownMax   = 2 << 10          // bytes of the difference in such a line
)

// settings compares the settings on which a group must agree with those of other gossip nodes.
// Differences are only counted and logged: gossip may be forged, and decides nothing.
type settings struct {
	ours    identity.Identity
	encoded []byte
	metrics *Metrics
	lines   *loglimit.Limit
}

func newSettings(self Member, ours identity.Identity, metrics *Metrics, log *slog.Logger) (*settings, error) {
	s := &settings{ours: ours, metrics: metrics, lines: loglimit.New(log, "gossip_settings", settingsLogEvery, metrics.lines)}
	hello := &peerv1.Hello{Member: self.Name, Incarnation: self.Inc[:]}
	for _, one := range ours {
		hello.Identity = append(hello.Identity, &peerv1.Setting{Name: one.Name, Value: one.Value})
	}
	var err error
	if s.encoded, err = proto.Marshal(hello); err != nil {
		return nil, fmt.Errorf("membership: settings: %w", err)
	}
	return s, nil
}

// merge takes the settings of another node in an exchange. Routers of earlier releases send
// none; that counts as no difference.
func (s *settings) merge(told []byte) {
	var hello peerv1.Hello
	if len(told) > settingsBytesMax || proto.Unmarshal(told, &hello) != nil {
		s.metrics.bad.Inc()
		return
	}
	var theirs identity.Identity
	for _, one := range hello.GetIdentity() {
		theirs = append(theirs, identity.Setting{Name: one.GetName(), Value: one.GetValue()})
	}
	if theirs.Validate() != nil {
		s.metrics.bad.Inc()
		return
	}
	if differ := s.ours.Against(theirs); len(differ) > 0 {
		s.metrics.otherSettings.Inc()
		if log, due := s.lines.Line(); due {
			log.Warn("gossip node has different settings", "member", untrusted.Text(hello.GetMember()), "reason", untrusted.Short(differ.String(), reasonShownMax))
		}
	}
}
