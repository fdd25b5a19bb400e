package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of times in /proc/PID/stat: 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// cpuOf returns the processor time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(text, []byte(") ")) // the name before may have spaces
	fields := strings.Fields(string(rest))
	const user, system = 11, 12
	if len(fields) <= system {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	u, err := strconv.Atoi(fields[user])
	if err != nil {
		return 0, err
	}
	s, err := strconv.Atoi(fields[system])
	return time.Duration(u+s) * time.Second / ticksPerSecond, err
}

// numberIn returns the number behind a name in a file of /proc/PID.
func numberIn(pid int, file, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseInt(strings.Fields(value)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", pid, file, name)
}

// peakOf returns the most memory that a process has had, in bytes.
func peakOf(pid int) (int64, error) {
	kib, err := numberIn(pid, "status", "VmHWM")
	return kib << 10, err
}

// readBytesOf returns how many bytes a process has read by system calls.
func readBytesOf(pid int) (int64, error) { return numberIn(pid, "io", "rchar") }

// filesOf returns how many files and sockets a process has open.
func filesOf(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries), err
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
