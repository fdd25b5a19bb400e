package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/testing/written"
)

// Every command in the documents is run by a test. The blocks of a page that are marked
// as sh or console are one script, which runs in an empty folder with `router` on its
// PATH, in the order of the page. A comment before a block can change that:
//
//	<!-- tested by make TARGET -->                    the target runs it, and must exist
//	<!-- tested by go test ./PACKAGE -run TestName -->  the test runs it, and must exist
//	<!-- needs pulsar -->                             run only with PULSAR_URL
//
// In a console block, lines that begin with $ are the commands, and all other lines are
// their output: the words of each must appear, but numbers may differ.

// docBlock is one fenced block of a page.
type docBlock struct {
	page     string
	line     int
	language string
	marker   string // the comment before it, without <!-- and -->
	text     string
}

func (b docBlock) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

var (
	fence      = regexp.MustCompile("^```(\\w*)\\s*$")
	anyFence   = regexp.MustCompile("^[\\s>]*(```|~~~)")
	comment    = regexp.MustCompile(`^<!--\s*(.*?)\s*-->\s*$`)
	byMake     = regexp.MustCompile(`^tested by make ([a-z-]+)$`)
	byTest     = regexp.MustCompile(`^tested by go test \./(\S+) -run (Test\w+)$`)
	makeTarget = regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`)
	looksTyped = regexp.MustCompile(`(?m)^\s*(\$ )?(go (run|test|build|install)|make|router|\./router|curl|kubectl|helm|docker|ko|tools/\S+\.sh|python3?|pip|git|openssl) `)
)

// blocksOf returns the fenced blocks of a page.
func blocksOf(t *testing.T, path string) []docBlock {
	t.Helper()
	var blocks []docBlock
	marker, open := "", false
	for i, line := range strings.Split(read(t, path), "\n") {
		form := fence.FindStringSubmatch(line)
		if form == nil && anyFence.MatchString(line) {
			t.Errorf("%s:%d: no test sees the block that this line begins or ends: begin the line with three backticks, and write at most one word after them", path, i+1)
		}
		switch {
		case open && form != nil && form[1] == "":
			open = false
		case open:
			last := &blocks[len(blocks)-1]
			last.text += line + "\n"
		case form != nil:
			blocks = append(blocks, docBlock{page: filepath.Base(path), line: i + 1, language: form[1], marker: marker})
			open, marker = true, ""
		case comment.MatchString(line):
			marker = comment.FindStringSubmatch(line)[1]
		case strings.TrimSpace(line) != "":
			marker = ""
			if strings.HasPrefix(line, "    ") && looksTyped.MatchString(line) {
				t.Errorf("%s:%d: a command in an indented block, which no test sees: put it between fences, as sh", path, i+1)
			}
		}
	}
	if open {
		t.Errorf("%v: the block has no end", blocks[len(blocks)-1])
	}
	return blocks
}

func (b docBlock) isCommands() bool {
	return slices.Contains([]string{"sh", "bash", "console"}, b.language)
}

// pages are the documents that a user reads.
func pages(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(list) < 5 {
		t.Fatalf("the documents are not there: %v, %v", list, err)
	}
	return append(list, "../../README.md", "../../CONTRIBUTING.md")
}

// languages are those of the blocks of pages, with what tests them.
var languages = map[string]string{
	"sh": "TestDocs", "bash": "TestDocs", "console": "TestDocs",
	"go":     "client.TestPagesCompile",
	"python": "sdk/python/tests/readme.sh",
	"js":     "sdk/typescript/scripts/readme.mjs", "ts": "sdk/typescript/scripts/readme.mjs",
	"java": "sdk/java/test.sh",
	"sql":  "fencedsink.TestDocsShowTheRecipes", "lua": "fencedsink.TestDocsShowTheRecipes",
	"yaml": "TestSecurityRecipes", // those that are a router.yaml
	"text": "nothing: what cannot run, such as the commands for a release that is yet to come", "mermaid": "nothing", "": "nothing",
}

// TestCommandsInDocsAreTested: no block has a language that no test knows, and the make target or test named beside a block exists.
func TestCommandsInDocsAreTested(t *testing.T) {
	makefile := read(t, "../../Makefile")
	commands := 0
	lab, err := filepath.Glob("../../docs/lab/*.md") // records of what was run: TestDocs does not repeat it
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages(t), lab...) {
		for _, b := range blocksOf(t, page) {
			if languages[b.language] == "" {
				t.Errorf("%v: no test sees blocks of the language %q", b, b.language)
			}
			if b.language == "" && looksTyped.MatchString(b.text) {
				t.Errorf("%v: commands in a block without a language: mark it as sh", b)
			}
			if b.isCommands() {
				commands++
				for _, target := range makeTarget.FindAllStringSubmatch(b.text, -1) {
					if !strings.Contains(makefile, "\n"+target[1]+":") {
						t.Errorf("%v: there is no make %s", b, target[1])
					}
				}
			}
			switch target, test := byMake.FindStringSubmatch(b.marker), byTest.FindStringSubmatch(b.marker); {
			case target != nil:
				if !strings.Contains(makefile, "\n"+target[1]+":") {
					t.Errorf("%v: there is no make %s", b, target[1])
				}
			case test != nil:
				if !hasTest(t, test[1], test[2]) {
					t.Errorf("%v: there is no %s in %s", b, test[2], test[1])
				}
			case b.marker != "" && b.marker != needsPulsar:
				t.Errorf("%v: the comment %q before it is unknown to this test", b, b.marker)
			}
		}
	}
	if commands < 10 {
		t.Errorf("only %d blocks of commands: this test does not see all of them", commands)
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(path string) bool {
		return strings.Contains(read(t, path), "\nfunc "+name+"(t *testing.T)")
	})
}

// TestOneCommandRunsAllTests: the README names the command that passes all tests on a
// fresh machine, and CI runs that very command.
func TestOneCommandRunsAllTests(t *testing.T) {
	named := slices.ContainsFunc(blocksOf(t, "../../README.md"), func(b docBlock) bool {
		return b.marker == "tested by make test" && strings.HasPrefix(b.text, "make test ")
	})
	if !named {
		t.Error("no block of README.md is the command make test")
	}
	if !strings.Contains(read(t, "../../.ci/run"), "\ntests() { after faults && stage nice -n -5 make test; }\n") {
		t.Error(".ci/run does not run make test")
	}
}

// TestDocsNameTestsThatExist: where a page names package.TestName beside a claim, the test
// exists.
func TestDocsNameTestsThatExist(t *testing.T) {
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text := read(t, path)
		line := regexp.MustCompile(`(?m)^package (\w+)`).FindStringSubmatch(text)
		for _, name := range declared.FindAllStringSubmatch(text, -1) {
			there[strings.TrimSuffix(line[1], "_test")+"."+name[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range pages(t) {
		for _, name := range regexp.MustCompile("`(\\w+\\.Test\\w+)`").FindAllStringSubmatch(read(t, page), -1) {
			named++
			if !there[name[1]] {
				t.Errorf("%s: there is no test %s", page, name[1])
			}
		}
	}
	if named < 15 {
		t.Errorf("only %d tests are named: this test does not see all of them", named)
	}
}

// TestLifecycleHasATestForEveryArrow: the numbers of the picture are those of the table.
func TestLifecycleHasATestForEveryArrow(t *testing.T) {
	text := read(t, "../../docs/lifecycle.md")
	arrows := 0
	for range regexp.MustCompile(`(?m)^    \w-{1,2}>>\w: \d+ `).FindAllString(text, -1) {
		arrows++
	}
	tested := map[int]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+)(?:–(\d+))? \|.*\| `+"`").FindAllStringSubmatch(text, -1) {
		first, _ := strconv.Atoi(row[1]) // digits, by the pattern
		last, err := strconv.Atoi(row[2])
		if err != nil {
			last = first
		}
		if first == 1 && last == arrows {
			continue // the whole picture: each arrow has a test of its own besides
		}
		for n := first; n <= last; n++ {
			tested[n] = true
		}
	}
	if arrows != 20 {
		t.Errorf("the picture has %d arrows, and this test knows of 20", arrows)
	}
	for n := 1; n <= arrows; n++ {
		if !tested[n] && n != 18 { // 18 is the application's own end
			t.Errorf("arrow %d has no test", n)
		}
	}
}

// needsPulsar marks blocks that run only where there is one.
const needsPulsar = "needs pulsar"

// scriptOf joins the commands of a page, and returns the expected output.
func scriptOf(blocks []docBlock, pulsar bool) (script string, wanted []string) {
	var b strings.Builder
	for _, one := range blocks {
		if !one.isCommands() || strings.HasPrefix(one.marker, "tested by") || one.marker == needsPulsar && !pulsar {
			continue
		}
		fmt.Fprintf(&b, "echo '### %v' >&2\n", one)
		if one.language != "console" {
			b.WriteString(one.text)
			continue
		}
		for line := range strings.Lines(one.text) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				b.WriteString(command)
			} else if line = strings.TrimSpace(line); line != "" && line != "..." {
				wanted = append(wanted, line)
			}
		}
	}
	return b.String(), wanted
}

var word = regexp.MustCompile(`[A-Za-z][A-Za-z_.-]{2,}`)

// TestDocs runs the commands of every page.
func TestDocs(t *testing.T) {
	if testing.Short() {
		t.Skip("runs what the documents tell a user to run")
	}
	t.Parallel()
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, asRouter)); err != nil {
		t.Skipf("no links here: %v", err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages(t) {
		script, wanted := scriptOf(blocksOf(t, page), os.Getenv("PULSAR_URL") != "")
		if script == "" {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			shown := runPage(t, script, bin, root)
			for _, line := range wanted {
				for _, w := range word.FindAllString(line, -1) {
					if !strings.Contains(shown, w) {
						t.Errorf("the page shows %q, and nothing prints %q", line, w)
					}
				}
			}
			if t.Failed() {
				t.Log(shown)
			}
		})
	}
}

// pageMax bounds the time of the commands of a page.
const pageMax = 4 * time.Minute

// runPage runs a script in an empty folder, returns its output, and ends its background
// processes.
func runPage(t *testing.T, script, bin, root string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pageMax)
	defer cancel()
	const prelude = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"
	cmd := exec.CommandContext(ctx, "bash", "-c", prelude+script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "RINGFENCE="+root, "NO_COLOR=1")
	cmd.WaitDelay = 5 * time.Second
	endTogether(cmd)
	shown := &written.Text{}
	cmd.Stdout, cmd.Stderr = shown, shown
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("after the last ### line: %v", err)
	}
	return shown.String()
}
