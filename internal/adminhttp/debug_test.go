package adminhttp

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// A profile of no seconds takes the usual time, which the pause after it is as long as.
func TestAProfileOfNoSecondsTakesTheUsualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turn profileTurn
		asked := ""
		h := turn.bounded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = r.URL.Query().Get("seconds") }), profileMax, profileMax)
		ask := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/?seconds=0", nil))
			return w
		}
		if w := ask(); w.Code != http.StatusOK || asked != "30" {
			t.Errorf("%d, a profile of %q seconds, want 30", w.Code, asked)
		}
		time.Sleep(profileMax - time.Second)
		if w := ask(); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "5" {
			t.Errorf("%d in the pause, with %v", w.Code, w.Header())
		}
		time.Sleep(2 * time.Second)
	})
}
