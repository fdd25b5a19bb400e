package prove

import (
	"time"
)

// Member is what one member has told.
type Member struct {
	Name    string   `json:"name"`
	ClockID string   `json:"-"`
	Records []Record `json:"-"`
	Lost    int      `json:"records_lost"`              // records that it had no room for
	Refused int      `json:"records_refused,omitempty"` // records that neither the load nor the faults explain
	Drained bool     `json:"drained"`
	Open    int      `json:"unsettled"` // events that were not settled at the end
	Audit   Audit    `json:"audit"`
	trips   []trip

	ofEvents, others int // of Records
}

// Run is a proof that is over, as the command has seen it.
type Run struct {
	ID      string
	Group   string
	Version string
	Command string    // as it was typed
	Began   time.Time // for people
	From    int64     // when the load began, by the command's clock
	Until   int64     // when it ended
	ClockID string    // of the command
	Seed    uint64    // of the plan of faults
	Rate    int       // events per second, of all members
	Keys    int
	Members []Member
	Faults  []FaultAt
	Trouble []string // what went wrong with the proof itself
	Cut     bool     // not all records were fetched, so that what is missing proves nothing
	Remain  []string // topics that may be left
}

// FaultAt is a fault, and when it had an effect. The seconds count from the beginning of the load, by the command's clock.
type FaultAt struct {
	Fault
	Member string  `json:"member"`
	From   float64 `json:"from"`  // when the command asked for it
	Ready  float64 `json:"ready"` // when all members were ready again; 0: not until the end
	Begun  float64 `json:"-"`

	Waited     float64 `json:"waited_max"` // longest wait of an event for a handler, since its publication or since it lost one, among those that waited meanwhile
	WaitedP50  float64 `json:"waited_p50"`
	Events     int     `json:"events"`     // that waited meanwhile
	Running    int     `json:"running"`    // handlers of that member when the fault began
	Duplicates int     `json:"duplicates"` // handlings that it explains
}

// Verdict is the judgement about a proof: one JSON object, and the source of the page.
type Verdict struct {
	Held      bool     `json:"held"`      // every promise
	Exercised bool     `json:"exercised"` // faults happened, keys moved, events were handled: else nothing was shown
	Checks    []Check  `json:"checks"`
	Notes     []string `json:"notes,omitempty"`

	Run      string    `json:"run"`
	Group    string    `json:"group"`
	Version  string    `json:"version"`
	Command  string    `json:"command"`
	Began    time.Time `json:"began"`
	Seconds  float64   `json:"seconds"` // of load
	Seed     uint64    `json:"seed"`
	Rate     int       `json:"rate"` // events per second that were asked for
	Keys     int       `json:"keys"`
	Machines int       `json:"machines"`        // clocks of members, at least
	Slack    float64   `json:"clock_slack_max"` // greatest uncertainty of an instant, in seconds

	Published   int `json:"published"` // events that the broker has
	Unknown     int `json:"unknown"`   // events of which it is not known whether the broker has them
	Handled     int `json:"handled"`   // events that were done
	Handlings   int `json:"handlings"` // that began
	Failed      int `json:"failed"`    // of those
	Cancelled   int `json:"cancelled"`
	Died        int `json:"died"`           // with their process
	Lost        int `json:"lost"`           // events that the broker has, and no handler has done
	Foreign     int `json:"foreign"`        // handlings of events that no member published
	Duplicates  int `json:"duplicates"`     // handlings that were done, of events that were done
	Unexplained int `json:"unexplained"`    // of those, such without a fault in between
	Overlaps    int `json:"overlaps"`       // pairs of handlers of one key that ran at the same time
	Frozen      int `json:"frozen"`         // pairs of which one stood still in a stopped process
	Undecided   int `json:"undecided"`      // pairs that the clocks of two machines cannot tell
	Uncompared  int `json:"uncompared"`     // handlings that were not compared with all others of their key that ran at the time, as there were too many
	Back        int `json:"fences_back"`    // handlings with a fence that was not greater than that of an earlier one of their key
	Refused     int `json:"writes_refused"` // handlings that were done after one with a greater fence had begun: a sink refuses their writes
	Moves       int `json:"moves"`          // times that the next handler of a key ran at another member

	Audit    Audit     `json:"audit"`
	Members  []Member  `json:"members"`
	Faults   []FaultAt `json:"faults"`
	Series   []Bin     `json:"series"`
	Examples []string  `json:"examples,omitempty"` // of what must not be
	Remain   []string  `json:"topics_left,omitempty"`
}

// Check is one line of the judgement.
type Check struct {
	Name string `json:"name"`
	Held bool   `json:"held"`
	Says string `json:"says"`
	Kind string `json:"kind"` // promise: must hold; exercise: must have happened, else the proof shows nothing
}

// Bin is one point of the plots.
type Bin struct {
	At         float64 `json:"at"`        // seconds since the beginning of the load
	Published  float64 `json:"published"` // events per second
	Done       float64 `json:"done"`
	WaitP50    float64 `json:"wait_p50"` // seconds from publication to the first handler, by the time at which that began
	WaitP99    float64 `json:"wait_p99"`
	WaitMax    float64 `json:"wait_max"`
	LatencyP50 float64 `json:"latency_p50"` // seconds from publication to the end of the handler that did it
	LatencyP99 float64 `json:"latency_p99"`
}

// After is how long the group took to recover from a fault, in seconds.
func (f FaultAt) After() float64 { return max(0, f.Ready-f.From) }
