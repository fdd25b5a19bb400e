package killed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ringfence/router/client"
)

// Rows is a database, as small as it can be: a row for each key, and the newest fence that it has seen of the key. A statement with an older fence is
// refused, as docs/sinks.md has it. Its methods are safe for concurrent use.
type Rows struct {
	// Wrote is called for every row that is written, in the order of the writes, nil for none before. It must not call the Rows.
	Wrote func(key string, fence client.Fence, before, after []byte)
	// Noted is called for what [Database.Note] says.
	Noted func(key string, fence client.Fence, text string)

	mu      sync.Mutex
	rows    map[string][]byte
	fences  map[string]client.Fence
	refused int
}

// rowMax bounds a row.
const rowMax = 1 << 20

// Set writes a row for which there is no handler.
func (r *Rows) Set(key string, row []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.make()
	r.rows[key] = row
}

// All returns a copy of all rows.
func (r *Rows) All() map[string][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.rows)
}

// Get returns a row, nil for none.
func (r *Rows) Get(key string) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rows[key]
}

// Refused returns how many statements had an older fence.
func (r *Rows) Refused() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

func (r *Rows) make() {
	if r.rows == nil {
		r.rows, r.fences = make(map[string][]byte), make(map[string]client.Fence)
	}
}

// Serve answers a [Database] on the address that it returns, until stop is called, which waits for the end.
func (r *Rows) Serve(ctx context.Context) (address string, stop func(), err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	return listener.Addr().String(), func() {
		_ = server.Close()
		serving.Wait()
	}, nil
}

// ServeHTTP runs one statement: POST /claim, /write or /note, with key and fence in the query.
func (r *Rows) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	key := request.URL.Query().Get("key")
	fence, err := client.ParseFence(request.URL.Query().Get("fence"))
	if err != nil || key == "" {
		http.Error(w, fmt.Sprintf("key %q, fence: %v", key, err), http.StatusBadRequest)
		return
	}
	row, err := io.ReadAll(http.MaxBytesReader(w, request.Body, rowMax))
	if err != nil { // a client that was killed has sent a part of it
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.make()
	if request.URL.Path == "/note" {
		r.Noted(key, fence, string(row))
		return
	}
	if fence.Before(r.fences[key]) {
		r.refused++
		http.Error(w, "a later handler was here", http.StatusConflict)
		return
	}
	r.fences[key] = fence
	if request.URL.Path == "/claim" {
		_, _ = w.Write(r.rows[key])
		return
	}
	if r.Wrote != nil {
		r.Wrote(key, fence, r.rows[key], row)
	}
	r.rows[key] = row
}

// ErrStale means that a later handler of the key was here: stop.
var ErrStale = errors.New("the database has seen a newer fence of this key")

// Database is a connection to [Rows].
type Database string

// Claim raises the fence of a key, and returns its row: nobody with an older fence can change it from now on. Begin with it: a row that was read before
// could still be changed by an earlier handler.
func (d Database) Claim(ctx context.Context, key string, fence client.Fence) ([]byte, error) {
	return d.do(ctx, "/claim", key, fence, nil)
}

// Write writes the row of a key.
func (d Database) Write(ctx context.Context, key string, fence client.Fence, row []byte) error {
	_, err := d.do(ctx, "/write", key, fence, row)
	return err
}

// Note tells the database's owner something, whatever the fence is.
func (d Database) Note(ctx context.Context, key string, fence client.Fence, text string) error {
	_, err := d.do(ctx, "/note", key, fence, []byte(text))
	return err
}

func (d Database) do(ctx context.Context, path, key string, fence client.Fence, row []byte) ([]byte, error) {
	address := "http://" + string(d) + path + "?" + url.Values{"key": {key}, "fence": {fence.String()}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(row))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, rowMax+1))
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusConflict:
		return nil, ErrStale
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the database: %s: %s", response.Status, body)
	}
	return body, nil
}
