package client_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestAPIHasNoInternalTypes: what applications see of the SDK names no type of an internal package, which they could neither make nor name.
func TestAPIHasNoInternalTypes(t *testing.T) {
	for folder, least := range map[string]int{".": 100, "clienttest": 20} {
		seen := 0
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if name := entry.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
				seen += internalTypes(t, folder+"/"+name)
			}
		}
		if seen < least {
			t.Errorf("only %d exported declarations in %s: this test does not see all of them", seen, folder)
		}
	}
}

// internalTypes fails the test for each type of an internal package in the exported declarations of a file, and returns their number.
func internalTypes(t *testing.T, path string) (exported int) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	internal := make(map[string]bool) // names of packages
	for _, one := range file.Imports {
		if of := strings.Trim(one.Path.Value, `"`); strings.Contains(of, "/internal/") {
			name := of[strings.LastIndex(of, "/")+1:]
			if one.Name != nil {
				name = one.Name.Name
			}
			internal[name] = true
		}
	}
	var look func(in ast.Node)
	look = func(in ast.Node) {
		ast.Inspect(in, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				for _, field := range n.Fields.List {
					if len(field.Names) > 0 && field.Names[0].IsExported() {
						look(field.Type)
					}
				}
				return false
			case *ast.SelectorExpr:
				if name, ok := n.X.(*ast.Ident); ok && internal[name.Name] {
					t.Errorf("%v: %s.%s is internal, and in the API", files.Position(n.Pos()), name.Name, n.Sel.Name)
				}
			}
			return true
		})
	}
	see := func(in ast.Node) {
		exported++
		look(in)
	}
	for _, declared := range file.Decls {
		switch d := declared.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
				see(d.Type)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						see(s.Type)
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() && s.Type != nil {
						see(s.Type)
					}
				}
			}
		}
	}
	return exported
}

// receiver returns the name of a receiver's type.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}
