package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/ringfence/router"

// tree holds all Go files of the modules in go.work, parsed whatever their build constraints.
type tree struct {
	root  fs.FS
	fset  *token.FileSet
	files []file
}

type file struct {
	path, dir string // slash-separated, from the root of the module
	ast       *ast.File
	test      bool
	generated bool
}

// repository parses this repository.
func repository(t *testing.T) tree {
	t.Helper()
	tr, err := parse(os.DirFS("../../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.packages()) < 10 {
		t.Fatalf("only %d packages found; this run proves nothing", len(tr.packages()))
	}
	return tr
}

func parse(root fs.FS) (tree, error) {
	tr := tree{root: root, fset: token.NewFileSet()}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && foreign(root, name):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(tr.fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		tr.files = append(tr.files, file{
			path: name, dir: path.Dir(name), ast: parsed,
			test:      strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(parsed),
		})
		return nil
	})
	return tr, err
}

// foreign reports whether a folder belongs to no module of go.work.
func foreign(root fs.FS, dir string) bool {
	if dir == "." {
		return false
	}
	if base := path.Base(dir); base == "testdata" || base[0] == '.' || base[0] == '_' {
		return true
	}
	if _, err := fs.Stat(root, path.Join(dir, "go.mod")); err != nil {
		return false
	}
	work, _ := fs.ReadFile(root, "go.work") // without one, the root is the only module
	return !bytes.Contains(work, []byte("\t./"+dir+"\n"))
}

// packages returns the files of each folder.
func (tr tree) packages() map[string][]file {
	packages := make(map[string][]file)
	for _, f := range tr.files {
		packages[f.dir] = append(packages[f.dir], f)
	}
	return packages
}

// at tells where a node stands, for the message of a violation.
func (tr tree) at(n ast.Node) string {
	p := tr.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// imports yields the import path of each import of f.
func (f file) imports(yield func(*ast.ImportSpec, string) bool) {
	for _, spec := range f.ast.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !yield(spec, name) { // the parser has checked it: err is nil
			return
		}
	}
}

// inModule returns the folder of an import path of this module.
func inModule(importPath string) (dir string, ok bool) {
	return strings.CutPrefix(importPath, module+"/")
}

// under reports whether dir is one of the folders, or lies in one of them.
func under(dir string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return dir == folder || strings.HasPrefix(dir, folder+"/")
	})
}

// arrow lists the folders, each with all its subfolders, that the files of one package may import
// from this module. Tests are exempt.
type arrow struct {
	to  []string
	why string
}

// linked finds libraries that a package brings along, by itself or through others of this module, tests excepted.
func (tr tree) linked(dir string, unwanted []string) (violations []string) {
	packages := tr.packages()
	seen := map[string]bool{dir: true}
	for queue := []string{dir}; len(queue) > 0; queue = queue[1:] {
		for _, f := range packages[queue[0]] {
			if f.test {
				continue
			}
			for spec, name := range f.imports {
				if to, ok := inModule(name); ok {
					if !seen[to] {
						seen[to] = true
						queue = append(queue, to)
					}
				} else if under(name, unwanted) {
					violations = append(violations, fmt.Sprintf("%s: %s links %s", tr.at(spec), dir, name))
				}
			}
		}
	}
	return violations
}

// unneeded finds direct requirements of the root's go.mod that no package of the root module imports, tests and
// pulsartest, which is for tests, excepted.
func (tr tree) unneeded(allowed []string) (violations []string) {
	text, err := fs.ReadFile(tr.root, "go.mod")
	if err != nil {
		return []string{err.Error()}
	}
	needed := map[string]bool{}
	for _, f := range tr.files {
		if f.test || tr.moduleOf(f.dir) != "." {
			continue
		}
		for _, name := range f.imports {
			for ; name != "."; name = path.Dir(name) {
				needed[name] = true
			}
		}
	}
	found := false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || !strings.HasPrefix(line, "\t") {
			continue
		}
		found = true
		if !needed[fields[0]] && !slices.Contains(allowed, fields[0]) {
			violations = append(violations, "go.mod: nothing but tests, or another module, needs "+fields[0])
		}
	}
	if !found {
		violations = append(violations, "go.mod: no requirement found")
	}
	return violations
}

// moduleOf returns the folder of the module that dir belongs to.
func (tr tree) moduleOf(dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := fs.Stat(tr.root, path.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return dir
}

// unnamedModules finds modules with packages of ours that a file does not name which has to name all.
func (tr tree) unnamedModules() (violations []string) {
	modules := map[string]bool{}
	for _, f := range tr.files {
		if m := tr.moduleOf(f.dir); m != "." {
			modules[m] = true
		}
	}
	if len(modules) == 0 {
		return []string{"no module but the root found"}
	}
	for name, form := range map[string]string{"go.work": "\t./%s\n", "Makefile": " ./%s/...", ".github/dependabot.yml": " /%s"} {
		text, err := fs.ReadFile(tr.root, name)
		if err != nil {
			violations = append(violations, err.Error())
		}
		for _, m := range slices.Sorted(maps.Keys(modules)) {
			if !strings.Contains(string(text), fmt.Sprintf(form, m)) {
				violations = append(violations, fmt.Sprintf("%s does not name the module %s", name, m))
			}
		}
	}
	slices.Sort(violations)
	return violations
}

// strayImports finds imports that no arrow allows, and packages without an arrow.
func (tr tree) strayImports(arrows map[string]arrow) (violations []string) {
	packages := tr.packages()
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		from, known := arrows[dir]
		if !known && !under(dir, []string{"proto"}) {
			violations = append(violations, fmt.Sprintf("%s: a new package: say in the table what it may import, and why", dir))
			continue
		}
		for _, f := range packages[dir] {
			if f.test {
				continue
			}
			for spec, name := range f.imports {
				if to, ok := inModule(name); ok && !under(to, from.to) && !slices.Contains(anywhere, to) {
					violations = append(violations, fmt.Sprintf("%s: %s may not import %s (%s)", tr.at(spec), dir, to, from.why))
				}
			}
		}
	}
	return violations
}

// only lists the folders that may import a library.
type only struct {
	library string
	in      []string
	why     string
}

// strayLibraries finds imports of a library outside of its folders, tests included.
func (tr tree) strayLibraries(rules []only) (violations []string) {
	for _, f := range tr.files {
		for spec, name := range f.imports {
			for _, rule := range rules {
				if under(name, []string{rule.library}) && !under(f.dir, rule.in) {
					violations = append(violations, fmt.Sprintf("%s: only %v may import %s (%s)", tr.at(spec), rule.in, rule.library, rule.why))
				}
			}
		}
	}
	return violations
}

// pure is a folder whose files take time and randomness as arguments and share nothing, but for those listed.
type pure struct {
	dir    string
	impure []string // file names; one that does not exist, or is pure, is a violation
	except []string // imports that are allowed here though they are not pure
	why    string   // of the exception
}

var (
	impureImports = []string{"sync", "log", "net", "os", "math/rand", "crypto/rand", "context", module + "/internal/base/signal"}
	impureUses    = map[string][]string{
		"time": {"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"},
		"math/rand/v2": {
			"ExpFloat64", "Float32", "Float64", "Int", "Int32", "Int32N", "Int64", "Int64N", "IntN", "N",
			"NormFloat64", "Perm", "Shuffle", "Uint", "Uint32", "Uint32N", "Uint64", "Uint64N", "UintN",
		}, // the ones that draw from the global source
		module + "/internal/base/clock":   {"Now", "Shared", "Read", "Careful"},
		module + "/internal/base/backoff": {"Sleep"},
	}
)

// impurities finds, in every file of the folders but those listed, all that makes a machine more than a function of its inputs.
func (tr tree) impurities(rules []pure) (violations []string) {
	packages := tr.packages()
	for _, rule := range rules {
		unmatched := slices.Clone(rule.impure)
		for _, f := range packages[rule.dir] {
			if f.test {
				continue
			}
			name, found := path.Base(f.path), tr.impure(f, rule.except)
			switch {
			case !slices.Contains(rule.impure, name):
				violations = append(violations, found...)
			case len(found) > 0:
				unmatched = slices.DeleteFunc(unmatched, func(listed string) bool { return listed == name })
			}
		}
		for _, name := range unmatched {
			violations = append(violations, fmt.Sprintf("%s: the table of impure files lists %s, which is pure or does not exist", rule.dir, name))
		}
	}
	return violations
}

func (tr tree) impure(f file, except []string) (violations []string) {
	report := func(n ast.Node, what string) {
		violations = append(violations, fmt.Sprintf("%s: a pure file has no %s", tr.at(n), what))
	}
	forbidden := map[string]bool{} // qualified names, as they are spelled in this file
	for spec, name := range f.imports {
		if name != "math/rand/v2" && under(name, impureImports) && !slices.Contains(except, name) {
			report(spec, "import of "+name)
		}
		for _, use := range impureUses[name] {
			forbidden[localName(spec, name)+"."+use] = true
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "go statement")
		case *ast.ChanType:
			report(n, "channel")
		case *ast.SelectStmt:
			report(n, "select")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && forbidden[x.Name+"."+n.Sel.Name] {
				report(n, x.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return violations
}

// localName returns the name by which a file knows an import.
func localName(spec *ast.ImportSpec, importPath string) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	base := path.Base(importPath)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" { // a major version
		return path.Base(path.Dir(importPath))
	}
	return base
}

// goroutines finds go statements outside of tests and of the files that may have one.
func (tr tree) goroutines(allowed map[string]string) (violations []string) {
	for _, f := range tr.files {
		if f.test || allowed[f.path] != "" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				violations = append(violations, tr.at(n)+": go statement: use an errgroup or WaitGroup.Go, or list the file with a reason")
			}
			return true
		})
	}
	return violations
}

// planters finds imports of the switches of planted bugs outside of internal/testing and of the tests of some folders.
func (tr tree) planters(tests ...string) (violations []string) {
	for _, f := range tr.files {
		if under(f.dir, []string{"internal/testing"}) || f.test && slices.Contains(tests, f.dir) {
			continue
		}
		for spec, name := range f.imports {
			if name == module+"/internal/testing/planted" {
				violations = append(violations, fmt.Sprintf("%s: switches of planted bugs stand in internal/testing/planted/patches", tr.at(spec)))
			}
		}
	}
	return violations
}

// packageDocs finds packages that have not exactly one package doc, and docs that
// do not begin as godoc wants them.
func (tr tree) packageDocs() (violations []string) {
	packages := tr.packages()
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		files := slices.DeleteFunc(packages[dir], func(f file) bool { return f.generated })
		if code := slices.DeleteFunc(slices.Clone(files), func(f file) bool { return f.test }); len(code) > 0 {
			files = code // a folder of nothing but tests has its doc in a test
		}
		if len(files) == 0 {
			continue
		}
		var docs []file
		for _, f := range files {
			if f.ast.Doc != nil {
				docs = append(docs, f)
			}
		}
		if len(docs) != 1 {
			violations = append(violations, fmt.Sprintf("%s: %d package docs, want exactly one", dir, len(docs)))
			continue
		}
		name := docs[0].ast.Name.Name
		want := "Package " + strings.TrimSuffix(name, "_test") + " "
		if name == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		if !strings.HasPrefix(docs[0].ast.Doc.Text(), want) {
			violations = append(violations, fmt.Sprintf("%s: its doc does not begin with %q", tr.at(docs[0].ast), want))
		}
	}
	return violations
}

// undocumented finds exported names without a doc comment in the packages that
// other modules can import.
func (tr tree) undocumented() (violations []string) {
	for _, f := range tr.files {
		if f.test || f.generated || f.ast.Name.Name == "main" || under(f.dir, []string{"internal"}) {
			continue
		}
		for _, decl := range f.ast.Decls {
			for _, n := range exportedWithoutDoc(decl) {
				violations = append(violations, fmt.Sprintf("%s: exported %s has no doc comment", tr.at(n), n.Name))
			}
		}
	}
	return violations
}

func exportedWithoutDoc(decl ast.Decl) (names []*ast.Ident) {
	if fn, ok := decl.(*ast.FuncDecl); ok {
		if fn.Name.IsExported() && fn.Doc == nil && receiverIsExported(fn) {
			names = append(names, fn.Name)
		}
		return names
	}
	group := decl.(*ast.GenDecl)
	for _, spec := range group.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && spec.Doc == nil && group.Doc == nil {
				names = append(names, spec.Name)
			}
		case *ast.ValueSpec:
			if spec.Doc != nil || spec.Comment != nil || group.Doc != nil {
				continue // a group of constants or variables may share one doc
			}
			for _, name := range spec.Names {
				if name.IsExported() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

func receiverIsExported(fn *ast.FuncDecl) bool {
	if fn.Recv == nil {
		return true
	}
	for e := fn.Recv.List[0].Type; ; {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// unmapped finds packages that the text of ARCHITECTURE.md does not name.
func (tr tree) unmapped(architecture string) (violations []string) {
	named := map[string]bool{}
	inPath := func(r rune) bool {
		return r == '/' || r == '_' || r == '-' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	}
	for _, word := range strings.FieldsFunc(architecture, func(r rune) bool { return !inPath(r) }) {
		named[strings.Trim(word, "/")] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(tr.packages())) {
		if !under(dir, []string{"proto"}) && !named[dir] {
			violations = append(violations, dir+": ARCHITECTURE.md does not name it in its file map")
		}
	}
	return violations
}

var namedTest = regexp.MustCompile("`([a-z]+)\\.(Test[A-Za-z0-9]+)`")

// missingTests finds the tests that a text names as package.TestName and that no
// package of that name has.
func (tr tree) missingTests(text string) (violations []string) {
	there := map[string]bool{}
	for _, f := range tr.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				there[path.Base(f.dir)+"."+fn.Name.Name] = true
			}
		}
	}
	named := namedTest.FindAllStringSubmatch(text, -1)
	if len(named) == 0 {
		violations = append(violations, "the text names no test at all")
	}
	for _, m := range named {
		if name := m[1] + "." + m[2]; !there[name] {
			violations = append(violations, name+": ARCHITECTURE.md says that it holds an invariant, and it is not there")
		}
	}
	return violations
}

// metaphors finds declared names with a word that has a plain one: whole words of a name in camel case, also in the plural.
func (tr tree) metaphors(plain map[string]string) (violations []string) {
	for _, f := range tr.files {
		if f.generated {
			continue
		}
		for id := range declared(f.ast) {
			for word := range wordsOf(id.Name) {
				instead, banned := plain[word]
				if !banned {
					instead, banned = plain[strings.TrimSuffix(word, "s")]
				}
				if banned {
					violations = append(violations, fmt.Sprintf("%s: %s: say %s instead of %s", tr.at(id), id.Name, instead, word))
				}
			}
		}
	}
	return violations
}

// declared yields the names that a file declares: of types, functions, parameters, fields, constants and variables.
func declared(f *ast.File) iter.Seq[*ast.Ident] {
	return func(yield func(*ast.Ident) bool) {
		going := true
		names := func(all ...*ast.Ident) {
			for _, id := range all {
				going = going && yield(id)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				names(n.Name)
			case *ast.FuncDecl:
				names(n.Name)
			case *ast.Field:
				names(n.Names...)
			case *ast.ValueSpec:
				names(n.Names...)
			case *ast.AssignStmt:
				for _, left := range n.Lhs {
					if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
						names(id)
					}
				}
			case *ast.RangeStmt:
				for _, left := range []ast.Expr{n.Key, n.Value} {
					if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
						names(id)
					}
				}
			}
			return going
		})
	}
}

// wordsOf yields the words of a name in camel case, in lower case. A verb followed by Over, as in HandOver, is one word with it.
func wordsOf(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, word := range wordRE.FindAllString(name, -1) {
			if !yield(strings.ToLower(word)) {
				return
			}
		}
	}
}

var wordRE = regexp.MustCompile(`(?i:hand(?:ed|s|ing)?)Over|[A-Z]?[a-z]+|[A-Z]+(?:[^a-z]|$)`)

// prose finds comments of Go files, and lines of Markdown files, with a metaphor that has a plain word. Notebooks, decisions
// and the changelog are left as they were written, and so is this package, which lists the words.
func (tr tree) prose(plain map[string]string) (violations []string) {
	find := func(at, text string) {
		for _, word := range proseRE.FindAllString(text, -1) {
			if instead, banned := plain[strings.ToLower(word)]; banned {
				violations = append(violations, fmt.Sprintf("%s: say %s instead of %s", at, instead, word))
			}
		}
	}
	for _, f := range tr.files {
		if f.generated || f.dir == "internal/testing/archtest" {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				find(tr.at(c), c.Text)
			}
		}
	}
	err := fs.WalkDir(tr.root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "docs/adr" || name == "docs/lab" || foreign(tr.root, name)):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md" || name == "CHANGELOG.md":
			return nil
		}
		text, err := fs.ReadFile(tr.root, name)
		for i, line := range strings.Split(linkRE.ReplaceAllString(string(text), "]"), "\n") {
			find(fmt.Sprintf("%s:%d", name, i+1), line)
		}
		return err
	})
	if err != nil {
		violations = append(violations, err.Error())
	}
	return violations
}

var (
	proseRE = regexp.MustCompile(`[A-Za-z]+`)
	linkRE  = regexp.MustCompile(`\]\([^)]*\)`) // the names of files are not prose
)
