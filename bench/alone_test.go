package main

import (
	"strings"
	"testing"
)

func TestSecondBenchIsTurnedAway(t *testing.T) {
	const addr = "127.77.255.253:16650" // not guard: a bench may be running
	release, err := alone(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alone(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "another bench is running") {
		t.Errorf("the second got %v", err)
	}
	release()
	again, err := alone(t.Context(), addr)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	again()
}
