// Package archtest holds the rules of this repository as tests: who may import
// whom, what stays pure, who may start a goroutine, what must have a doc comment.
//
// The rules are tables in rules_test.go, each line with its reason. A test that
// turns red here asks for a decision: change the code, or the table and its reason.
//
// The tests parse the files of the repository in their own process. (A test that
// asks another program for the imports is answered from the test cache after the
// files have changed, because the cache sees only what the test itself opens.)
package archtest
