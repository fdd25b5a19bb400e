package listen

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// TokenBytesMin is the minimum length of a token that callers must show. A caller of the
// listener can try as many tokens as connections allow.
const TokenBytesMin = 16

// CheckToken returns the fault of a token, without showing it.
func CheckToken(token string) error {
	if len(token) < TokenBytesMin {
		return fmt.Errorf("the token has %d bytes, want %d or more: head -c 24 /dev/urandom | base64 makes one", len(token), TokenBytesMin)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r == 0x7f }) { // as of two lines, or of raw random bytes
		return errors.New("the token has a line end or another control character, which no caller can send in a header: head -c 24 /dev/urandom | base64 makes one")
	}
	return nil
}

// Guard decides which requests an HTTP listener answers. Probes and metrics are open to all
// callers, because machines without a secret request them. Everything else needs the token or,
// if the settings have none, a caller on loopback; so a forgotten page is closed. Without TLS,
// none of it goes to another machine.
//
// Changes need POST (or PUT), and [http.CrossOriginProtection] keeps pages of other sites from
// them. The one exception is DrainPath: hooks of Kubernetes can only GET.
type Guard struct {
	Name    string
	Setting string        // that holds the token, as refusals name it; "": admin.token
	Token   func() string // "" is none. Called for each request

	Probes []string // paths that everybody may read, also in the clear
	// Open lists the paths that may be read without the token: on loopback if the
	// listener is in the clear, and from everywhere if Insecure.
	Open []string
	// Shells lists the paths that have no data at all, as a page whose script asks for them with
	// the token: with TLS everybody may read them. A browser cannot show the token by itself.
	Shells []string

	TLS      bool // the listener has it
	Insecure bool // in the clear, other machines are answered as if the listener had TLS
	// Opening tells those that are refused for the lack of both what to do; "": set those of the admin page.
	Opening string
	// LoopbackOnly makes every request name loopback, with or without a token.
	LoopbackOnly bool

	DrainPath string // the verb that hooks GET; empty: none
	DrainOpen bool   // it needs no token
	// DrainToken permits DrainPath only; "" is none: the hooks of Kubernetes send it in a
	// header that every reader of pods can see.
	DrainToken string

	Metrics *Metrics
}

// refusal is the answer to a request that is refused.
type refusal struct {
	status    int
	why, says string // why as the metric has it
}

// Protect returns handler behind the guard.
func (g Guard) Protect(handler http.Handler) http.Handler {
	for _, why := range []string{token, origin, host, plain} {
		g.Metrics.rejected.WithLabelValues(g.Name, why) // seen from the first time on
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if read(r) && slices.Contains(g.Probes, r.URL.Path) {
			handler.ServeHTTP(w, r)
			return
		}
		if no := g.judge(r); no != nil {
			g.Metrics.rejected.WithLabelValues(g.Name, no.why).Inc()
			if no.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="ringfence `+g.Name+`"`)
			}
			http.Error(w, no.says, no.status)
			return
		}
		keep(r.Context())
		handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, g.Token)))
	})
}

// tokenKey is the key of [Guard.Token] in the context of a request that has passed the guard.
type tokenKey struct{}

// ShowsToken reports whether a request, as [Guard.Protect] hands it on, shows the present token: a page may
// show less to other callers. A stream without an end must check again, since the token may be replaced.
func ShowsToken(r *http.Request) bool {
	want, _ := r.Context().Value(tokenKey{}).(func() string)
	return want != nil && same(bearerToken(r), want())
}

// MayAct reports whether the caller of a request, as [Guard.Protect] hands it on, would get
// everything that the guard protects now: with the token, or on loopback where there is none.
func MayAct(r *http.Request) bool {
	want, _ := r.Context().Value(tokenKey{}).(func() string)
	return ShowsToken(r) || want != nil && want() == "" && fromLoopback(r) && namesLoopback(r)
}

// bearerToken returns the token that a request shows, "" if it shows none.
func bearerToken(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

var crossOrigin = http.NewCrossOriginProtection()

// judge returns why a request for something else than a probe is refused, nil if it is not.
func (g Guard) judge(r *http.Request) *refusal {
	drain := g.DrainPath != "" && r.URL.Path == g.DrainPath
	loopback := fromLoopback(r)
	switch {
	case crossOrigin.Check(r) != nil, otherSite(r):
		return &refusal{http.StatusForbidden, origin, "a page of another site asks for this"}
	case drain && read(r) && fromBrowser(r):
		return &refusal{http.StatusForbidden, origin, "GET is for the hooks of Kubernetes: POST it"}
	case g.LoopbackOnly && (!loopback || !namesLoopback(r)):
		return &refusal{http.StatusForbidden, host, "only callers on loopback may use this, with localhost or an address as the host name"}
	}
	given := bearerToken(r)
	if drain && (g.DrainOpen || same(given, g.DrainToken)) {
		return nil
	}
	inTheClear := !loopback && !g.TLS && !g.Insecure
	if inTheClear && (!drain || g.DrainToken == "") {
		return &refusal{
			http.StatusForbidden, plain, "in the clear, other machines get probes, /metrics and, with its own token, /drain only: " + cmp.Or(g.Opening,
				"set admin.tls and admin.token_file, or ask on loopback (kubectl port-forward, kubectl exec), or set admin.insecure to true"),
		}
	}
	if read(r) && g.TLS && slices.Contains(g.Shells, r.URL.Path) {
		return nil
	}
	want := g.Token()
	open := read(r) && !g.TLS && slices.Contains(g.Open, r.URL.Path)
	switch {
	case inTheClear && given != "": // a drain; the token that permits more does not belong on an open network
		return &refusal{http.StatusUnauthorized, token, "wrong token: in the clear other machines need that of admin.drain_token"}
	case same(given, want):
		return nil
	case loopback && (open || want == "") && !namesLoopback(r):
		return &refusal{http.StatusForbidden, host, "without a token only callers on loopback may use this, with localhost or an address as the host name"}
	case open, want == "" && loopback:
		return nil
	case want == "" && (!drain || g.DrainToken == ""):
		return &refusal{http.StatusForbidden, token, "without " + g.setting() + " this is for callers on loopback only"}
	case given != "":
		return &refusal{http.StatusUnauthorized, token, "wrong token"}
	}
	return &refusal{http.StatusUnauthorized, token, "this needs the header Authorization: Bearer TOKEN, with the token of " + g.setting()}
}

func (g Guard) setting() string { return cmp.Or(g.Setting, "admin.token") }

// read reports whether a request only reads.
func read(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// same compares in constant time. An empty secret never matches.
func same(given, want string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && want != ""
}

// fromLoopback reports whether a request comes from this machine, or its pod.
func fromLoopback(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && remote.Addr().IsLoopback()
}

// namesLoopback reports whether a request names this machine by an address, or as localhost.
// Any other name that resolves to 127.0.0.1 may be an attack on a browser by DNS rebinding.
func namesLoopback(r *http.Request) bool {
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = r.Host
	}
	_, err = netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil || name == "localhost"
}

// otherSite reports whether a browser says that the page of another site asks, also by GET.
func otherSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none"
}

// fromBrowser reports whether a person's browser sent the request. It checks headers that pages
// cannot suppress: browsers omit Sec-Fetch-Site for http:// and Origin for images.
func fromBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" || r.Header.Get("Referer") != "" ||
		strings.HasPrefix(r.UserAgent(), "Mozilla/")
}
