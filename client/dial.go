package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

func (r *runner) dialRouter(more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///router", append(more,
		r.credentials(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := r.dial(ctx, r.endpoint.network, r.endpoint.address)
			if errors.Is(err, fs.ErrPermission) {
				err = fmt.Errorf("%w: the router's app.socket_mode and app.socket_owner set the permissions of its socket", err)
			}
			return conn, err
		}),
		grpc.WithDisableRetry(), // Run reconnects by itself, so gRPC need not keep sent frames
		grpc.WithReadBufferSize(socketBufferSize),
		grpc.WithWriteBufferSize(socketBufferSize),
		grpc.WithInitialWindowSize(windowSize),
		grpc.WithInitialConnWindowSize(windowSize),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(frameMax)),
	)...)
}

// credentials returns TLS credentials if WithTLS is set. Without it the connection does not
// leave this machine.
func (r *runner) credentials() grpc.DialOption {
	if r.tls == nil {
		return grpc.WithTransportCredentials(insecure.NewCredentials())
	}
	config := r.tls.Clone()
	if host, _, err := net.SplitHostPort(r.endpoint.address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(config))
}
