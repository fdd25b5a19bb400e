// Package archtest checks the rules of this repository: allowed imports, pure packages, files
// that may start goroutines, required doc comments.
//
// The rules are tables in rules_test.go, each line with its reason. A failure here needs a
// decision: change the code, or change the table and its reason.
//
// The tests parse the files of the repository in their own process. (A test that runs another
// program to list the imports would get a stale cached result after a change, because the test
// cache tracks only files that the test itself opens.)
package archtest
