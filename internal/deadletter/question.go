package deadletter

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/ring"
)

// Limits of one question of the admin endpoint, whose answer says what they cut.
const (
	askedReadMax    = 10_000   // letters that are read
	askedBytesMax   = 64 << 20 // of these letters
	askedReadFor    = 10 * time.Second
	askedQuietMax   = 2 * time.Second // silence that counts as the end of the letters
	askedBusyMax    = 5 * time.Second // to wait for another consumer of the letters
	askedAnswerMax  = 8 * time.Second // for an answer of the broker; a topic that refuses a letter takes two of these
	askedQueueMax   = 10              // letters that are fetched ahead
	askedListMax    = 200             // letters that one answer lists
	askedListed     = 50              // the same, if the question does not say
	askedPayloadMax = 16 << 10        // bytes of a payload that are shown
	askedActMax     = 500             // letters that one act sends or removes
	askedRate       = 100             // letters a second that one act sends
	askedKeyMax     = 4 << 10         // bytes of a key that are shown
	askedOwnMax     = 100             // properties of a letter that are shown
)

// Asked returns the configuration for a [Question]: c with closer limits.
func (c Config) Asked() Config {
	c.ReadMax, c.BytesMax, c.ReadFor, c.QuietMax, c.BusyMax, c.AnswerMax, c.QueueMax = askedReadMax, askedBytesMax, askedReadFor, askedQuietMax, askedBusyMax, askedAnswerMax, askedQueueMax
	return c
}

// What a question is about.
const (
	AskList   = "list"
	AskShow   = "show"
	AskReplay = "replay"
	AskPurge  = "purge"
	AskEvents = "replay_events"
)

// Question is one request of the admin endpoint about dead letters, as the process that answers it gets it.
type Question struct {
	What    string `json:"what"`
	ID      string `json:"id,omitempty"`      // of the letter
	ByKey   bool   `json:"by_key,omitempty"`  // only letters with Key
	Key     []byte `json:"key,omitempty"`     // any bytes
	Match   string `json:"match,omitempty"`   // list: text in the reason or an error
	Limit   int    `json:"limit,omitempty"`   // list: letters in the answer
	Payload bool   `json:"payload,omitempty"` // show: with the payload

	// A replay of events: those of Key that were published at Since or later, and before Until.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// Acts.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
	Yes bool   `json:"yes,omitempty"` // do it, instead of counting what it would do
}

// Answer is the answer to a [Question]: one of its parts. All texts in it are printable, but for keys.
type Answer struct {
	List   *AskedList   `json:"list,omitempty"`
	Letter *AskedLetter `json:"letter,omitempty"`
	Acted  *Acted       `json:"acted,omitempty"`

	Error  string `json:"error,omitempty"`
	Status int    `json:"status,omitempty"` // of HTTP, for an Error
}

// AskedList is the answer to GET /v1/deadletters: the newest of the letters that were read and selected.
type AskedList struct {
	Note     string         `json:"note"` // how many wait, and what was cut
	Whole    bool           `json:"whole"`
	Read     int            `json:"read"`
	Selected int            `json:"selected"`
	Cut      int            `json:"cut"` // selected, and not in Letters
	Reach    string         `json:"reach,omitempty"`
	Reasons  []ReasonCount  `json:"reasons"`
	Letters  []*AskedLetter `json:"letters"`
}

// AskedLetter is one letter in an answer.
type AskedLetter struct {
	Shown
	Hash      string  `json:"hash,omitempty"`       // of the key; "" if the letter has no key
	KeyBase64 string  `json:"key_base64,omitempty"` // instead of key, if that is not UTF-8
	Age       float64 `json:"age_seconds"`          // since it became a letter, by the broker's and this machine's clocks
	Obstacle  string  `json:"obstacle,omitempty"`   // why it cannot be replayed
	More      int     `json:"properties_cut,omitempty"`
}

// Acted is the answer to an act, or its dry run.
type Acted struct {
	DryRun bool   `json:"dry_run"`
	Act    string `json:"act,omitempty"` // as the record names it
	Says   []Said `json:"says"`
	Counts Counts `json:"counts"`
	Error  string `json:"error,omitempty"` // why it has ended before all was done, or what was not
}

// hide removes the fields that are only for callers that may know keys.
func (l *AskedLetter) hide() { l.Key, l.KeyBase64, l.FirstError, l.LastError = "", "", "", "" }

// Answer answers a question. Its Config should be [Config.Asked].
func (b *Broker) Answer(ctx context.Context, q Question) Answer {
	a, err := b.answer(ctx, q)
	if err != nil {
		a.Error, a.Status = untrusted.Short(err.Error(), shownPropertyMax), statusOf(err)
	}
	return a
}

// errQuestion says that a question has no answer.
var errQuestion = errors.New("no such question")

// errNoLetter says that the letter does not wait.
var errNoLetter = errors.New("no such letter is waiting: it was replayed or purged, or its topic has more letters than one request reads")

func statusOf(err error) int {
	switch {
	case errors.Is(err, errQuestion):
		return http.StatusBadRequest
	case errors.Is(err, errNoLetter):
		return http.StatusNotFound
	case errors.Is(err, ErrConsumed), errors.Is(err, ErrActing), errors.Is(err, ErrTrimmed), errors.Is(err, ErrTooMany):
		return http.StatusConflict
	}
	return http.StatusBadGateway
}

func (b *Broker) answer(ctx context.Context, q Question) (a Answer, err error) {
	sel := Selection{Match: q.Match}
	if q.ID != "" {
		sel.IDs = []string{q.ID}
	}
	if q.ByKey {
		sel.Keys = []string{string(q.Key)}
	}
	switch q.What {
	case AskList:
		a.List, err = b.askedList(ctx, sel, q.Limit)
		return a, err
	case AskShow:
		found, err := b.Find(ctx, q.ID)
		if err == nil && found == nil {
			err = errNoLetter
		}
		if err != nil {
			return a, err
		}
		a.Letter = b.whole(found)
		if q.Payload {
			a.Letter.setHexPayload(found.Payload)
		}
		return a, nil
	case AskEvents:
		if sel.Since, sel.Until = q.Since, q.Until; !q.ByKey || sel.Since.IsZero() || !sel.Since.Before(sel.Until) {
			return a, fmt.Errorf("%w: a replay of events needs a key and a time", errQuestion)
		}
		a.Acted, err = b.act(ctx, q, sel.Named())
		return a, err
	case AskReplay, AskPurge:
		if sel.Empty() {
			return a, fmt.Errorf("%w: an act without a selection", errQuestion)
		}
		a.Acted, err = b.act(ctx, q, sel)
		return a, err
	}
	return a, fmt.Errorf("%w: %.40q", errQuestion, q.What)
}

func (b *Broker) askedList(ctx context.Context, sel Selection, limit int) (*AskedList, error) {
	limit = min(cmp.Or(limit, askedListed), askedListMax)
	counted := NewShownList()
	var newest []*AskedLetter
	counts, err := b.List(ctx, sel, func(l *Letter) error {
		counted.count(l)
		newest = append(newest, b.asked(shownOf(l, shownTextMax), l))
		if len(newest) >= 2*limit {
			newest = newestOf(newest, limit)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	counted.Finish(counts)
	list := &AskedList{Read: counts.Read, Selected: counts.Selected, Reach: counts.Reach, Whole: counts.Reach == "", Reasons: counted.Reasons, Letters: newestOf(newest, limit)}
	list.Cut = list.Selected - len(list.Letters)
	list.Note = list.note(sel.Empty())
	return list, nil
}

// newestOf returns the newest letters, the newest first.
func newestOf(letters []*AskedLetter, limit int) []*AskedLetter {
	slices.SortStableFunc(letters, func(a, b *AskedLetter) int { return b.Published.Compare(a.Published) })
	return append([]*AskedLetter{}, letters[:min(limit, len(letters))]...)
}

func (l *AskedList) note(all bool) string {
	says := plural(l.Selected, "dead letter") + " wait"
	if l.Selected == 1 {
		says += "s"
	}
	if !l.Whole {
		says = "At least " + says
	}
	if !all {
		says += fmt.Sprintf(", selected from %d that were read", l.Read)
	}
	if l.Cut > 0 {
		says += fmt.Sprintf("; the %d newest of them are listed", len(l.Letters))
	}
	if l.Reach != "" {
		says += "; " + l.Reach
	}
	return says + "."
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// asked returns a letter with its key, by which callers may ask again, and with printable texts.
func (b *Broker) asked(s *Shown, l *Letter) *AskedLetter {
	a := &AskedLetter{Shown: *s, Age: max(0, b.cfg.Now().Sub(l.Published).Seconds()), Obstacle: l.obstacle(b.cfg.Topics, "")}
	for _, text := range []*string{&a.Reason, &a.Topic, &a.FirstError, &a.LastError, &a.Owner, &a.Broken} {
		*text = untrusted.Print(*text)
	}
	a.Key = ""
	if l.Key != "" {
		a.setKey(l.Key)
	}
	return a
}

// whole returns a letter with its properties.
func (b *Broker) whole(l *Letter) *AskedLetter {
	some := *l
	more := max(0, len(l.Properties)-askedOwnMax)
	some.Properties = l.Properties[:len(l.Properties)-more]
	a := b.asked(ShowWhole(&some), l)
	a.More = more
	return a
}

func (l *AskedLetter) setKey(key event.Key) {
	l.Hash = ring.HashOf(string(key)).String()
	switch {
	case len(key) > askedKeyMax:
	case utf8.ValidString(string(key)):
		l.Key = string(key)
	default:
		l.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(key))
	}
}

// setHexPayload shows a payload as printable text if it is some, else in hex.
func (l *AskedLetter) setHexPayload(payload []byte) {
	text, cut, isText := textOf(payload, askedPayloadMax)
	is := "text"
	if isText {
		text = untrusted.Lines(text)
	} else {
		is, text = "hex", hexLines(text)
	}
	if cut {
		is += fmt.Sprintf(", the first %d of %d bytes", askedPayloadMax, len(payload))
	}
	l.Payload, l.PayloadIs = &text, is
}

// hexLines shows bytes in hex, 16 in a line.
func hexLines(bytes string) string {
	var out strings.Builder
	for i := 0; i < len(bytes); i++ {
		switch {
		case i > 0 && i%16 == 0:
			out.WriteByte('\n')
		case i > 0:
			out.WriteByte(' ')
		}
		out.WriteString(hex.EncodeToString([]byte{bytes[i]}))
	}
	return out.String()
}

func (b *Broker) act(ctx context.Context, q Question, sel Selection) (*Acted, error) {
	o := Options{Who: q.By, Why: q.Why, Rate: askedRate, Max: askedActMax, DryRun: !q.Yes}
	did := &Acted{DryRun: o.DryRun}
	b.cfg.Audit = func(r Record) { did.Act = r.Act }
	var err error
	switch q.What {
	case AskReplay:
		did.Counts, err = b.ReplayLetters(ctx, sel, o)
	case AskPurge:
		did.Counts, err = b.Purge(ctx, sel, o)
	default:
		did.Counts, err = b.ReplayEvents(ctx, sel, o)
	}
	if errors.Is(err, ErrTooMany) {
		err = fmt.Errorf("%w (%d at this endpoint: router replay takes more)", err, o.Max)
	}
	did.Says = did.Counts.Words(o.DryRun)
	if err != nil && q.Yes && did.Act != "" && Continues(err) {
		err = fmt.Errorf("interrupted; make the same request again, and the act continues after it has found out what was sent: %w", err)
	}
	return did, err
}
