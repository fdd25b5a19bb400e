package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPatchesApply: each patch applies to the files as they are, and the results are valid Go.
func TestPatchesApply(t *testing.T) {
	t.Chdir("../../../..")
	files, err := patchedFiles()
	if err != nil {
		t.Fatalf("fix the patch, as CONTRIBUTING.md says: %v", err)
	}
	for name, text := range files {
		if _, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution); err != nil {
			t.Error(err)
		}
	}
}

// switchless are the bugs without a switch, with the reason.
var switchless = map[string]string{
	"AppIgnoresDeadline": "a scene of the simulator: its handlers go on after their deadline",
	"DlFalls":            "not expressible: the instants of one machine only grow",
}

// TestEveryBugHasASwitch: a patch or the simulator asks for each bug of the list.
func TestEveryBugHasASwitch(t *testing.T) {
	t.Chdir("../../../..")
	files, err := patchedFiles()
	if err != nil {
		t.Fatal(err)
	}
	sim, err := filepath.Glob("internal/testing/sim/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sim {
		if !strings.HasSuffix(name, "_test.go") {
			files[name] = read(t, name)
		}
	}
	all := strings.Join(slices.Collect(maps.Values(files)), "\n")
	list, err := parser.ParseFile(token.NewFileSet(), "internal/testing/planted/planted.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	bugs := 0
	for _, decl := range list.Decls {
		constants, ok := decl.(*ast.GenDecl)
		if !ok || constants.Tok != token.VAR || !constants.Lparen.IsValid() {
			continue
		}
		for _, spec := range constants.Specs {
			bugs++
			bug := spec.(*ast.ValueSpec).Names[0].Name
			if has := strings.Contains(all, "planted.On(planted."+bug+")"); has == (switchless[bug] != "") {
				t.Errorf("%s: has a switch: %t, want %t", bug, has, !has)
			}
		}
	}
	if bugs < 70 {
		t.Errorf("the list has %d bugs; this run proves nothing", bugs)
	}
}

const (
	file  = "package a\n\nfunc f() int {\n\treturn 1\n}\n\nfunc g() int {\n\treturn 1\n}\n"
	patch = "--- a/a/a.go\n+++ b/a/a.go\n@@ func f\n func f() int {\n+\tif planted.On(planted.NoWait) {\n+\t\treturn 2\n+\t}\n \treturn 1\n@@ func g\n func g() int {\n-\treturn 1\n+\treturn 3\n }\n"
)

func TestApply(t *testing.T) {
	const patched = "package a\n\nfunc f() int {\n\tif planted.On(planted.NoWait) {\n\t\treturn 2\n\t}\n\treturn 1\n}\n\nfunc g() int {\n\treturn 3\n}\n"
	for name, test := range map[string]struct {
		file, patch string
		text        string // the file with the hunks that apply
		wants       []string
	}{
		"as it was":            {file, patch, patched, nil},
		"other lines between":  {strings.Replace(file, "\n\nfunc f", "\n\nvar x int\n\nfunc f", 1), patch, strings.Replace(patched, "\n\nfunc f", "\n\nvar x int\n\nfunc f", 1), nil},
		"in another order":     {"package a\n\nfunc g() int {\n\treturn 1\n}\n\nfunc f() int {\n\treturn 1\n}\n", patch, "package a\n\nfunc g() int {\n\treturn 3\n}\n\nfunc f() int {\n\tif planted.On(planted.NoWait) {\n\t\treturn 2\n\t}\n\treturn 1\n}\n", nil},
		"a line is another":    {strings.Replace(file, "func g() int", "func g() int64", 1), patch, strings.NewReplacer("func g() int", "func g() int64", "return 3", "return 1").Replace(patched), []string{"x.patch: hunk 2, a/a.go: func g: 0 places"}},
		"a blank more":         {strings.Replace(file, "f() int {", "f() int  {", 1), patch, strings.NewReplacer("f() int {\n\tif planted.On(planted.NoWait) {\n\t\treturn 2\n\t}", "f() int  {").Replace(patched), []string{"x.patch: hunk 1, a/a.go: func f: 0 places"}},
		"two places":           {file, "--- a/a/a.go\n+++ b/a/a.go\n@@\n-\treturn 1\n+\treturn 2\n", file, []string{"x.patch: hunk 1, a/a.go:: 2 places"}},
		"nothing to find":      {file, "--- a/a/a.go\n+++ b/a/a.go\n@@\n+\treturn 2\n", file, []string{"hunk 1, a/a.go:: 11 places"}},
		"hunks overlap":        {file, "--- a/a/a.go\n+++ b/a/a.go\n@@ one\n-func f() int {\n+func h() int {\n \treturn 1\n@@ two\n func f() int {\n-\treturn 1\n+\treturn 2\n", strings.Replace(file, "func f", "func h", 1), []string{"hunk 2, a/a.go: two: overlaps"}},
		"a blank line's blank": {file, "--- a/a/a.go\n+++ b/a/a.go\n@@\n package a\n\n+var x int\n func f() int {\n", strings.Replace(file, "\n\nf", "\n\nvar x int\nf", 1), nil},
		"none of them":         {"package b\n", patch, "package b\n", []string{"x.patch: hunk 1", "x.patch: hunk 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := apply(test.file, parse("x.patch", test.patch)["a/a.go"])
			if text != test.text {
				t.Errorf("got:\n%s\nwant:\n%s", text, test.text)
			}
			if (err != nil) != (test.wants != nil) {
				t.Fatalf("error %v, want one: %t", err, test.wants != nil)
			}
			for _, want := range test.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want %q in it", err, want)
				}
			}
		})
	}
}

// TestEditAndRefresh: the patches that refresh writes make the files that were edited, also where a patch had not applied,
// and a file that no patch changed before.
func TestEditAndRefresh(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "a/a.go", file)
	put(t, "c/c.go", "package c\n\nvar x = 1\n")
	put(t, filepath.Join(patchesDir, "a.patch"), patch)
	if _, err := patchedFiles(); err != nil {
		t.Fatal(err)
	}
	put(t, "a/a.go", strings.Replace(file, "func g() int", "func g() int64", 1))
	if err := run(t.Context(), []string{"edit"}); err == nil || !strings.Contains(err.Error(), "a.patch: hunk 2") {
		t.Fatalf("the second hunk does not apply, and edit returns: %v", err)
	}
	if err := run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "a.patch: hunk 2") {
		t.Fatalf("the second hunk does not apply, and the check returns: %v", err)
	}
	copied := filepath.Join(editDir, "a/a.go")
	fixed := strings.Replace(read(t, copied), "int64 {\n\treturn 1", "int64 {\n\treturn 3", 1)
	put(t, copied, fixed)
	put(t, filepath.Join(editDir, "c/c.go"), "package c\n\nvar x = 2\n")
	if err := run(t.Context(), []string{"edit"}); err == nil {
		t.Error("edit overwrites edited files")
	}
	if err := run(t.Context(), []string{"refresh"}); err != nil {
		t.Fatal(err)
	}
	files, err := patchedFiles()
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"a/a.go": fixed, "c/c.go": "package c\n\nvar x = 2\n"}; !maps.Equal(files, want) {
		t.Errorf("the patches make %q, want %q", files, want)
	}
	if _, err := os.Stat(editDir); err == nil {
		t.Error("the edited files are still there")
	}
}

// TestRefreshOfOldCopies: a file that changed under its copy would be set back by the patch.
func TestRefreshOfOldCopies(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "a/a.go", file)
	put(t, filepath.Join(patchesDir, "a.patch"), patch)
	if err := edit(); err != nil {
		t.Fatal(err)
	}
	put(t, "a/a.go", file+"\nvar x int\n")
	if err := refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "a/a.go has changed") {
		t.Errorf("refresh takes old copies: %v", err)
	}
	if got := read(t, filepath.Join(patchesDir, "a.patch")); got != patch {
		t.Errorf("the patch became:\n%s", got)
	}
}

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := write(name, text); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPatchesOfTheSameOrNoFile: the hunks of a patch would be lost.
func TestPatchesOfTheSameOrNoFile(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, filepath.Join(patchesDir, "a.patch"), patch)
	if _, err := patchedFiles(); err == nil || !strings.Contains(err.Error(), "a.patch: a/a.go is not there") {
		t.Errorf("a patch of no file: %v", err)
	}
	put(t, "a/a.go", file)
	put(t, filepath.Join(patchesDir, "b.patch"), patch)
	if _, err := patchedFiles(); err == nil || !strings.Contains(err.Error(), "b.patch: a/a.go is not there, or another patch has it") {
		t.Errorf("two patches of one file: %v", err)
	}
}
