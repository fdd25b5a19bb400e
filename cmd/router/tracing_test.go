package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// pageData is what seesPage reads of the data of the page.
type pageData struct {
	Head   struct{ Group, Member string }
	Tiles  []struct{ Title, Value string }
	Caller struct {
		MayAct bool `json:"may_act"`
		Named  bool
	}
	Members struct {
		Rows []struct{ Name, State string }
	}
	Worst json.RawMessage
}

// seesPage looks at the page of a member for people, and at its data, polled and streamed: all members of a group that is well
// are ready, and every partition is open.
func seesPage(t *testing.T, g *testGroup, member string) {
	t.Helper()
	get := func(path string) *http.Response {
		t.Helper()
		response, err := http.Get("http://" + g.members[member].admin + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return response
	}
	document := get("/")
	html, err := io.ReadAll(document.Body)
	if err != nil || document.StatusCode != http.StatusOK || !strings.Contains(string(html), "<title>Ringfence</title>") || strings.Contains(string(html), member) {
		t.Errorf("the page of %s: %s, %d bytes (%v)", member, document.Status, len(html), err)
	}
	event, err := bufio.NewReaderSize(get("/v1/page/events").Body, 1<<20).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	polled, err := io.ReadAll(get("/v1/page").Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strings.TrimPrefix(event, "data: "), string(polled)} {
		var data pageData
		if err := json.Unmarshal([]byte(text), &data); err != nil {
			t.Fatalf("%v in %.200s", err, text)
		}
		tiles := map[string]string{}
		for _, one := range data.Tiles {
			tiles[one.Title] = one.Value
		}
		if data.Head.Member != member || tiles["Partitions open"] != "4,093 of 4,093" || tiles["Exclusivity"] != "kept" || data.Worst == nil {
			t.Errorf("the page of %s has %+v", member, data)
		}
		ready := 0
		for _, one := range data.Members.Rows {
			if g.members[one.Name] != nil && one.State == "ready" {
				ready++
			}
		}
		if ready != len(g.members) {
			t.Errorf("%d members are ready, want %d", ready, len(g.members))
		}
		if !data.Caller.MayAct || data.Caller.Named { // on loopback without a token everything may be asked, and keys are hashes
			t.Errorf("the caller may: %+v", data.Caller)
		}
	}
	nothing, err := http.Get("http://" + g.members[member].admin + "/nothing")
	if err != nil {
		t.Fatal(err)
	}
	nothing.Body.Close()
	if nothing.StatusCode != http.StatusNotFound && nothing.StatusCode != http.StatusForbidden {
		t.Errorf("a page that is not there: %s", nothing.Status)
	}
}
