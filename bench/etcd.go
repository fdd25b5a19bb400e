package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ringfence/router/internal/testing/eventually"
)

// buildEtcd builds an etcd from its sources, unless that was done before, and returns its binary.
func buildEtcd(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "tools/tool.sh", "etcd")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build etcd: %w (run the bench in the root of the repository, or leave etcd out: --modes %s,%s,%s)", err, modeReserve, modeRedis, modeRedsync)
	}
	return strings.TrimSpace(string(out)), nil
}

// etcdStartMax bounds the start of an etcd.
const etcdStartMax = 20 * time.Second

// startEtcd starts an etcd of one member on free loopback ports, in its default settings: each write is on the disk before it is answered,
// which a lock that survives its server cannot do without.
func startEtcd(ctx context.Context, c *cluster) (address string, err error) {
	free, err := freeAddresses(2) // for clients, and for the peers that it does not have
	if err != nil {
		return "", err
	}
	address, client, peer := free[0], "http://"+free[0], "http://"+free[1]
	if _, err := c.launch(ctx, roleEtcd, c.options.etcd, "--name", "one", "--data-dir", filepath.Join(c.dir, "etcd"), "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one="+peer); err != nil {
		return "", err
	}
	asker, err := etcdClient(address)
	if err != nil {
		return "", err
	}
	defer func() { _ = asker.Close() }() // it only asked
	err = eventually.Ask(ctx, etcdStartMax, "etcd answers", func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := asker.Get(ctx, "nothing")
		return err
	})
	if err != nil {
		return "", errors.Join(fmt.Errorf("etcd at %s: %w", address, err), c.lastWords())
	}
	return address, nil
}

func etcdClient(address string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: etcdStartMax, Logger: zap.NewNop()})
}
