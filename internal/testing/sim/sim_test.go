package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("sim.seed", 0, "replay this seed only, with a trace")
	seedsFlag = flag.Int("sim.seeds", 24, "how many seeds")
	hoursFlag = flag.Float64("sim.hours", 0.05, "simulated hours for each")
	everyFlag = flag.Uint64("sim.every", 1, "the distance between two seeds: what a run has depends on its seed modulo 8")
	firstFlag = flag.Uint64("sim.first", 0, "the first seed; 0: a fresh one")
)

// fewerCollections lets garbage lie for longer, up to a number of bytes: worlds are small and make much of it. A sync.Pool keeps the mailboxes that it is a part of
// for two collections, so that without a limit each one would find the worlds of the one before alive, and let five times as many come until the next.
func fewerCollections(limit int64) {
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(limit)
}

// TestExclusive runs clusters through every fault of the protocol's list, each from
// a seed of its own.
func TestExclusive(t *testing.T) {
	length := time.Duration(*hoursFlag * float64(time.Hour))
	if *seedFlag != 0 {
		r := Run(*seedFlag, length, true)
		t.Log("\n" + strings.Join(r.Trace, "\n"))
		if r.Failure != "" {
			t.Fatal(r.Failure)
		}
		return
	}
	fewerCollections(2 << 30)
	first := *firstFlag
	if first == 0 {
		first = rand.Uint64()>>33 + 1
	}
	t.Logf("%d seeds from %d on", *seedsFlag, first)
	const shards = 2
	var mu sync.Mutex
	total := map[string]int{}
	hours, moves, faults := 0.0, 0, 0
	t.Run("seeds", func(t *testing.T) {
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < *seedsFlag; i += shards {
					seed := first + uint64(i)**everyFlag
					r := Run(seed, length, false)
					if r.Failure != "" {
						t.Errorf("%s\nreplay with: go test ./internal/testing/sim -run Exclusive -sim.seed=%d -sim.hours=%v -v", r.Failure, seed, *hoursFlag)
						continue
					}
					if r.Moves == 0 || r.Faults == 0 {
						t.Errorf("seed %d: %d moves and %d faults prove nothing", seed, r.Moves, r.Faults)
					}
					mu.Lock()
					for k, v := range r.Stats {
						total[k] += v
					}
					hours += r.Simulated.Hours()
					moves += r.Moves
					faults += r.Faults
					mu.Unlock()
				}
			})
		}
	})
	if *seedsFlag >= 20 && *everyFlag == 1 && !t.Failed() { // a run that moved nothing, or hit nothing, proves nothing
		for _, k := range []string{
			"lost", "genesis", "left", "abandoned", "opened_withholding", "withheld_released", "forced", "extended", "cancelled", "late", "duplicate", "flushed", "hole", "check",
			"record_as_bytes", "clock_turned", "kill_app_alone", "pause_app_alone", "break_app_alone",
			"settings_refused", "foreign_genesis", "note_other_settings", "lied", "note_prefix_differs",
			"redelivered", "done_again", "copied", "handler_died", "state_kept", "stream_broken", "app_stream_broken", "relayed", "taken_over_unanswered",
			"call_replied", "call_failed", "call_unknown", "call_done_before", "call_not_run_timeout", "call_not_run_no_handler", "call_not_run_cycle", "call_not_run_unreachable",
			"call_repeated", "call_reply_shared", "call_started_again", "call_at_two_owners", "call_cancelled", "call_given_up", "call_timed_out", "call_home_died", "call_cut",
			"reservation_held", "reservation_waited", "reservation_resumed", "reservation_lost", "reservation_released", "reservation_freed", "reservation_expired",
			"reservation_moved", "reservation_refused_timeout", "reservation_refused_stream", "reservation_granted_to_be_renewed",
			"reservation_covered", "reservation_goes_on", "reservation_granted_by_the_next_owner",
			"act_hold_held", "act_release_released", "act_skip_skipping", "act_skipped_ended", "parked", "unparked", "letter_done", "letter_ack_failed",
			"timed_out", "hung", "worker_drained_in_order", "killed_by_an_event", "acked_in_part", "ends_asked",
			"note_takeover", "note_adopted", "note_removed", "note_lease_lapsed", "note_epoch_lost", "note_confirm",
		} {
			if total[k] == 0 {
				t.Errorf("no %s in %d seeds: this run proves too little", k, *seedsFlag)
			}
		}
	}
	for k, least := range map[string]float64{ // of rare things, and the cluster-hours without one that prove too little
		"call_not_run_overloaded": 10, "call_handler_died": 20,
		"reservation_holder_died": 10, "reservation_refused_overloaded": 10, "reservation_over_lost": 20, "reservation_late_release": 20, "reservation_released_at_the_next_owner": 20, "reservation_release_unconfirmed": 20, "reservation_released_without_its_holder": 20, "reservation_refused_unknown": 10, "reservation_given_again": 100,
		"letter_failed": 20, "letter_rejected": 20, "letter_not_owner": 20, "letter_parked": 20, "hung_for_long": 20, "acked_after_loss": 20,
		"generation_refused": 10, "generation_raised": 10, "forked": 10, "fault_cold_start": 10, "stale_write_refused": 10,
		"stale_write_refused_same_token": 400, // 0.06 an hour
	} {
		if hours >= least && *everyFlag == 1 && total[k] == 0 && !t.Failed() {
			t.Errorf("no %s in %v cluster-hours: this run proves too little", k, hours)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%-28s %d", k, total[k])
	}
	line, err := json.Marshal(map[string]any{"seeds": *seedsFlag, "cluster_hours": hours, "moves": moves, "faults": faults})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(string(line))
}
