// Package pulsaradmin calls Pulsar's admin API, JSON over HTTP.
package pulsaradmin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	// callTimeout bounds each call; a shorter deadline of the context counts too.
	callTimeout = 30 * time.Second
	// answerMax is the longest answer that is read, in bytes.
	answerMax = 16 << 20
)

// Client holds the address and credentials of an admin API. It is safe for concurrent use.
type Client struct {
	URL   string // of the web service, as in http://broker:8080
	Token string // sent as a bearer token; empty sends none

	// HTTP makes the calls, for authentication other than by Token; nil is http.DefaultClient.
	HTTP *http.Client
}

// TopicPath returns the path of a topic, as Call takes it, from its full name
// (persistent://tenant/namespace/topic).
func TopicPath(topic string) string { return strings.Replace(topic, "://", "/", 1) }

// StatsPath returns the path of a topic's statistics: of a partitioned one the sums over its partitions, and with each also those of the partitions.
func StatsPath(topic string, partitioned, each bool) string {
	if !partitioned {
		return TopicPath(topic) + "/stats"
	}
	return fmt.Sprintf("%s/partitioned-stats?perPartition=%t", TopicPath(topic), each)
}

// Partitions returns the number of partitions of a topic, 0 if it has none. It does not create the topic.
func (c Client) Partitions(ctx context.Context, topic string) (int, error) {
	var meta struct{ Partitions int }
	err := c.Call(ctx, http.MethodGet, TopicPath(topic)+"/partitions?checkAllowAutoCreation=false", nil, &meta)
	return meta.Partitions, err
}

// notFound is the error of an answer with the status 404.
type notFound struct{ error }

// IsNotFound reports whether the broker has said that something is not there. The text of an error does not tell: a name may have
// 404 in it.
func IsNotFound(err error) bool {
	_, is := errors.AsType[notFound](err)
	return is
}

// Call calls the path below /admin/v2/. Body is sent, and the answer read into result, as
// JSON where they are not nil. An empty answer, as for a policy that is not set, leaves
// result unchanged. A status other than 2xx is an error with the broker's text.
func (c Client) Call(ctx context.Context, method, path string, body, result any) error {
	said, err := c.Do(ctx, method, path, body)
	if err != nil || result == nil || len(said) == 0 {
		return err
	}
	if err := json.Unmarshal(said, result); err != nil {
		return fmt.Errorf("admin API: %s %s: %w in %.200q", method, path, err, said)
	}
	return nil
}

// Do is Call for an answer that is not JSON.
func (c Client) Do(ctx context.Context, method, path string, body any) ([]byte, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+"/admin/v2/"+path, content)
	if err != nil {
		return nil, fmt.Errorf("admin API: %w", err)
	}
	request.Close = true // calls are rare: no connection is kept for the next one
	request.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	caller := c.HTTP
	if caller == nil {
		caller = http.DefaultClient
	}
	answer, err := caller.Do(request)
	if err != nil {
		return nil, fmt.Errorf("admin API: %w", err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, answerMax))
	if err != nil {
		return nil, fmt.Errorf("admin API: %s %s: %w", method, path, err)
	}
	if answer.StatusCode/100 != 2 {
		err := fmt.Errorf("admin API: %s %s: %s: %.300s", method, path, answer.Status, said)
		if answer.StatusCode == http.StatusNotFound {
			err = notFound{err}
		}
		return nil, err
	}
	return said, nil
}
