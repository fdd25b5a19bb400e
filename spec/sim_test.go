package spec

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ringfence/router/internal/testing/sim"
)

var (
	seed     = flag.Uint64("spec.seed", 1, "of the simulated run whose journal is compared with the model")
	journals = flag.String("spec.journals", "", "folder with the journals (*.ndjson) of routers on one machine, to be compared with the model")
)

// TestJournals compares the journals of real routers with the model.
func TestJournals(t *testing.T) {
	if *journals == "" {
		t.Skip("no -spec.journals")
	}
	paths, err := filepath.Glob(filepath.Join(*journals, "*.ndjson"))
	if err != nil || len(paths) < 2 {
		t.Fatalf("%d journals, %v", len(paths), err)
	}
	var files []io.Reader
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	tr, err := readJournals(files...)
	if err != nil {
		t.Fatal(err)
	}
	counts, rejected := tr.validate(t, 6)
	if rejected != "" {
		t.Fatalf("the model does not allow this: %s", rejected)
	}
	if counts["open"] < 10 {
		t.Errorf("%v: these journals prove too little", counts)
	}
}

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
