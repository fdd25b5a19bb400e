package client

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/proto"
)

// JSON returns a handler that decodes the payload of each event as JSON and passes the value
// to handle. An event whose payload cannot be decoded into a T is rejected with the cause.
func JSON[T any](handle func(ctx context.Context, e *Event, value T) error) Handler {
	return func(ctx context.Context, e *Event) error {
		var value T
		if err := json.Unmarshal(e.Payload, &value); err != nil {
			return Reject(fmt.Errorf("decode JSON: %w", err))
		}
		return handle(ctx, e, value)
	}
}

// Proto is [JSON] for payloads in protobuf's binary form. M is the pointer to a generated
// message: Proto(func(ctx context.Context, e *client.Event, o *orderpb.Order) error { … }).
func Proto[T any, M interface {
	*T
	proto.Message
}](handle func(ctx context.Context, e *Event, message M) error) Handler {
	return func(ctx context.Context, e *Event) error {
		message := M(new(T))
		if err := proto.Unmarshal(e.Payload, message); err != nil {
			return Reject(fmt.Errorf("decode protobuf: %w", err))
		}
		return handle(ctx, e, message)
	}
}
