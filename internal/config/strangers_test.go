package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/router/internal/config"
)

// within fails the test if f takes long. The bound is far above the time on a slow machine, and far below that of the attack.
func within(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
		return nil
	}
}

func TestTokensAreLongEnough(t *testing.T) {
	for _, key := range []string{"token", "drain_token"} {
		for length, good := range map[int]bool{1: false, 15: false, 16: true} {
			token := strings.Repeat("x", length)
			_, err := config.Load(config.Sources{File: yamlFile(t, fmt.Sprintf("admin: {%s: %q}", key, token)), Environ: enough})
			if good != (err == nil) {
				t.Errorf("admin.%s of %d bytes: %v", key, length, err)
			}
			if !good && (!strings.Contains(err.Error(), fmt.Sprintf("admin.%s = (hidden), want 16 bytes or more", key)) || length > 1 && strings.Contains(err.Error(), token)) {
				t.Errorf("admin.%s of %d bytes: %v", key, length, err)
			}
		}
	}
}

// A file with a secret is refused if other users may write to it.
func TestSecretsOfOthersAreRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no such permissions")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte("a-token-of-some-length\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link") // as in a volume of Kubernetes
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for mode, good := range map[os.FileMode]bool{0o600: true, 0o440: true, 0o644: true, 0o660: false, 0o666: false, 0o602: false} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(config.Sources{Environ: with("RINGFENCE__ADMIN__DRAIN_TOKEN_FILE=" + link)})
		if good != (err == nil) || !good && !strings.Contains(err.Error(), "others than its owner may write to it: chmod go-w") {
			t.Errorf("permissions %#o: %v", mode, err)
		}
	}
}

func TestURLsWithUsersAreRefusedAndNotShown(t *testing.T) {
	const secret = "s3cret-of-somebody"
	for _, file := range []string{
		"pulsar: {url: 'pulsar://me:" + secret + "@broker:6650'}",
		"pulsar: {url: 'pulsar://a:6650,me:" + secret + "@broker:6650'}",
		"pulsar: {url: 'pulsar://" + secret + "@broker:6650/'}",
		"pulsar: {url: 'http://me:" + secret + "@broker:6650'}",
		"pulsar: {url: 'pulsar://me:" + secret + "@broker:6650', tls: {ca_file: /ca}}",
		"pulsar: {admin_url: 'http://me:" + secret + "@broker:8080'}",
		"pulsar: {oauth2: {issuer_url: 'https://me:" + secret + "@issuer', key_file: /k}}",
	} {
		from := config.Sources{File: yamlFile(t, file), Environ: enough}
		_, err := config.Load(from)
		if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "(hidden)@") {
			t.Errorf("%s: %v", file, err)
		}
		read, err := config.Read(from) // used by commands that do not need valid settings
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range read.Settings() {
			if strings.Contains(s.Value, secret) {
				t.Errorf("%s is shown as %s", s.Key, s.Value)
			}
		}
	}
}

// Variables of a Kubernetes Service whose name looks like a setting are not settings; all other variables are.
func TestServicesOfKubernetes(t *testing.T) {
	service := []string{
		"RINGFENCE__X_SERVICE_HOST=10.0.0.1", "RINGFENCE__X_SERVICE_PORT=80", "RINGFENCE__X_SERVICE_PORT_HTTP=80", "RINGFENCE__X_PORT=tcp://10.0.0.1:80",
		"RINGFENCE__X_PORT_80_TCP=tcp://10.0.0.1:80", "RINGFENCE__X_PORT_80_TCP_PROTO=tcp", "RINGFENCE__X_PORT_80_TCP_PORT=80", "RINGFENCE__X_PORT_80_TCP_ADDR=10.0.0.1",
		"RINGFENCE__X_SERVICE_SERVICE_HOST=10.0.0.2", "RINGFENCE__X_SERVICE_SERVICE_PORT=81", "RINGFENCE__X_SERVICE_PORT_81_UDP=udp://10.0.0.2:81", // ringfence--x-service
		"RINGFENCE__NODE__NAME_SERVICE_HOST=10.0.0.3", "RINGFENCE__NODE__NAME_SERVICE_PORT=82", "RINGFENCE__NODE__NAME_PORT=tcp://10.0.0.3:82",
	}
	loaded := load(t, config.Sources{Environ: with(service...)})
	if loaded.Node.Name != "router-0" {
		t.Errorf("the name is %q", loaded.Node.Name)
	}
	if got := config.Services(with(service...)); len(got) != len(service) {
		t.Errorf("%d variables of Services, want %d: %q", len(got), len(service), got)
	}
	for _, stray := range [][]string{
		{"RINGFENCE__X_PORT=80"}, // not of a Service, since there is no host
		{"RINGFENCE__X_SERVICE_HOST=10.0.0.1", "RINGFENCE__X_PORT=80"},
		append([]string{"RINGFENCE__X_PORTS=1"}, service...),
		append([]string{"RINGFENCE__XY_PORT=1"}, service...),
	} {
		if _, err := config.Load(config.Sources{Environ: with(stray...)}); err == nil || !strings.Contains(err.Error(), "unknown key x") {
			t.Errorf("%q: %v, want an error about an unknown key", stray, err)
		}
	}
	if loaded, err := config.Load(config.Sources{Environ: with("RINGFENCE__NODE__NAME_SERVICE_PORT=82")}); err == nil {
		t.Errorf("a port without a host is taken for that of a Service: %+v", loaded.Node)
	}
}

// Files that would take long to read are refused at once.
func TestFilesAreBounded(t *testing.T) {
	flow := func(depth int) string { return strings.Repeat("{a: ", depth) + "1" + strings.Repeat("}", depth) }
	var block, unknown, anchors strings.Builder
	for i := range 200 {
		fmt.Fprintf(&block, "%sa:\n", strings.Repeat(" ", i))
	}
	for i := range 15000 {
		fmt.Fprintf(&unknown, "mailbox.%d: 1\n", i)
	}
	anchors.WriteString("a0: &a0 {x: 1}\n")
	for i := 1; i < 9000; i++ {
		fmt.Fprintf(&anchors, "a%d: &a%d {x: *a%d}\n", i, i, i-1)
	}
	for name, test := range map[string]struct{ content, want string }{
		"mappings in flow":       {flow(9000), "router.yaml:1: sections are nested more than 8 deep"},
		"lists in flow":          {"a: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000), "unknown key a"},
		"mappings in blocks":     {block.String(), "router.yaml:9: sections are nested more than 8 deep"},
		"lists in a line":        {strings.Repeat("- ", 9000) + "a", "the file has no sections"},
		"anchors in anchors":     {anchors.String(), "and 8500 more"},
		"an anchor in itself":    {"log: &a {level: *a}", "log.level is an alias"},
		"brackets in text":       {"log: {level: '" + strings.Repeat("[", 100) + "'}", `log.level = "[[[`},
		"lists in a list":        {"pulsar: {topics: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}", "pulsar.topics has a list"},
		"many unknown keys":      {unknown.String(), "and 14500 more"},
		"a long key":             {"? " + strings.Repeat("k", 1<<17) + "\n: 1", "unknown key kkkk"},
		"a large file":           {strings.Repeat("# nothing\n", 1<<15), "has more than 262144 bytes"},
		"as deep as settings go": {"pulsar: {tls: {name: [a]}}", "pulsar.tls.name is a list, want one value"},
	} {
		t.Run(name, func(t *testing.T) {
			err := within(t, func() error {
				_, err := config.Load(config.Sources{File: yamlFile(t, test.content), Environ: enough})
				return err
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %.300v, want %q in it", err, test.want)
			}
		})
	}
}

func TestFilesWithoutAnEnd(t *testing.T) {
	err := within(t, func() error {
		_, err := config.Load(config.Sources{File: "/dev/zero", Environ: enough})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "has more than 262144 bytes") {
		t.Errorf("/dev/zero: %v", err)
	}
}

// A pipe is read to its end, as that of a shell's <(command).
func TestSettingsFromAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte("mailbox: {depth_max: 7}\n"), 0o600) }()
	loaded := load(t, config.Sources{File: pipe, Environ: enough})
	if err := <-written; err != nil || loaded.Mailbox.DepthMax != 7 {
		t.Errorf("depth_max = %d (%v), want 7", loaded.Mailbox.DepthMax, err)
	}
}
