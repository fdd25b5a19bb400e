package pulsaradmin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCall(t *testing.T) {
	type request struct{ method, path, query, body, kind, auth string }
	var got request
	answer := func(status int, text string) Client {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got = request{r.Method, r.URL.Path, r.URL.RawQuery, string(body), r.Header.Get("Content-Type"), r.Header.Get("Authorization")}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}))
		t.Cleanup(server.Close)
		return Client{URL: server.URL + "/", Token: "hush"}
	}

	var n int
	c := answer(http.StatusOK, "3")
	if err := c.Call(t.Context(), http.MethodPut, TopicPath("persistent://a/b/c")+"/partitions?x=y", 3, &n); err != nil || n != 3 {
		t.Errorf("Call = %v with %d, want 3", err, n)
	}
	if want := (request{http.MethodPut, "/admin/v2/persistent/a/b/c/partitions", "x=y", "3", "application/json", "Bearer hush"}); got != want {
		t.Errorf("the broker was asked %+v, want %+v", got, want)
	}
	if text, err := answer(http.StatusOK, "4.0.8\n").Do(t.Context(), http.MethodGet, "brokers/version", nil); err != nil || string(text) != "4.0.8\n" || got.body != "" {
		t.Errorf("Do = %q, %v after a body of %q", text, err, got.body)
	}
	unset := &n
	if err := answer(http.StatusNoContent, "").Call(t.Context(), http.MethodGet, "x", nil, &unset); err != nil || unset != &n {
		t.Errorf("a value that is not set: %v, and the result was changed: %t", err, unset != &n)
	}
	if err := answer(http.StatusNoContent, "").Call(t.Context(), http.MethodDelete, "x", nil, nil); err != nil {
		t.Errorf("an answer without content is an error: %v", err)
	}
}

func TestCallErrors(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		answer string
		result any
		want   string
	}{
		"status":   {http.StatusNotFound, `{"reason":"Topic not found"}`, nil, `GET x: 404 Not Found: {"reason":"Topic not found"}`},
		"not JSON": {http.StatusOK, "<html>", new(int), `in "<html>"`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.answer)
			}))
			defer server.Close()
			err := Client{URL: server.URL}.Call(t.Context(), http.MethodGet, "x", nil, c.result)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if err := (Client{URL: "http://127.0.0.1:1"}).Call(t.Context(), http.MethodGet, "x", nil, nil); err == nil {
		t.Error("no error without a server")
	}
	var unsupported *json.UnsupportedTypeError
	if err := (Client{URL: "http://127.0.0.1:1"}).Call(t.Context(), http.MethodGet, "x", func() {}, nil); !errors.As(err, &unsupported) {
		t.Errorf("a body that is not JSON: %v", err)
	}
}
