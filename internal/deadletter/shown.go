package deadletter

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ringfence/router/internal/netx/untrusted"
)

// How much of a letter is shown.
const (
	shownTextMax     = 200     // bytes of a text in a list
	shownPropertyMax = 4 << 10 // bytes of a text of one letter
	shownReasonsMax  = 20
	unsureShownMax   = 5
)

// Shown is one dead letter as commands and the admin endpoint show it.
type Shown struct {
	ID         string            `json:"id"`
	Published  time.Time         `json:"published"`
	Key        string            `json:"key"`
	Reason     string            `json:"reason"`
	Attempts   uint64            `json:"attempts"`
	Crashes    uint64            `json:"crashes"`
	Topic      string            `json:"topic"`
	Original   string            `json:"original"`
	OriginalAt time.Time         `json:"original_published,omitzero"`
	FirstError string            `json:"first_error"`
	LastError  string            `json:"last_error"`
	Owner      string            `json:"owner"`
	Bytes      int               `json:"bytes"`
	Encrypted  bool              `json:"encrypted,omitempty"`
	Broken     string            `json:"broken,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
	Payload    *string           `json:"payload,omitempty"`
	PayloadIs  string            `json:"payload_is,omitempty"` // text or base64, and whether it was cut
}

// shownOf returns a letter with each text cut to so many bytes.
func shownOf(l *Letter, textMax int) *Shown {
	cut := func(s string) string {
		if len(s) <= textMax {
			return s
		}
		return strings.ToValidUTF8(s[:textMax], "") + fmt.Sprintf("… (%d bytes)", len(s))
	}
	return &Shown{
		ID: l.ID.String(), Published: l.Published, Key: cut(string(l.Key)), Reason: cut(l.Reason), Attempts: l.Attempts, Crashes: l.Crashes,
		Topic: cut(l.Topic), Original: l.Original, OriginalAt: l.OriginalPublished, FirstError: cut(l.FirstError), LastError: cut(l.LastError),
		Owner: cut(l.Owner), Bytes: len(l.Payload), Encrypted: l.Encrypted, Broken: cut(l.Broken),
	}
}

// ShowWhole returns a letter with its properties, and without its payload.
func ShowWhole(l *Letter) *Shown {
	shown := shownOf(l, shownPropertyMax)
	shown.Properties = map[string]string{}
	for _, p := range l.Properties {
		shown.Properties[untrusted.Short(p.Name, shownTextMax)] = untrusted.Short(p.Value, shownPropertyMax)
	}
	return shown
}

// SetPayload shows a payload, cut to so many bytes, as text if it is some, else in base64. limit names the limit.
func (s *Shown) SetPayload(payload []byte, bytesMax int, limit string) {
	text, cut, isText := textOf(payload, bytesMax)
	is := "text"
	if !isText {
		is, text = "base64", base64.StdEncoding.EncodeToString([]byte(text))
	}
	if cut {
		is += fmt.Sprintf(", cut to %d of %d bytes: %s", bytesMax, len(payload), limit)
	}
	s.Payload, s.PayloadIs = &text, is
}

// textOf returns a payload cut to so many bytes, and whether it is text.
func textOf(payload []byte, bytesMax int) (_ string, cut, isText bool) {
	if cut = len(payload) > bytesMax; cut {
		payload = payload[:bytesMax]
	}
	text := strings.ToValidUTF8(string(payload), "")
	if lost := len(payload) - len(text); lost >= utf8.UTFMax || lost > 0 && !cut { // the cut may have parted one character
		return string(payload), cut, false
	}
	return text, cut, true
}

// ShownList is a list of dead letters, and the counts of all that were selected.
type ShownList struct {
	Letters  []*Shown      `json:"letters"`
	Read     int           `json:"read"`
	Selected int           `json:"selected"`
	Cut      int           `json:"cut"` // selected, and not in Letters
	Reach    string        `json:"reach,omitempty"`
	Reasons  []ReasonCount `json:"reasons"` // of the selected ones, the most frequent first

	counts map[string]int
}

// ReasonCount is the number of letters with the same reason.
type ReasonCount struct {
	Reason  string `json:"reason"`
	Letters int    `json:"letters"`
}

const otherReasons = "(others)"

// NewShownList returns an empty list.
func NewShownList() *ShownList {
	return &ShownList{Letters: []*Shown{}, Reasons: []ReasonCount{}, counts: map[string]int{}}
}

// Add counts a letter, and lists it if fewer than limit are listed.
func (s *ShownList) Add(l *Letter, limit int) {
	if len(s.Letters) < limit {
		s.Letters = append(s.Letters, shownOf(l, shownTextMax))
	} else {
		s.Cut++
	}
	s.count(l)
}

// count counts a letter by its reason. A stranger's letters may all have different ones.
func (s *ShownList) count(l *Letter) {
	reason := untrusted.Text(l.Reason)
	if _, ok := s.counts[reason]; !ok && len(s.counts) >= 10*shownReasonsMax {
		reason = otherReasons
	}
	s.counts[reason]++
}

// Finish completes a list to which all letters were added.
func (s *ShownList) Finish(c Counts) {
	s.Read, s.Selected, s.Reach = c.Read, c.Selected, c.Reach
	for reason, n := range s.counts {
		s.Reasons = append(s.Reasons, ReasonCount{reason, n})
	}
	slices.SortFunc(s.Reasons, func(a, b ReasonCount) int {
		return cmp.Or(b.Letters-a.Letters, strings.Compare(a.Reason, b.Reason))
	})
	if cut := len(s.Reasons) - shownReasonsMax; cut > 0 {
		rest := 0
		for _, r := range s.Reasons[shownReasonsMax:] {
			rest += r.Letters
		}
		s.Reasons = append(s.Reasons[:shownReasonsMax], ReasonCount{otherReasons, rest})
	}
}

// Said is a line about what an act did, or would do.
type Said struct {
	Text  string `json:"text"`
	Alarm bool   `json:"alarm,omitempty"` // somebody should look at it
}

// Words tells the counts of an act, or of a dry run, in lines for people.
func (c *Counts) Words(dry bool) (all []Said) {
	line := func(alarm bool, format string, values ...any) {
		all = append(all, Said{fmt.Sprintf(format, values...), alarm})
	}
	did := func(n int, verb, what string) {
		switch {
		case n > 0 && dry:
			line(false, "%d would be %s%s", n, verb, what)
		case n > 0:
			line(false, "%d %s%s", n, verb, what)
		}
	}
	alarm := func(n int, what string) {
		if n > 0 {
			line(true, "%d %s", n, what)
		}
	}
	some := func(texts []string, alarm bool, more string) {
		for i, text := range texts {
			if i == unsureShownMax {
				line(alarm, more, len(texts)-i)
				return
			}
			line(alarm, "%s", text)
		}
	}
	line(false, "%d read, %d selected", c.Read, c.Selected)
	did(c.Sent, "sent", "")
	did(c.Purged, "removed", "")
	did(c.SentBefore, "left out or removed", ": an earlier replay sent them")
	did(c.Repeated, "left out or removed", ": the same event was selected or sent already")
	for _, why := range []string{ObstacleBatched, ObstacleEncrypted, ObstacleBroken, ObstacleHead, ObstacleTimer, ObstacleTopic, ObstacleNotOpened, ObstacleUnheld, ObstacleRefused} {
		alarm(c.Obstacles[why], "cannot be sent: "+why)
	}
	named := c.Refused[:min(len(c.Refused), unsureShownMax)]
	some(named, true, "")
	if len(named) > 0 {
		alarm(c.Obstacles[ObstacleRefused]-len(named), "more are like these")
	}
	some(c.Missing, true, "%d more topics are like these")
	alarm(c.Doubt, "are of an interrupted replay: the replay finds out whether they were sent")
	alarm(c.Schema, "have a schema version, and are sent without it")
	alarm(c.Shared, "cannot be removed: they share entries with letters that remain")
	alarm(c.Left, "selected letters remain, since one act has a limit")
	alarm(c.Foreign, "messages of the replays topic are not records of acts, and were ignored")
	some(c.Unsure, false, "%d more lines like these are left out")
	if c.Reach != "" {
		line(false, "%s", c.Reach)
	}
	return all
}
