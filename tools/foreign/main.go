// Foreign checks that packages compile on other systems, without compiling them:
//
//	cd tools && go run ./foreign windows,darwin ./cmd/router ./client/...
//
// It parses and type-checks the packages and all their dependencies from source. A build for another system takes ten times
// as long, compiles the dependencies as well, and finds the same errors: names, files and types that do not exist there.
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: go run ./foreign SYSTEM,… PACKAGE…")
		os.Exit(2)
	}
	failed := false
	for system := range strings.SplitSeq(os.Args[1], ",") {
		errs, err := check(system, os.Args[2:])
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", system, err)
			os.Exit(1)
		}
		for _, err := range errs {
			fmt.Fprintf(os.Stderr, "%s: %v\n", system, err)
		}
		failed = failed || len(errs) > 0
	}
	if failed {
		os.Exit(1)
	}
}

// check type-checks packages of the repository as built for a system, and returns the errors in all of them.
func check(system string, patterns []string) ([]packages.Error, error) {
	cfg := &packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedModule,
		Dir: "..", // the folder of go.work
		Env: append(os.Environ(), "GOOS="+system, "GOWORK=", "CGO_ENABLED=0"),
	}
	roots, err := packages.Load(cfg, patterns...)
	if err != nil {
		return nil, err
	}
	var errs []packages.Error
	seen := 0
	packages.Visit(roots, nil, func(p *packages.Package) {
		seen++
		errs = append(errs, p.Errors...)
	})
	fmt.Fprintf(os.Stdout, "%-8s %d packages, %d errors\n", system, seen, len(errs))
	return errs, nil
}
