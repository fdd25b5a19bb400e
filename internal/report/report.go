// Package report collects the members' reports for people: the members, the owner of each
// partition, the reason why a key waits, and whether exclusivity held.
//
// A member reports only its own state. The member that answers a question about the group
// collects the reports of all members, each with the position up to which that member has read
// the control log. So the answer shows lagging members and disagreements.
//
//	CLI, status page ─ HTTP ─▶ Group of the queried member ─▶ its own Local
//	                                                      └─ gRPC ═▶ the Servers of the other members
//
// Members query each other on the peer port, under the same credentials, so that one admin
// endpoint shows the whole group and no other endpoint has to be reachable.
//
// # Concurrency
//
// Everything is safe for concurrent use. Nothing here is on the path of an event.
package report

import (
	"fmt"
	"slices"
	"time"
)

// Plural returns a number with a noun, for people: "1 event", "2 events".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// View names the member that answered, and the position up to which it had read the control log.
type View struct {
	Member      string `json:"member"`
	Incarnation string `json:"incarnation"`
	Position    string `json:"position"` // newest applied record of the control log, as ledger:entry; 0:0 before the first
	Epoch       string `json:"epoch"`    // the record that made the table in effect; 0:0 before the first
	Table       string `json:"table"`    // fingerprint of that table: equal for equal tables; "" before the first
}

// Status is one member's word about itself.
type Status struct {
	View
	Group   string `json:"group"`
	Version string `json:"version"` // of the build
	Mode    string `json:"mode"`    // strict, or gossip: not exclusive

	Phase        string  `json:"phase"`         // joining, stale (no lease), current, leaving, left
	Listed       bool    `json:"listed"`        // in the table in effect
	Draining     bool    `json:"draining"`      // a drain was asked for
	Drained      bool    `json:"drained"`       // and is over
	LeaseSeconds float64 `json:"lease_seconds"` // left of the lease; 0: none, negative: over for so long
	Generation   uint32  `json:"generation"`    // of fencing tokens
	Workers      int     `json:"workers"`       // application streams that take deliveries

	UncheckedWorkers list[Worker] `json:"unchecked_workers,omitempty"` // those whose SDK does not declare that it passes router conformance

	Earlier list[string] `json:"earlier,omitempty"` // incarnations that the process was before it drained or lost its ownership: the newest

	LogVersion        uint32              `json:"log_version"`                   // in which the group decides; 0: not known
	Settings          map[string]string   `json:"settings,omitempty"`            // on which the group must agree
	TopicsNotConsumed map[string][]string `json:"topics_not_consumed,omitempty"` // topics that wait, and the members that do not list them
	TopicsUnread      map[string]string   `json:"topics_unread,omitempty"`       // topics that the broker no longer lets it read, and why
	OtherSettings     string              `json:"other_settings,omitempty"`      // how a router differed that wanted to join in the last ten minutes

	Acts *Acts `json:"acts,omitempty"` // nil: this member takes no acts on keys, or its version does not tell

	Listeners   list[Listener] `json:"listeners,omitempty"` // none: a version that does not tell
	Checks      list[Check]    `json:"checks"`              // of readiness
	Gates       Gates          `json:"gates"`
	Events      Events         `json:"events"`
	Visits      *Visits        `json:"visits,omitempty"`    // nil: a version that does not tell
	Schedules   scheduleList   `json:"schedules,omitempty"` // that its workers declare
	Rates       Rates          `json:"rates"`
	Exclusivity Exclusivity    `json:"exclusivity"`

	SchedulesUnshown int `json:"schedules_unshown,omitempty"` // beyond SchedulesMax
}

// Acts holds a member's knowledge of the acts of operators on single keys.
type Acts struct {
	HeldKeys int    `json:"held_keys"`              // of the group
	Skips    *int   `json:"skips,omitempty"`        // in effect in the group; nil: a version that does not skip events
	Parks    *int   `json:"parks,omitempty"`        // keys of the group that are parked, or whose letters come back; nil: a version that does not park keys
	Lapsed   int    `json:"lapsed_parks,omitempty"` // keys whose newest park or unpark has expired: letters may be left in the parking topic
	Error    string `json:"error,omitempty"`        // why acts that are made now do not reach it
}

// Worker is a worker as it has named itself and its SDK: text from outside, made printable.
type Worker struct {
	Name string `json:"name"`
	SDK  string `json:"sdk"`
}

// Unchecked says of a worker why the promise rests on its SDK alone.
func (w Worker) Unchecked() string {
	return fmt.Sprintf("worker %s (%s) does not declare that its SDK passes `router conformance`; a handler of it may outlive its deadline", w.Name, w.SDK)
}

// Listener is one address that a member listens on, and its protection.
type Listener struct {
	Name        string `json:"name"` // app, peer, gossip, admin or debug
	Address     string `json:"address"`
	ProtectedBy string `json:"protected_by"`
	Exposed     bool   `json:"exposed,omitempty"` // other machines reach it, and get in without a certificate or key
}

// Check is one condition of readiness.
type Check struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"` // "": it holds
}

// Gates counts partitions by the state of this member's gate.
type Gates struct {
	Open     int `json:"open"`     // it dispatches for them while it has a lease
	Waiting  int `json:"waiting"`  // its own, but an earlier owner may still work
	Draining int `json:"draining"` // no longer its own, and its application still works
	Pending  int `json:"pending"`  // of any owner: an earlier tenure is not proven to be over
	Withheld int `json:"withheld"` // keys, not partitions: of those that are open, wait for an earlier owner's delivery
}

// Events counts a member's unfinished events.
type Events struct {
	Unsettled         int     `json:"unsettled"`           // received from the broker, without an end
	OldestSeconds     float64 `json:"oldest_seconds"`      // age of the oldest open entry; 0: none
	PinnedEntries     int     `json:"pinned_entries"`      // entries kept unacked whole by an open event
	Spilling          int     `json:"spilling"`            // open events waiting for a copy, to free the events that they pin
	Mailboxes         int     `json:"mailboxes"`           // at this owner, received by any member
	Running           int     `json:"running"`             // of these, with the application
	Keys              int     `json:"keys"`                // of these events
	HeldKeys          int     `json:"held_keys"`           // keys that wait for the next attempt of a failed event
	OnHoldKeys        int     `json:"on_hold_keys"`        // keys that wait because an operator holds them
	OldestHereSeconds float64 `json:"oldest_here_seconds"` // age of the oldest in the mailboxes; 0: none
}

// Visits counts the calls and reservations of a member: as the owner of keys, and as the node where callers ask.
type Visits struct {
	Waiting  int    `json:"waiting"`  // at this owner: calls and reservations that wait for their turn
	Running  int    `json:"running"`  // at this owner: calls with the application
	Reserved int    `json:"reserved"` // keys of this owner that are reserved
	Crowded  uint64 `json:"crowded"`  // calls and reservations that this owner has refused because a bound was reached
	Refused  uint64 `json:"refused"`  // those that this node has refused its own callers for the same reason

	Bounds list[Bound] `json:"bounds"` // of all of these
}

// Bound is a limit of a member.
type Bound struct {
	Setting string `json:"setting"` // its name, or what is bounded if no setting does
	Used    int    `json:"used"`
	Max     int    `json:"max"`
}

// Part returns how much of the bound is used, from 0 on.
func (b Bound) Part() float64 { return float64(b.Used) / float64(max(1, b.Max)) }

// Nearest returns the bound that most is used of.
func (v *Visits) Nearest() (nearest Bound) {
	for _, b := range v.Bounds {
		if b.Part() > nearest.Part() || nearest.Setting == "" {
			nearest = b
		}
	}
	return nearest
}

// Rates are events a second in the last ten seconds, of a member as an owner.
type Rates struct {
	Accepted float64 `json:"accepted"`    // taken into mailboxes
	Done     float64 `json:"done"`        // handled
	Retried  float64 `json:"retried"`     // failed, and stayed for another attempt
	Copied   float64 `json:"retry_topic"` // failed, and left by way of the retry topic
	Rejected float64 `json:"dead_letter"` // rejected, or failed for the last time: to the dead letter topic
}

// Exclusivity counts incidents that could have broken the promise. Its counters are those of
// the metrics that docs/reference.md explains.
type Exclusivity struct {
	Seconds           float64 `json:"seconds"`            // how long this process has counted
	InvariantFailures uint64  `json:"invariant_failures"` // assertions that did not hold: a bug
	ForcedDrains      uint64  `json:"forced_drains"`      // partitions given up on while a delivery may have run
	LateResults       uint64  `json:"late_results"`       // answers to deliveries that were over: their handler outlived its permission
	LostTrust         uint64  `json:"lost_trust"`         // times that the control log could not be trusted
	LeaseLapses       uint64  `json:"lease_lapses"`       // times that the lease ran out: nothing was dispatched meanwhile

	Audit *Audit `json:"audit,omitempty"` // nil: the live auditor is off, or the version has none
}

// Audit holds the findings of a member's live auditor.
type Audit struct {
	Handlings uint64            `json:"handlings"`           // compared with the others of their key
	Overlaps  uint64            `json:"overlaps"`            // pairs of handlers of one key that ran at the same time
	Undecided map[string]uint64 `json:"undecided,omitempty"` // handlings that could not be compared, by reason
	Unheard   uint64            `json:"unheard,omitempty"`   // former owners that did not report when their last handlers ended
	Newest    list[Overlap]     `json:"newest,omitempty"`    // some overlaps, the newest last
	Order     Order             `json:"order"`
}

// Order tells how often events of a key began in another order than that of their topic partition.
type Order struct {
	FirstHandlings uint64            `json:"first_handlings"`      // events that a worker was handed for the first time
	Inversions     map[string]uint64 `json:"inversions,omitempty"` // of these, such that began after a later event of their key, by cause: at least so many
}

// Overlap is a pair of handlers of one key that ran at the same time.
type Overlap struct {
	KeyHash   string  `json:"key_hash"`
	Partition uint16  `json:"partition"`
	Seconds   float64 `json:"seconds"` // for which both ran, at least
	First     string  `json:"first"`   // member, worker, fence and times, for people
	Second    string  `json:"second"`

	Fences [2]string `json:"fences"` // of both
}

// String tells people of the overlap.
func (o Overlap) String() string {
	return fmt.Sprintf("key %s of partition %d was handled twice at once for %.3f ms: by %s, and by %s", o.KeyHash, o.Partition, 1e3*o.Seconds, o.First, o.Second)
}

// Members is the group as one member sees it, with each member's own word.
type Members struct {
	View
	Members       []Member `json:"members"`       // by name
	Disagreements []string `json:"disagreements"` // differences between the members' reports, for people
}

// Member is one member of a group.
type Member struct {
	Name        string  `json:"name"`
	Incarnation string  `json:"incarnation"`
	Address     string  `json:"address"`           // host:port on which its peers reach it
	Listed      bool    `json:"listed"`            // in the asked member's table
	Unnamed     bool    `json:"unnamed,omitempty"` // gossip alone knows it, and the control log does not: it is not asked
	Over        bool    `json:"-"`                 // the asked process, or that at Address, was this incarnation before it drained or lost its ownership
	Partitions  int     `json:"partitions"`        // that it should act for, by that table
	Reach       string  `json:"reach"`             // self, alive, dead or unknown, as the asked member finds it
	Status      *Status `json:"status,omitempty"`  // its own word, unless it did not answer
	Error       string  `json:"error,omitempty"`   // why it did not
}

// Cut returns the asked member, if it is of an earlier version, and the members of newer versions. The asked member
// passes on only the fields of their reports that its version has: schedules, acts, findings of the auditor and
// listeners are missing.
func (m *Members) Cut() (asked string, newer []string) {
	i := slices.IndexFunc(m.Members, func(one Member) bool { return one.Reach == ReachSelf && one.Status != nil })
	if i < 0 || m.Members[i].Status.Visits != nil {
		return "", nil
	}
	knows := func(c Check) bool {
		return slices.ContainsFunc(m.Members[i].Status.Checks, func(own Check) bool { return own.Name == c.Name })
	}
	for _, one := range m.Members {
		if one.Status != nil && slices.ContainsFunc(one.Status.Checks, func(c Check) bool { return !knows(c) }) {
			newer = append(newer, one.Name)
		}
	}
	return m.Members[i].Name, newer
}

// Partitions is every partition, as one member sees them.
type Partitions struct {
	View
	Partitions partitionList `json:"partitions"` // all, in order; none before the first table
}

// Failing returns the first check that does not hold, nil if all do: then the member is ready.
func (s *Status) Failing() *Check {
	if i := slices.IndexFunc(s.Checks, func(c Check) bool { return c.Error != "" }); i >= 0 {
		return &s.Checks[i]
	}
	return nil
}

// Partition is one slice of the key space.
type Partition struct {
	Number  uint16 `json:"partition"`
	Owner   string `json:"owner"`
	Token   int64  `json:"token,string"` // fencing token of the present tenure
	Gate    string `json:"gate"`         // of this member: closed, waiting, open or draining
	Running int    `json:"running"`      // deliveries at this member

	Blockers list[Blocker] `json:"blockers,omitempty"` // whose tenures this member waits for: with its gate, or with keys that an open one withholds
}

// Key is the owner of a key, and the reason why the key waits.
type Key struct {
	View
	Partition    uint16  `json:"partition"`
	Owner        string  `json:"owner"` // by the asked member's table; "" before the first
	OwnerAddress string  `json:"owner_address"`
	Token        int64   `json:"token,string"`
	At           []KeyAt `json:"at"` // each member's own word, the owner's first
}

// KeyAt is the state of a key at one member.
type KeyAt struct {
	View
	Error string `json:"error,omitempty"` // why this member gave no word; nothing below counts then

	Says list[string] `json:"says,omitempty"` // all of the following in sentences for people, by the asked member

	// In the member's mailboxes.
	Gate      string        `json:"gate"`                 // closed, waiting, open or draining
	Wait      string        `json:"wait"`                 // reason: nothing, handler, retry, gate, worker, slot, hold or park
	Seconds   float64       `json:"seconds"`              // for how long
	Queued    int           `json:"queued"`               // events behind the one that runs, or would run next
	Event     string        `json:"event,omitempty"`      // message id of the running or next event, as ledger:entry:partition:batch
	Age       float64       `json:"age_seconds"`          // how long that event has been here
	Failures  uint32        `json:"failures"`             // how often the application has failed it
	LastError string        `json:"last_error,omitempty"` // the application's text of its newest failure
	RetryIn   float64       `json:"retry_in_seconds"`     // until its next attempt is due; 0: now
	Worker    uint64        `json:"worker,omitempty"`     // the stream that has it, or that the key sticks to
	Call      bool          `json:"call,omitempty"`       // it is a call or a reservation, not an event
	Calls     int           `json:"calls,omitempty"`      // calls and reservations that wait, besides a running one
	Blockers  list[Blocker] `json:"blockers,omitempty"`   // with gate: whose tenures may still run

	Method      string        `json:"method,omitempty"`        // of the call that runs, or is next
	Via         string        `json:"via,omitempty"`           // the member where that call, or the reservation of the key, was asked for
	CallerWaits float64       `json:"caller_waits_seconds"`    // how long the caller of that call still waits
	Reservation *Reservation  `json:"reservation,omitempty"`   // that holds the key
	Waiting     list[Waiting] `json:"waiting_calls,omitempty"` // the oldest of Calls

	Hold *Hold `json:"hold,omitempty"` // by which an operator keeps the key waiting; nil: there is none that this member has read

	Park    *Park `json:"park,omitempty"`    // by which an operator has parked the key, or brings its letters back; nil: there is none that this member has read
	Parking int   `json:"parking,omitempty"` // events of the key that this member is copying to the parking topic

	Skips     skipList `json:"skips,omitempty"`      // in effect for events of the key, as this member has read, the newest first
	MoreSkips int      `json:"more_skips,omitempty"` // further ones that are not listed

	NoApplication bool `json:"no_application,omitempty"` // none is connected to this member, which takes no events from the broker therefore

	// Held for their verdict, as the node that received them.
	Held list[Held] `json:"held,omitempty"`
}

// Reservation holds a member's knowledge of the holder of a key. The key has been held for KeyAt.Seconds.
type Reservation struct {
	Token int64   `json:"token,string"` // with Turn the fence that the holder shows to databases
	Turn  uint64  `json:"turn,string"`
	Left  float64 `json:"left_seconds"` // until it is over if the holder does not renew it
}

// Waiting is a call or a reservation that waits for its turn.
type Waiting struct {
	Method  string  `json:"method,omitempty"` // "": it is a reservation
	Via     string  `json:"via"`              // the member where it was asked for
	Seconds float64 `json:"seconds"`          // since it came
	Left    float64 `json:"left_seconds"`     // until its caller is no longer waiting
	Callers int     `json:"callers"`          // that wait for its answer
}

// Hold is an operator's act that keeps a key waiting.
type Hold struct {
	By     string    `json:"by"` // in their own words
	Via    string    `json:"via"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
}

// Park is an operator's act that sends the events of a key to the parking topic, or brings them back from it.
type Park struct {
	ID string `json:"id"` // of the act
	Hold
	Unparking bool `json:"unparking"` // its letters come back, and run before its other events

	Letters uint64 `json:"letters,omitempty"` // unparking: those that this member has handled
	Waits   string `json:"waits,omitempty"`   // unparking, at the owner: why no letter comes now
}

// Skip is an operator's decision that an event goes to the dead letter topic.
type Skip struct {
	ID     string    `json:"id"`    // of the act
	Event  string    `json:"event"` // message id
	By     string    `json:"by"`    // in their own words
	Via    string    `json:"via"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	End    string    `json:"end,omitempty"` // what became of the event: dead_letter or done; "": the owner has not told
}

// SkipsMax is the most skips that are listed for one key.
const SkipsMax = 10

// Blocker is one reason why a gate waits, or withholds a key.
type Blocker struct {
	Member  string  `json:"member"`  // owner of the tenure; "": any, from before the group began anew
	Start   string  `json:"start"`   // where that tenure began in the control log; "": the member's own application still works
	Seconds float64 `json:"seconds"` // until it is over if nothing more is heard; 0: any moment
}

// OwnApplication reports whether the gate waits for the member's own application, which
// still works under an earlier tenure.
func (b Blocker) OwnApplication() bool { return b.Start == "" }

// Held are events of one key that wait for their verdict at the node that received them.
type Held struct {
	Place   string  `json:"place"`          // queued, sent, full, delayed or refused
	With    string  `json:"with,omitempty"` // the member that they wait for, or that holds them
	Events  int     `json:"events"`
	Seconds float64 `json:"seconds"` // since the oldest came
}
