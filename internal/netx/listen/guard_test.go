package listen

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// caller is a request, and the guard that it meets.
type caller struct {
	method, path string
	token        string // that it has
	remote       string // loopback if empty
	header       map[string]string
	want, drain  string // tokens of the guard
	open         bool   // DrainOpen
	tls          bool
	insecure     bool
	loopbackOnly bool
	why          string // as it is counted; token if empty
	status       int
	says         string
	host         string
}

func TestGuard(t *testing.T) {
	const pod = "10.0.0.7:4711"
	for name, c := range map[string]caller{
		"a probe":                                {path: "/readyz", want: "hush", remote: pod, status: 200},
		"metrics":                                {path: "/metrics", want: "hush", remote: pod, status: 200},
		"a probe by any name":                    {path: "/readyz", host: "evil.example", status: 200},
		"a POSTed probe":                         {method: "POST", path: "/readyz", want: "hush", status: 401},
		"the ring":                               {path: "/v1/ring", want: "hush", status: 200},
		"the ring by a name bent to loopback":    {path: "/v1/ring", want: "hush", host: "evil.example:16653", status: 403, why: host, says: "localhost"},
		"the ring in the clear from outside":     {path: "/v1/ring", want: "hush", token: "hush", remote: pod, status: 403, why: plain, says: "admin.tls"},
		"the root in the clear from outside":     {path: "/", remote: pod, status: 403, why: plain, says: "admin.tls"},
		"the shell with TLS":                     {path: "/", want: "hush", tls: true, remote: pod, status: 200},
		"the shell with TLS, without a token":    {path: "/", tls: true, remote: pod, status: 200},
		"the shell with TLS, for another site":   {path: "/", want: "hush", tls: true, remote: pod, header: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: 403, why: origin, says: "another site"},
		"a verb on the shell with TLS":           {method: "POST", path: "/", want: "hush", tls: true, remote: pod, status: 401},
		"the shell on loopback, bent":            {path: "/", want: "hush", host: "evil.example:16653", status: 403, why: host, says: "localhost"},
		"the ring with TLS":                      {path: "/v1/ring", want: "hush", tls: true, remote: pod, status: 401, says: "admin.token"},
		"the ring with TLS and the token":        {path: "/v1/ring", want: "hush", token: "hush", tls: true, remote: pod, status: 200},
		"the ring with TLS on loopback":          {path: "/v1/ring", want: "hush", tls: true, status: 401, says: "admin.token"},
		"TLS where there is no token":            {path: "/v1/ring", tls: true, remote: pod, status: 403, says: "admin.token"},
		"the ring, insecure":                     {path: "/v1/ring", want: "hush", insecure: true, remote: pod, status: 200},
		"keys, insecure":                         {path: "/v1/keys", want: "hush", insecure: true, remote: pod, status: 401, says: "admin.token"},
		"keys, insecure, with the token":         {path: "/v1/keys", want: "hush", token: "hush", insecure: true, remote: pod, status: 200},
		"keys without the token":                 {path: "/v1/keys", want: "hush", status: 401, says: "admin.token"},
		"a key without the token":                {path: "/v1/keys/user-1", want: "hush", status: 401, says: "admin.token"},
		"keys with the token":                    {path: "/v1/keys", want: "hush", token: "hush", tls: true, remote: pod, status: 200},
		"keys with the token in the clear":       {path: "/v1/keys", want: "hush", token: "hush", remote: pod, status: 403, why: plain},
		"keys with the token of the drain":       {path: "/v1/keys", want: "hush", drain: "go", token: "go", status: 401, says: "wrong"},
		"keys where there is no token":           {path: "/v1/keys", status: 200},
		"keys from outside, without a token":     {path: "/v1/keys", tls: true, remote: pod, status: 403, says: "loopback"},
		"a page that nobody has thought of":      {path: "/v2/new", want: "hush", status: 401, says: "admin.token"},
		"a verb on a path that may be read":      {method: "DELETE", path: "/v1/ring", want: "hush", status: 401},
		"a verb that GETs":                       {path: "/undrain", tls: true, remote: pod, status: 403, says: "loopback"},
		"a verb with the token":                  {method: "POST", path: "/undrain", want: "hush", token: "hush", tls: true, remote: pod, status: 200},
		"a verb with the token in the clear":     {method: "POST", path: "/undrain", want: "hush", token: "hush", remote: pod, status: 403, why: plain},
		"a verb without it, on loopback":         {method: "POST", path: "/undrain", want: "hush", status: 401, says: "admin.token"},
		"a verb with a wrong one":                {method: "POST", path: "/undrain", want: "hush", token: "hus", status: 401, says: "wrong"},
		"a verb with a longer one":               {method: "PUT", path: "/v1/log", want: "hush", token: "hushh", status: 401, says: "wrong"},
		"a verb where there is no token":         {method: "PUT", path: "/v1/log", status: 200},
		"a verb from outside, without a token":   {method: "PUT", path: "/v1/log", tls: true, remote: pod, status: 403, says: "loopback"},
		"a verb with an empty one, from outside": {method: "PUT", path: "/v1/log", tls: true, remote: pod, header: map[string]string{"Authorization": "Bearer "}, status: 403, says: "loopback"},
		"a drain that GETs":                      {path: "/drain", want: "hush", status: 401, says: "admin.token"},
		"a HEAD of the drain":                    {method: "HEAD", path: "/drain", want: "hush", status: 401},
		"a drain from outside, in the clear":     {path: "/drain", remote: pod, status: 403, why: plain, says: "admin.tls"},
		"a drain from outside, without a token":  {path: "/drain", tls: true, remote: pod, status: 403, says: "loopback"},
		"a drain that is open":                   {path: "/drain", want: "hush", open: true, remote: pod, status: 200},
		"a verb where only the drain is open":    {method: "POST", path: "/undrain", open: true, tls: true, remote: pod, status: 403, says: "loopback"},
		"a drain with its own token":             {path: "/drain", want: "hush", drain: "go", token: "go", remote: pod, status: 200},
		"a drain with the token, in the clear":   {path: "/drain", want: "hush", drain: "go", token: "hush", remote: pod, status: 401, says: "admin.drain_token"},
		"a drain with the token, by TLS":         {path: "/drain", want: "hush", drain: "go", token: "hush", tls: true, remote: pod, status: 200},
		"a drain with the token, insecure":       {path: "/drain", want: "hush", drain: "go", token: "hush", insecure: true, remote: pod, status: 200},
		"a drain with a wrong one, in the clear": {path: "/drain", want: "hush", drain: "go", token: "hus", remote: pod, status: 401, says: "wrong"},
		"a drain with its own token alone":       {path: "/drain", drain: "go", token: "go", remote: pod, status: 200},
		"a drain without its own token":          {path: "/drain", drain: "go", remote: pod, status: 401, says: "admin.token"},
		"a verb with the token of the drain":     {method: "POST", path: "/undrain", want: "hush", drain: "go", token: "go", status: 401, says: "wrong"},
		"a page of another site":                 {method: "POST", path: "/undrain", header: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: 403, why: origin, says: "another site"},
		"a page of a neighbour":                  {method: "POST", path: "/undrain", header: map[string]string{"Sec-Fetch-Site": "same-site"}, status: 403, why: origin, says: "another site"},
		"a page of another site by its Origin":   {method: "POST", path: "/undrain", header: map[string]string{"Origin": "http://evil.example"}, status: 403, why: origin, says: "another site"},
		"a page of another port by its Origin":   {method: "POST", path: "/drain", open: true, header: map[string]string{"Origin": "http://127.0.0.1:3000"}, status: 403, why: origin, says: "another site"},
		"an image of another site":               {path: "/drain", header: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: 403, why: origin, says: "another site"},
		"an image in the clear":                  {path: "/drain", open: true, remote: pod, header: map[string]string{"User-Agent": "Mozilla/5.0"}, status: 403, why: origin, says: "POST"},
		"a link that somebody follows":           {path: "/drain", open: true, header: map[string]string{"Sec-Fetch-Site": "none"}, status: 403, why: origin, says: "POST"},
		"our own page":                           {method: "POST", path: "/undrain", header: map[string]string{"Sec-Fetch-Site": "same-origin"}, status: 200},
		"our own page that drains":               {method: "POST", path: "/drain", header: map[string]string{"Sec-Fetch-Site": "same-origin"}, status: 200},
		"our own page by its Origin":             {method: "POST", path: "/undrain", header: map[string]string{"Origin": "http://127.0.0.1:16653"}, status: 200},
		"a name that was bent to loopback":       {method: "POST", path: "/undrain", host: "evil.example:16653", header: map[string]string{"Sec-Fetch-Site": "same-origin"}, status: 403, why: host, says: "loopback"},
		"localhost by its name":                  {method: "POST", path: "/undrain", host: "localhost:16653", status: 200},
		"loopback as a mapped address":           {method: "POST", path: "/undrain", remote: "[::ffff:127.0.0.1]:4711", status: 200},
		"loopback without a port":                {method: "POST", path: "/undrain", host: "[::1]", status: 200},
		"loopback of the other kind":             {method: "POST", path: "/undrain", remote: "[::1]:4711", host: "[::1]:16653", status: 200},
		"a way around the path of the keys":      {path: "/v1/keys/../keys", want: "hush", status: 401},
		"a way around through what is open":      {path: "/v1/ring/../../drain", want: "hush", status: 401},
		"profiles":                               {path: "/debug/pprof/heap", loopbackOnly: true, status: 200},
		"profiles without the token":             {path: "/debug/pprof/heap", loopbackOnly: true, want: "hush", status: 401},
		"profiles with it":                       {path: "/debug/pprof/heap", loopbackOnly: true, want: "hush", token: "hush", status: 200},
		"profiles by a name bent to loopback":    {path: "/debug/pprof/heap", loopbackOnly: true, want: "hush", token: "hush", host: "evil.com", status: 403, why: host},
		"profiles from outside":                  {path: "/debug/pprof/heap", loopbackOnly: true, want: "hush", token: "hush", remote: pod, status: 403, why: host},
	} {
		t.Run(name, func(t *testing.T) { c.check(t) })
	}
}

func (c caller) check(t *testing.T) {
	metrics := NewMetrics(prometheus.NewRegistry())
	guard := Guard{
		Name: "admin", Token: func() string { return c.want }, DrainPath: "/drain", DrainOpen: c.open, DrainToken: c.drain,
		Probes: []string{"/readyz", "/metrics"}, Open: []string{"/", "/v1/ring"}, Shells: []string{"/"},
		TLS: c.tls, Insecure: c.insecure, LoopbackOnly: c.loopbackOnly, Metrics: metrics,
	}
	through := false
	handler := guard.Protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { through = true }))
	if c.method == "" {
		c.method = http.MethodGet
	}
	r := httptest.NewRequest(c.method, c.path, http.NoBody)
	r.RemoteAddr, r.Host = "127.0.0.1:4711", "127.0.0.1:16653"
	if c.remote != "" {
		r.RemoteAddr = c.remote
	}
	if c.host != "" {
		r.Host = c.host
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	for k, v := range c.header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != c.status || through != (c.status == http.StatusOK) {
		t.Fatalf("status %d (let through: %v), want %d: %s", w.Code, through, c.status, w.Body)
	}
	if !strings.Contains(w.Body.String(), c.says) {
		t.Errorf("the body is %q, want %q in it", w.Body, c.says)
	}
	for _, secret := range []string{c.want, c.drain, c.token} {
		if secret != "" && strings.Contains(w.Body.String(), `"`+secret+`"`) {
			t.Errorf("the body contains a token: %q", w.Body)
		}
	}
	want := 1.0
	if through {
		want = 0
	}
	if got := testutil.ToFloat64(metrics.rejected.WithLabelValues("admin", cmp.Or(c.why, token))); got != want {
		t.Errorf("%v were counted as rejected, want %v", got, want)
	}
}

// A token that no header can carry would keep everybody out.
func TestTokensThatNobodyCanShow(t *testing.T) {
	for _, token := range []string{"0123456789abcdef\n0123456789abcdef", "0123456789\x00abcdef", "0123456789abcdef\x7f", "\x010123456789abcdef", "0123456789\tabcdef"} {
		if err := CheckToken(token); err == nil || strings.Contains(err.Error(), "0123456789") {
			t.Errorf("the error about %q is %v", token, err)
		}
	}
	for _, token := range []string{"0123456789abcdef", "0123456789 abcdef", "pässword-pässword"} {
		if err := CheckToken(token); err != nil {
			t.Errorf("%q: %v", token, err)
		}
	}
}

// What a page may tell and offer depends on who asks: the token names keys, and allows every act; without one in the settings, loopback allows it.
func TestRightsOfACaller(t *testing.T) {
	const pod = "10.0.0.7:4711"
	for name, c := range map[string]struct {
		want, token, remote, host string
		shows, mayAct             bool
	}{
		"with the token":                      {"hush", "hush", pod, "", true, true},
		"without it, on loopback":             {"hush", "", "127.0.0.1:4711", "", false, false},
		"where there is none, on loopback":    {"", "", "127.0.0.1:4711", "", false, true},
		"where there is none, from outside":   {"", "", pod, "", false, false},
		"an empty one where there is none":    {"", "", pod, "localhost", false, false},
		"a wrong one for what needs none":     {"hush", "hus", "127.0.0.1:4711", "", false, false},
		"on loopback, by a name of their own": {"hush", "hush", "127.0.0.1:4711", "router.example", true, true},
	} {
		guard := Guard{Name: "admin", Token: func() string { return c.want }, Open: []string{"/"}, Insecure: true, Metrics: NewMetrics(prometheus.NewRegistry())}
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr, r.Host = c.remote, "127.0.0.1:16653"
		if c.host != "" {
			r.Host = c.host
		}
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		answered := false
		guard.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			answered = true
			if ShowsToken(r) != c.shows || MayAct(r) != c.mayAct {
				t.Errorf("%s: shows the token %v, may act %v", name, ShowsToken(r), MayAct(r))
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
		if !answered {
			t.Errorf("%s: refused", name)
		}
	}
	if r := httptest.NewRequest(http.MethodGet, "/", http.NoBody); MayAct(r) || ShowsToken(r) || Ending(r) != nil {
		t.Error("a request that no guard has seen has rights")
	}
}

// A page that everybody may read by TLS gives no rights to a browser that took another name for loopback.
func TestRightsByANameBentToLoopback(t *testing.T) {
	guard := Guard{Name: "admin", Token: NoToken, Shells: []string{"/"}, TLS: true, Metrics: NewMetrics(prometheus.NewRegistry())}
	for name, want := range map[string]bool{"evil.example:16653": false, "localhost:16653": true, "[::1]": true} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr, r.Host = "127.0.0.1:4711", name
		answered := false
		guard.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if answered = true; MayAct(r) != want {
				t.Errorf("%s: may act %v", name, !want)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
		if !answered {
			t.Errorf("%s: refused", name)
		}
	}
}

// A request whose answer goes on has no rights by a token that was replaced, nor because there was none.
func TestRightsAreThoseOfThePresentToken(t *testing.T) {
	for _, before := range []string{"hush", ""} {
		now := before
		guard := Guard{Name: "admin", Token: func() string { return now }, Metrics: NewMetrics(prometheus.NewRegistry())}
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr, r.Host = "127.0.0.1:4711", "127.0.0.1:16653"
		r.Header.Set("Authorization", "Bearer hush")
		guard.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if !MayAct(r) {
				t.Errorf("with the token %q the request has no rights", before)
			}
			if now = "another"; MayAct(r) || ShowsToken(r) {
				t.Errorf("the request of the token %q has rights still", before)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
		if now == before {
			t.Errorf("with the token %q the request is refused", before)
		}
	}
}
