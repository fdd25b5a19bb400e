package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// contentionCommand draws the result of `make contention`.
const contentionCommand = "contention"

func runContention(args []string) error {
	f := flag.NewFlagSet("bench "+contentionCommand, flag.ContinueOnError)
	in := f.String("in", "", "the output of go test -bench '^BenchmarkContention$' -cpu 1,2,…")
	out := f.String("out", "docs/img", "the folder for the picture")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *in == "" || f.NArg() > 0 {
		return errors.New("contention: want --in FILE, the output of the benchmarks, and --out FOLDER")
	}
	file, err := os.Open(*in)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // read alone
	s, err := readScaling(file)
	if err != nil {
		return fmt.Errorf("contention: %s: %w", *in, err)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	c := s.chart()
	name := filepath.Join(*out, c.file+".svg")
	if err := c.save(name); err != nil {
		return fmt.Errorf("contention: %s: %w", name, err)
	}
	fmt.Printf("%s\n\n%s", name, s.table())
	return nil
}

// scaling holds the throughput of shared structures by the number of cores that use them.
type scaling struct {
	cores  int   // that the machine has
	procs  []int // GOMAXPROCS, rising
	names  []string
	perSec map[string]map[int]float64 // by name and procs: events/s, the best of several runs
}

// readScaling reads the output of benchmarks.
func readScaling(from io.Reader) (*scaling, error) {
	s := &scaling{perSec: make(map[string]map[int]float64)}
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "BenchmarkContention/")
		fields := strings.Fields(text)
		if !ok || len(fields) < 4 {
			continue
		}
		name, suffix, several := strings.Cut(fields[0], "-")
		procs := 1
		if several {
			n, err := strconv.Atoi(suffix)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", fields[0], err)
			}
			procs = n
		}
		values := make(map[string]float64) // by unit
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			values[fields[i+1]] = v
		}
		if values["ns/op"] <= 0 || values["events/op"] <= 0 || values["cores"] <= 0 {
			return nil, fmt.Errorf("%q: want ns/op, events/op and cores", lines.Text())
		}
		s.add(strings.ReplaceAll(name, "_", " "), procs, values["events/op"]/values["ns/op"]*1e9)
		s.cores = int(values["cores"])
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for _, name := range s.names {
		for _, procs := range s.procs {
			if s.perSec[name][procs] == 0 {
				return nil, fmt.Errorf("%s was not measured with GOMAXPROCS=%d", name, procs)
			}
		}
	}
	if len(s.procs) < 2 || s.procs[0] != 1 {
		return nil, fmt.Errorf("measured with GOMAXPROCS %v, want 1 and more", s.procs)
	}
	return s, nil
}

func (s *scaling) add(name string, procs int, perSec float64) {
	if s.perSec[name] == nil {
		s.perSec[name] = make(map[int]float64)
		s.names = append(s.names, name)
	}
	if len(s.procs) == 0 || procs > s.procs[len(s.procs)-1] {
		s.procs = append(s.procs, procs)
	}
	s.perSec[name][procs] = max(s.perSec[name][procs], perSec)
}

// chart shows the throughput as a multiple of that of one core, so that structures of any speed fit on one axis.
func (s *scaling) chart() chart {
	c := chart{
		file: "contention", title: "Throughput of shared structures", kind: curves, unit: "times the throughput of one core",
		names: []string{fmt.Sprintf("GOMAXPROCS; beyond %d, the real cores: preemption, not contention", s.cores)},
		mark:  math.Log2(float64(s.cores)), log2: true,
	}
	for _, procs := range s.procs {
		c.xs = append(c.xs, math.Log2(float64(procs)))
	}
	for _, name := range s.names {
		p := part{name: name}
		for _, procs := range s.procs {
			p.values = append(p.values, s.perSec[name][procs]/s.perSec[name][1])
		}
		c.parts = append(c.parts, p)
	}
	return c
}

// table returns the wall time of an event in Markdown.
func (s *scaling) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| ns per event, %d real cores |", s.cores)
	for _, procs := range s.procs {
		fmt.Fprintf(&b, " %d |", procs)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(s.procs)) + "\n")
	for _, name := range s.names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, procs := range s.procs {
			fmt.Fprintf(&b, " %.3g |", 1e9/s.perSec[name][procs])
		}
		b.WriteString("\n")
	}
	return b.String()
}
