package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/testing/eventually"
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
	admin := "http://" + g.members[member].admin
	document, err := http.Get(admin + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer document.Body.Close()
	html, err := io.ReadAll(document.Body)
	if err != nil || document.StatusCode != http.StatusOK || !strings.Contains(string(html), "<title>Ringfence</title>") || strings.Contains(string(html), member) {
		t.Errorf("the page of %s: %s, %d bytes (%v)", member, document.Status, len(html), err)
	}
	for _, path := range []string{"/v1/page", "/v1/page/events"} {
		eventually.NoError(t, eventually.Most, path+" shows a group that is well", func() error { // on a busy machine a member may not answer in time
			response, err := http.Get(admin + path)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			line, err := bufio.NewReaderSize(response.Body, 1<<20).ReadString('\n')
			if err != nil {
				return err
			}
			var data pageData
			if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &data); err != nil {
				return fmt.Errorf("%w in %.200s", err, line)
			}
			return data.well(g, member)
		})
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

// well returns why the data do not show a group that is well.
func (p pageData) well(g *testGroup, member string) error {
	tiles := map[string]string{}
	for _, one := range p.Tiles {
		tiles[one.Title] = one.Value
	}
	if p.Head.Member != member || tiles["Partitions open"] != "4,093 of 4,093" || tiles["Exclusivity"] != "kept" || p.Worst == nil {
		return fmt.Errorf("%+v", p)
	}
	ready := 0
	for _, one := range p.Members.Rows {
		if g.members[one.Name] != nil && one.State == "ready" {
			ready++
		}
	}
	if ready != len(g.members) {
		return fmt.Errorf("%d members are ready, want %d", ready, len(g.members))
	}
	if !p.Caller.MayAct || p.Caller.Named { // on loopback without a token everything may be asked, and keys are hashes
		return fmt.Errorf("the caller may: %+v", p.Caller)
	}
	return nil
}
