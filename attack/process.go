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

// Fields of /proc/PID/stat behind the name: ticks in user and system mode, of the process and
// of its children that have ended.
const (
	userTicks = 11 + iota
	systemTicks
	childrenUserTicks
	childrenSystemTicks
)

// cpuOf returns the processor time that a process has used.
func cpuOf(pid int) (time.Duration, error) { return ticksOf(pid, userTicks, systemTicks) }

// ownCPU returns that of this process and of its children that have ended.
func ownCPU() time.Duration {
	used, err := ticksOf(os.Getpid(), userTicks, systemTicks, childrenUserTicks, childrenSystemTicks)
	if err != nil {
		return 0
	}
	return used
}

func ticksOf(pid int, which ...int) (sum time.Duration, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(text, []byte(") ")) // the name before may have spaces
	fields := strings.Fields(string(rest))
	for _, field := range which {
		if len(fields) <= field {
			return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
		}
		ticks, err := strconv.Atoi(fields[field])
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	return sum, nil
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

// residentOf returns the memory of a process in bytes.
func residentOf(pid int) (int64, error) {
	kib, err := numberIn(pid, "status", "VmRSS")
	return kib << 10, err
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
