package telemetry_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/telemetry"
)

// TestOutputKeepsNobodyWaiting: while nobody reads, lines are kept up to a bound and then counted, and the next line after them says so.
func TestOutputKeepsNobodyWaiting(t *testing.T) {
	read, write := io.Pipe()
	o := telemetry.NewOutput(write)
	registry := prometheus.NewRegistry()
	o.Register(registry)
	log, _, err := telemetry.NewLogger(o, telemetry.DefaultLogConfig())
	if err != nil {
		t.Fatal(err)
	}
	const lines = 3000 // 3 MiB
	began := time.Now()
	for range lines {
		log.Info("a line", "long", strings.Repeat("x", 1<<10))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d lines took %v", lines, took)
	}
	var text bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&text, read)
	}()
	o.Close(10 * time.Second)
	log.Info("the last")
	_ = write.Close()
	<-done
	kept := strings.Count(text.String(), "a line")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if n := int(families[0].GetMetric()[0].GetCounter().GetValue()); n == 0 || n+kept != lines {
		t.Errorf("%d lines of %d were kept, and %d counted as lost", kept, lines, n)
	}
	for _, want := range []string{`"msg":"log lines were dropped`, `"msg":"the last"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestOutputCountsLinesThatCannotBeWritten on a full disk.
func TestOutputCountsLinesThatCannotBeWritten(t *testing.T) {
	o := telemetry.NewOutput(fullDisk{})
	registry := prometheus.NewRegistry()
	o.Register(registry)
	_, _ = o.Write([]byte("a line\n"))
	o.Close(10 * time.Second)
	families, err := registry.Gather()
	if err != nil || families[0].GetMetric()[0].GetCounter().GetValue() != 1 {
		t.Errorf("%v, %v; want one lost line", families, err)
	}
}
