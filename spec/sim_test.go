package spec_test

import (
	"bytes"
	"flag"
	"testing"
	"time"

	"github.com/ringfence/router/internal/testing/sim"
)

var seed = flag.Uint64("spec.seed", 1, "of the simulated run whose journal is compared with the model")

// TestSimulatedRun compares the journal of a simulated run with the model.
func TestSimulatedRun(t *testing.T) {
	var journal bytes.Buffer
	if r := sim.Journalled(*seed, time.Minute, &journal); r.Failure != "" {
		t.Fatal(r.Failure)
	}
	t.Logf("%d bytes", journal.Len())
	tr, err := readJournals(&journal)
	if err != nil {
		t.Fatal(err)
	}
	counts, rejected := tr.validate(t, 6)
	if rejected != "" {
		t.Fatalf("seed %d: the model does not allow this: %s", *seed, rejected)
	}
	if counts["open"] < 10 {
		t.Errorf("%v: this run proves too little", counts)
	}
}
