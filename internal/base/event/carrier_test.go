package event_test

import (
	"slices"
	"testing"

	"github.com/ringfence/router/internal/base/event"
)

// An event that others hold keeps its properties, whatever is set for one of them.
func TestCarrierCopiesOnWrite(t *testing.T) {
	shared := make([]event.Property, 0, 8) // with room behind it, which is not the carrier's
	shared = append(shared, event.Property{Name: "TraceParent", Value: "old"}, event.Property{Name: "source", Value: "web"})
	c := event.Carrier{Properties: shared}
	if got := c.Get("traceparent"); got != "old" {
		t.Errorf("Get = %q, want old: names have no case", got)
	}
	c.Set("traceparent", "new")
	c.Set("tracestate", "a=1")
	if want := []string{"TraceParent", "source", "tracestate"}; !slices.Equal(c.Keys(), want) {
		t.Errorf("names = %q, want %q", c.Keys(), want)
	}
	if c.Get("traceparent") != "new" || c.Get("tracestate") != "a=1" || c.Get("absent") != "" {
		t.Errorf("properties = %v", c.Properties)
	}
	if shared[0].Value != "old" || shared[:3][2].Name != "" {
		t.Errorf("the shared properties were written to: %v", shared[:3])
	}
}
