package adminhttp

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/ringfence/router/internal/telemetry"
)

// levelBytesMax is the longest level that a request may name.
const levelBytesMax = 64

// LevelPages returns the pages for [Options.Pages] that show the level of a log and change it,
// until the process ends: GET and PUT /log/level, whose body is debug, info, warn or error. log
// gets a line for every change.
func LevelPages(level *slog.LevelVar, log *slog.Logger) map[string]http.Handler {
	return map[string]http.Handler{
		"GET /log/level": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, nameOf(level)+"\n")
		}),
		"PUT /log/level": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, levelBytesMax))
			if err != nil {
				answer(w, http.StatusBadRequest, "want debug, info, warn or error as the body\n")
				return
			}
			to, err := telemetry.ParseLevel(strings.ToLower(strings.TrimSpace(string(body))))
			if err != nil {
				answer(w, http.StatusBadRequest, fmt.Sprintf("%v\n", err))
				return
			}
			before := nameOf(level)
			level.Set(to)
			log.Warn("log level changed", "level_before", before, "level_now", nameOf(level), "remote", r.RemoteAddr)
			answer(w, http.StatusOK, nameOf(level)+"\n")
		}),
	}
}

func nameOf(level *slog.LevelVar) string { return strings.ToLower(level.Level().String()) }
