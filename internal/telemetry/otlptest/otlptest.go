// Package otlptest reads the spans that a test receives over OTLP.
package otlptest

import (
	"encoding/hex"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Span is one span of a request. Its ids are in hexadecimal digits; Parent is empty for a root.
type Span struct {
	Name, Trace, ID, Parent string
	Instance                string // service.instance.id of its resource
}

// request is an ExportTraceServiceRequest in protobuf's JSON.
type request struct {
	ResourceSpans []struct {
		Resource struct {
			Attributes []struct {
				Key   string
				Value struct{ StringValue string }
			}
		}
		ScopeSpans []struct {
			Spans []struct {
				Name                          string
				TraceID, SpanID, ParentSpanID []byte // json matches names in any case
			}
		}
	}
}

// Decode returns the spans of the body of an OTLP request. The message type is the one that
// the exporter registers, so that the test needs no requirement of its own for it.
func Decode(body []byte) ([]Span, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName("opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest")
	if err != nil {
		return nil, fmt.Errorf("otlptest: no OTLP exporter is linked: %w", err)
	}
	message := t.New().Interface()
	if err := proto.Unmarshal(body, message); err != nil {
		return nil, fmt.Errorf("otlptest: %w", err)
	}
	text, err := protojson.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("otlptest: %w", err)
	}
	var r request
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("otlptest: %w", err)
	}
	var spans []Span
	for _, resource := range r.ResourceSpans {
		instance := ""
		for _, a := range resource.Resource.Attributes {
			if a.Key == "service.instance.id" {
				instance = a.Value.StringValue
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				spans = append(spans, Span{s.Name, hex.EncodeToString(s.TraceID), hex.EncodeToString(s.SpanID), hex.EncodeToString(s.ParentSpanID), instance})
			}
		}
	}
	return spans, nil
}
