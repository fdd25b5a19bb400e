//go:build !unix

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/client"
)

var errNoLock = errors.New("router lock is not supported on this system, which has no process groups: use client.Lane.Reserve of the Go SDK")

func lockable() error { return errNoLock }

func commandPath(string) (string, error) { return "", errNoLock }

func runLocked(*cobra.Command, *client.Lane, *lockOptions) error { return errNoLock }

func lockChildren() []*cobra.Command { return nil }
