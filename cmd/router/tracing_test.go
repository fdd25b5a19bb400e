package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// seesPage looks at the page of a member for people: all members of a group that is well
// are ready, and every partition is open.
func seesPage(t *testing.T, g *testGroup, member string) {
	t.Helper()
	response, err := http.Get("http://" + g.members[member].admin + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	page := string(body)
	want := []string{"as <b>" + member + "</b> sees it", "4093 of 4093", ">kept<"}
	for name := range g.members {
		want = append(want, name)
	}
	for _, part := range want {
		if !strings.Contains(page, part) {
			t.Errorf("the page of %s has no %q", member, part)
		}
	}
	if n := strings.Count(page, `<b class="good">ready</b>`); response.StatusCode != http.StatusOK || n != len(g.members) {
		t.Errorf("%s: %d members are ready, want %d", response.Status, n, len(g.members))
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
