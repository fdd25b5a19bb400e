package invariant

import "testing"

func TestCheckLetsTruthPass(t *testing.T) {
	before := Failures()
	if !Check(true, "one is one") {
		t.Error("Check(true) = false")
	}
	if got := Failures(); got != before {
		t.Errorf("failures went from %d to %d", before, got)
	}
}

func TestCheckReportsABrokenInvariant(t *testing.T) {
	before := Failures()
	t.Cleanup(func() { failures.Store(before) })
	defer func() {
		if got := recover() != nil; got != Enabled {
			t.Errorf("panicked = %v, want %v in this build", got, Enabled)
		}
		if got := Failures(); got != before+1 {
			t.Errorf("failures went from %d to %d, want one more", before, got)
		}
	}()
	if Check(false, "one is two") {
		t.Error("Check(false) = true")
	}
}
