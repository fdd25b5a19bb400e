package spec

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/testing/sim"
)

var (
	seed     = flag.Uint64("spec.seed", 1, "of the simulated run whose journal is compared with the model")
	parts    = flag.Int("spec.partitions", 6, "how many partitions are compared with the model, those with the most changes")
	most     = flag.Int("spec.events", 5000, "how many events of each, from the beginning: what a router may do follows from all that came before")
	kept     = flag.String("spec.keep", "", "file to which the journal of the simulated run is written, compressed")
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
	counts, rejected := tr.validate(t)
	if rejected != "" {
		t.Fatalf("the model does not allow this: %s", rejected)
	}
	if counts["open"] < *parts {
		t.Errorf("%v: these journals prove too little", counts)
	}
}

// TestSimulatedRun compares the journal of a simulated run with the model.
func TestSimulatedRun(t *testing.T) {
	var journal bytes.Buffer
	r := sim.Journalled(*seed, 40*time.Second, &journal)
	if *kept != "" {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, err := z.Write(journal.Bytes())
		if err = errors.Join(err, z.Close(), os.WriteFile(*kept, packed.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := readJournals(&journal)
	if err != nil {
		t.Fatal(err)
	}
	counts, rejected := tr.validate(t)
	if rejected != "" {
		t.Fatalf("seed %d: the model does not allow this: %s", *seed, rejected)
	}
	if r.Failure != "" {
		t.Fatalf("seed %d: the model allows it all, and yet %s", *seed, r.Failure)
	}
	if counts["open"] < 10 {
		t.Errorf("%v: this run proves too little", counts)
	}
}

// TestPlantedBugsAreRejected compares recorded journals of simulated runs with planted bugs with the model, which must
// not allow the step that each bug allows.
func TestPlantedBugsAreRejected(t *testing.T) {
	for bug, step := range map[string]string{
		"no_wait":        `"open", `,  // a gate opens without a wait
		"drain_race":     `"open", `,  // and after a wait that no own Beat confirms
		"cut_not_atomic": `"beat", `,  // a Beat hides a delivery that runs
		"drain_genesis":  `"lease", `, // a Pong may extend deliveries across a Genesis
	} {
		t.Run(bug, func(t *testing.T) {
			f, err := os.Open(filepath.Join("testdata", bug+".ndjson.gz"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			journal, err := gzip.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			tr, err := readJournals(journal)
			if err != nil {
				t.Fatal(err)
			}
			switch _, rejected := tr.validate(t); {
			case rejected == "":
				t.Error("the model allows it all")
			case !strings.Contains(rejected, "<<"+step):
				t.Errorf("want a step %s to be rejected: %s", step, rejected)
			default:
				t.Log(rejected)
			}
		})
	}
}
