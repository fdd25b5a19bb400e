package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/netx/mtls"
)

// through is the way of a command to app.listen of a router, as an SDK goes it: endpoint, token and certificates.
type through struct {
	endpoint  string
	tokenFile string
	files     mtls.Files
	tlsName   string
}

// addTo adds the flags to a command.
func (t *through) addTo(cmd *cobra.Command, which string) {
	f := cmd.Flags()
	f.StringVar(&t.endpoint, "endpoint", "", which+" (default $"+client.EndpointEnv+" or "+client.DefaultEndpoint+")")
	f.StringVar(&t.tokenFile, "token-file", "", "file with the router's app token (default $"+client.TokenFileEnv+")")
	f.StringVar(&t.files.CertFile, "cert-file", "", "file with the certificate that is shown to a router with app.tls, in PEM")
	f.StringVar(&t.files.KeyFile, "key-file", "", "file with the private key of --cert-file, in PEM")
	f.StringVar(&t.files.CAFile, "ca-file", "", "file with the CAs that sign the router's certificate, with --cert-file (default: those of the system)")
	f.StringVar(&t.tlsName, "tls-name", "", "name in the router's certificate, with --cert-file (default: the host of --endpoint)")
}

// dial returns the calls of the router that the flags name. Close it after the last one.
func (t *through) dial(cmd *cobra.Command) (*client.Lane, error) {
	options, err := t.options(cmd)
	if err != nil {
		return nil, err
	}
	lane, err := client.Dial(t.endpoint, options...)
	if err != nil {
		return nil, usageError{err}
	}
	return lane, nil
}

// options returns the options of an SDK that the flags stand for.
func (t *through) options(cmd *cobra.Command) ([]client.Option, error) {
	var options []client.Option
	if cmd.Flags().Changed("token-file") {
		options = append(options, client.WithTokenFile(t.tokenFile))
	}
	config, err := t.tls()
	if err != nil {
		return nil, usageError{err}
	}
	if config != nil {
		options = append(options, client.WithTLS(config))
	}
	return options, nil
}

// callText tells an error of a call or a reservation: its outcome, code and text, advice for a router to which no connection can be
// made, and when to do it again.
func callText(outcome string, err *client.CallError, again string) string {
	text := outcome
	if err.Code != "" {
		text += " (" + err.Code + ")"
	}
	if err.Text != "" {
		text += ": " + err.Text
	}
	if err.Code == client.CodeUnreachable && err.Err != nil { // else a router says that it cannot reach the owner of the key
		text += "; check that the router runs and that this is its app.listen, or use --endpoint"
	}
	if err.RetryAfter > 0 {
		text += fmt.Sprintf("; %s after %v", again, err.RetryAfter)
	}
	return text
}

// tls returns the TLS configuration that the flags stand for, nil for a connection in the clear. The files are read again at each connection.
func (t *through) tls() (*tls.Config, error) {
	if t.files.CertFile == "" || t.files.KeyFile == "" {
		if t.files != (mtls.Files{}) || t.tlsName != "" {
			return nil, errors.New("--cert-file and --key-file go together, and --ca-file and --tls-name need both: a router with app.tls requires a certificate")
		}
		return nil, nil //nolint:nilnil // no TLS
	}
	store, err := mtls.Open("app", t.files, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("--cert-file, --key-file, --ca-file: %w", err)
	}
	if t.tlsName == "" {
		return store.ClientByHost(), nil
	}
	return store.Client(t.tlsName), nil
}
