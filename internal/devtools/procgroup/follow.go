package procgroup

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	// FolderPrefix begins the name of every folder that a parent shares with its children.
	FolderPrefix = "ringfence-"

	// folderEnv names that folder to the children.
	folderEnv = "RINGFENCE_DEMO_FOLDER"

	// farewell is the last line of a parent that keeps running.
	farewell = "bye"
)

// FollowParent calls exit as soon as standard input ends, which happens when the parent closes
// it or dies for any reason. If the parent has died unexpectedly, the folder is removed first.
// It returns at once.
func FollowParent(stdin io.Reader, exit func(code int)) {
	var watch sync.WaitGroup
	watch.Go(func() { // outlives this call on purpose: it ends with the process
		last := ""
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			last = lines.Text()
		}
		if folder := os.Getenv(folderEnv); last != farewell && strings.HasPrefix(filepath.Base(folder), FolderPrefix) {
			_ = os.RemoveAll(folder) //nolint:gosec // a folder with our prefix; an error has no reader
		}
		exit(0)
	})
}
