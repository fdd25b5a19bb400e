//go:build !linux

package main

import (
	"context"
	"errors"
)

var errLinux = errors.New("needs Linux: its members live in network namespaces")

type childError struct{ code int }

func (*childError) Error() string { return "" }

func runOutside(context.Context, []string) error        { return errLinux }
func runInside(context.Context, string, []string) error { return errLinux }
func runApp(context.Context, []string) error            { return errLinux }
func runHolder(context.Context, []string) error         { return errLinux }
