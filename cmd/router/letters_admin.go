package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/deadletter"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/telemetry"
)

// Bounds of the process that answers a question about dead letters.
const (
	lettersAnswerMax  = 8 << 20
	answerMemoryLimit = "256MiB" // GOMEMLIMIT, a soft limit
	lastWordsMax      = 2 << 10
	questionBytesMax  = 1 << 20
)

// Why a router shows no dead letters.
const (
	noLettersOff    = "admin.dead_letters is false: this router shows no dead letters; use router deadletters"
	noLettersMemory = "the broker is in memory, and keeps no dead letters"
)

// letterPages returns the pages about the group's dead letters.
func letterPages(cfg config.Config, b broker, registry *prometheus.Registry, log *slog.Logger) (map[string]http.Handler, error) {
	revealed := cfg.Log.Keys == telemetry.KeysRevealed
	e := deadletter.Endpoint{
		Node: cfg.Node.Name, Metrics: deadletter.NewMetrics(registry), Log: log,
		Named: func(r *http.Request) bool { return listen.ShowsToken(r) || revealed && listen.MayAct(r) },
		Reads: listen.ShowsToken,
	}
	switch {
	case !cfg.Admin.DeadLetters:
		e.None = noLettersOff
	case !b.letters:
		e.None = noLettersMemory
	default:
		executable, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("admin.dead_letters: %w", err)
		}
		environ := append(config.WithoutSettings(os.Environ()), cfg.Environ()...)
		environ = append(environ, "GOMEMLIMIT="+answerMemoryLimit)
		e.Ask = func(ctx context.Context, q deadletter.Question) (deadletter.Answer, error) {
			return askProcess(ctx, executable, environ, q)
		}
	}
	return e.Handlers(), nil
}

// askProcess starts this binary as a process that answers one question. The question goes to its standard input: arguments
// can be seen by other users of the machine.
func askProcess(ctx context.Context, executable string, environ []string, q deadletter.Question) (a deadletter.Answer, err error) {
	question, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	answer, words := &bounded{most: lettersAnswerMax}, &bounded{most: lastWordsMax}
	cmd := exec.CommandContext(ctx, executable, "deadletters", answerRole)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = environ, bytes.NewReader(question), answer, words, time.Second
	if err := cmd.Start(); err != nil {
		return a, fmt.Errorf("the process that reads dead letters: %w", err)
	}
	killFirst(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		return a, fmt.Errorf("the process that reads dead letters: %w; its output: %s", err, untrusted.Short(strings.TrimSpace(words.String()), lastWordsMax))
	}
	if answer.cut {
		return a, fmt.Errorf("the answer has more than %d bytes", lettersAnswerMax)
	}
	err = json.Unmarshal(answer.Bytes(), &a)
	return a, err
}

// killFirst makes the kernel kill the process pid before any other if the machine or container runs out of memory, on
// Linux only.
func killFirst(pid int) {
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("1000"), 0o600) // elsewhere there is no such file
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	bytes.Buffer
	most int
	cut  bool
}

// Write implements io.Writer.
func (b *bounded) Write(text []byte) (int, error) {
	keep := min(len(text), b.most-b.Len())
	b.cut = b.cut || keep < len(text)
	b.Buffer.Write(text[:keep])
	return len(text), nil
}

// answerRole is the hidden command of the process that answers.
const answerRole = "answer"

// lettersAnswerCommand answers one question of a router about its group's dead letters. The settings come from the environment.
func lettersAnswerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: answerRole, Hidden: true, Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var q deadletter.Question
		text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), questionBytesMax))
		if err == nil {
			err = json.Unmarshal(text, &q)
		}
		if err != nil {
			return usageError{fmt.Errorf("the question: %w", err)}
		}
		loaded, err := load(cmd, "")
		if err != nil {
			return err
		}
		cfg, err := letterConfig(loaded.Config)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), deadletter.AskMax) // also if the router has gone
		defer cancel()
		client, closeAll, err := lettersClient(ctx, loaded.Config, &cfg)
		if _, wrong := errors.AsType[usageError](err); wrong {
			return err
		}
		a := deadletter.Answer{}
		if err != nil {
			a.Error, a.Status = untrusted.Short(err.Error(), lastWordsMax), http.StatusBadGateway
		} else {
			defer closeAll()
			a = deadletter.New(cfg.Asked(), client).Answer(ctx, q)
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(a)
	}}
	config.AddFlags(cmd.Flags())
	return cmd
}
