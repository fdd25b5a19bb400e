package doors

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Guard decides which requests an admin page answers. What is open may be read by
// everybody who reaches it: probes and metrics are asked for by machines that have no
// secret. Everything else is for callers with the token or, without one in the
// settings, for callers on loopback. So a page that nobody has thought of is closed.
type Guard struct {
	Token func() string // "" is none. Called for each request
	// Open lists the paths that may be read by everybody; one that ends in a slash
	// stands for all below it too, but for the root.
	Open []string

	DrainPath string // the verb that hooks ask for
	DrainOpen bool   // it needs no token
	// DrainToken is good for DrainPath alone; "" is none: the hooks of Kubernetes have it
	// in their headers, where everybody sees it who may read pods.
	DrainToken string

	Metrics *Metrics
}

// Protect returns handler behind the guard.
func (g Guard) Protect(handler http.Handler) http.Handler {
	refused := g.Metrics.turnedAway.WithLabelValues("admin", token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, why := g.judge(r)
		if status == http.StatusOK {
			handler.ServeHTTP(w, r)
			return
		}
		refused.Inc()
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="ringfence admin"`)
		}
		http.Error(w, why, status)
	})
}

func (g Guard) judge(r *http.Request) (status int, why string) {
	drain := r.URL.Path == g.DrainPath
	if g.mayRead(r) {
		return http.StatusOK, ""
	}
	if crossSite(r) {
		return http.StatusForbidden, "a page of another site asks for this"
	}
	if drain && g.DrainOpen {
		return http.StatusOK, ""
	}
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	want := g.Token()
	switch {
	case same(given, want), drain && same(given, g.DrainToken):
		return http.StatusOK, ""
	case want == "" && fromLoopback(r):
		return http.StatusOK, ""
	case want == "" && (!drain || g.DrainToken == ""):
		return http.StatusForbidden, "without admin.token this is for callers on loopback only"
	case given != "":
		return http.StatusUnauthorized, "wrong token"
	}
	return http.StatusUnauthorized, "this needs the header Authorization: Bearer TOKEN, with the token of admin.token"
}

// mayRead reports whether a request reads what is open.
func (g Guard) mayRead(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	asked := r.URL.Path
	return slices.ContainsFunc(g.Open, func(open string) bool {
		below := open != "/" && strings.HasSuffix(open, "/") && strings.HasPrefix(asked, open) && !strings.Contains(asked, "/.")
		return asked == open || below
	})
}

// same compares in a time that tells nothing of either. An empty secret is nobody's.
func same(given, want string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && want != ""
}

// fromLoopback reports whether a request comes from this machine and means it: a name
// that somebody else has bent to 127.0.0.1 is what a browser is lured with.
func fromLoopback(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !remote.Addr().Unmap().IsLoopback() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err = netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost"
}

// crossSite reports whether a browser says that the page of another site asks.
func crossSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none"
}
