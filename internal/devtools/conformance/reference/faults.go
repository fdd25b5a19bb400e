package reference

// Faults are the planted faults, and the rule that each breaks.
var Faults = map[string]string{
	"hello-window":          "hello",              // asks for a window of 0
	"undeclared":            "declared",           // has no capability
	"accepts-any-version":   "version",            // works on with a version that it did not offer
	"token-untrimmed":       "token",              // sends a token of its own making
	"crashes-on-unknown":    "unknown",            // ends at an unknown field
	"ping-gaps":             "pings",              // counts Pings in twos
	"no-receipts":           "receipts",           // sends no receipt but with results
	"receipt-beyond":        "receipts-exact",     // names a frame that was not sent
	"starts-at-once":        "first-pong",         // needs no Pong
	"from-receipt":          "deadline-from-ping", // a deadline counts from the receipt of the Pong
	"one-lease":             "deadline-moves",     // only the first Pong counts for a handler
	"no-watch":              "deadline-cancels",   // cancels nothing at a deadline
	"cancels-late":          "deadline-cancels",   // cancels a handler three seconds after its deadline
	"late-pong-counts":      "late-pong",          // looks at no deadline when a Pong comes, nor before
	"waits-for-the-lost":    "ignored-cancel",     // queues deliveries by key
	"starts-revoked":        "revoke-waiting",     // revokes only what runs
	"all-but-waiting":       "revoke-waiting",     // takes Revoke.all for what runs
	"draining-for-good":     "revoke-running",     // moves a deadline by each Pong after one that listed the delivery
	"waiting-partitions":    "revoke-running",     // takes Revoke.partitions for what waits
	"revokes-the-future":    "revoke-earlier",     // refuses later deliveries of revoked partitions
	"revoked-moves":         "revoke-running",     // moves the deadlines of revoked deliveries
	"ignores-draining":      "draining",           // moves none of them
	"ignores-single":        "revoke-single",      // ignores Revoke.delivery_ids
	"ignores-suspend":       "suspend",            // starts while it is suspended
	"crash-is-done":         "answers",            // answers DONE for a crash
	"cancelled-whatever":    "answers",            // answers CANCELLED for a cancelled handler that has succeeded
	"long-reasons":          "answers",            // cuts no reason
	"no-after":              "retry-after",        // forgets the delay
	"no-progress":           "progress",           // sends no Progress
	"fence-of-frame":        "fence",              // takes the first token of a frame for all
	"fence-as-float":        "fence",              // keeps turns as floating-point numbers
	"interval-of-answer":    "intervals",          // a handler starts when it has ended
	"intervals-unasked":     "intervals",          // whatever the Welcome says
	"answers-twice":         "answered-once",      // answers each delivery twice
	"results-from-zero":     "results-numbers",    // counts Results from 0
	"answers-early":         "one-handler",        // answers before the handler has ended
	"half-a-batch":          "batch",              // drops what is beyond 1,000 of a frame
	"small-frames":          "large",              // receives frames of gRPC's default size only
	"forgets-waiting":       "in-flight",          // holds no more than 2,200 deliveries
	"dials-at-once":         "go-away",            // ignores retry_after_ms
	"waits-forever":         "silence",            // never gives a silent router up
	"answers-on-new-stream": "reconnect",          // sends answers of the old stream on the new one
	"starts-of-old-stream":  "reconnect",          // starts waiting deliveries of the old stream
	"revives-old":           "old-deadline",       // moves deadlines of the old stream
	"clock-stops":           "frozen",             // a clock that stands still while the process is stopped
	"no-reply":              "call-reply",         // answers DONE without the reply
	"calls-are-events":      "call-reply",         // gives calls to the handler of events
	"any-method":            "call-method",        // has one handler for all methods
	"unknown-method-fails":  "call-method",        // answers RETRY for a method without a handler
	"no-code":               "call-failure",       // drops the code of a failure
	"crash-has-code":        "call-failure",       // makes a code for a crash
	"ignores-callers":       "call-revoked",       // ignores Revoke.delivery_ids for calls
	"replies-of-any-size":   "call-large",         // sends a reply of more than 1 MiB
	"half-a-reply":          "call-large",         // refuses a reply of 1 MiB
	"one-frame":             "call-large",         // puts all results that wait for a receipt into one frame
	"drops-timers":          "timers",             // sends none
	"answers-before-send":   "timers",             // answers DONE before the Sends have returned
	"sends-without-token":   "timers",             // sends no header with a Send
	"ids-of-runs":           "timers-ids",         // gives the timers of every run new ids
	"timers-of-failures":    "timers-failed",      // sends the timers of a handler that has failed
	"ignores-failed-sends":  "timers-unsent",      // answers DONE whatever becomes of a Send
	"sends-once":            "timers-unsent",      // answers RETRY for a Send that was refused unread
	"waits-for-sends":       "timers-unsent",      // at the deadline, too
	"no-timer":              "timer",              // has no Delivery.timer
	"period-in-seconds":     "schedules",          // declares a period of 3,600 ms
	"declares-twice":        "schedules",          // declares its schedule twice
	"firings-are-events":    "firing",             // gives firings to the handler of events
	"firing-when-due":       "firing",             // gives the handler the time with jitter
	"no-missed":             "firing",             // gives it no number of missed times
	"first-attempts":        "firing",             // gives it the attempt 1
	"firings-never-fail":    "firing",             // answers DONE whatever the handler did
	"firings-never-reject":  "firing",             // answers RETRY for a rejection
	"drops-undeclared":      "firing",             // answers DONE for a firing of a schedule that it has not declared
	"timers-of-the-name":    "firing-timers",      // gives the timers the name of the schedule as their key
	"ids-of-firings":        "firing-timers",      // gives the timers ids that follow from the firing
	"keeps-nothing":         "state",              // loads for each turn
	"any-generation":        "state",              // compares no generations
	"any-token":             "state",              // compares no tokens
	"keeps-zero":            "state",              // takes the generation 0 for one
	"one-for-all":           "state",              // has one state for all keys
	"keeps-failed":          "state-dropped",      // keeps the state of a handler that has failed
	"keeps-cancelled":       "state-dropped",      // keeps that of one that was cancelled
	"keeps-unasked":         "state-dropped",      // keeps it in a turn that does not ask
	"calls-are-no-turns":    "state-dropped",      // keeps it in a turn that is a call
	"keeps-revoked":         "state-dropped",      // drops nothing for Revoke.partitions
	"keeps-at-all":          "state-dropped",      // drops nothing for Revoke.all
	"keeps-running":         "state-dropped",      // drops no state that a handler has when a Revoke comes
	"any-stream":            "state-dropped",      // compares no streams
	"keeps-lost":            "state-lost",         // keeps the state of a handler whose deadline had passed
	"gets-lost":             "state-lost",         // gives the next turn the state that such a handler has
	"passed-over":           "state-lost",         // gives it the state that such a handler could have had
	"lost-leaves":           "state-lost",         // such a handler ends during the next turn, whose state remains
	"lost-once":             "state-lost",         // such a handler keeps states from the next turn, and from no later one
	"drops-at-drain":        "drain",              // answers nothing for waiting deliveries at SIGTERM
	"exits-at-once":         "drain",              // ends at SIGTERM
	"pings-after-close":     "drain",              // sends Pings after its half-close, which resets the stream
	"closes-early":          "drain-receipt",      // half-closes before the last receipt
}
