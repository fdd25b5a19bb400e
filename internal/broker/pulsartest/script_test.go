//go:build linux

package pulsartest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestStartingBrokersAreAlive: tools/pulsar.sh takes no broker for dead that starts a program in its place, as scripts do that end with exec. A process has no command line
// for a moment then, and a restart was given up with "the broker did not become healthy again".
func TestStartingBrokersAreAlive(t *testing.T) {
	script, err := os.ReadFile("../../../tools/pulsar.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(script), "\nprocess_alive() {\n")
	body, _, ended := strings.Cut(rest, "\n}\n")
	if !found || !ended {
		t.Fatal("tools/pulsar.sh has no process_alive")
	}
	handle := t.TempDir()
	again := filepath.Join(handle, "again.sh")
	if err := os.WriteFile(again, []byte("[ \"$1\" = 0 ] && exec -a \"$0 ends\" sleep 60\nexec bash \"$0\" $(($1 - 1))\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// One look in ten fails if one reading of the command line decides.
	const looks = `
handle=$1
bash "$2" 400 &
echo "$!" >"$handle/pid"
dead=0 n=0
while ! grep -q ends "/proc/$!/cmdline" 2>/dev/null; do
	n=$((n + 1))
	process_alive "$handle" || dead=$((dead + 1))
done
kill -KILL "$!"
for i in $(seq 1 100); do
	process_alive "$handle" || break
	sleep 0.01
done
process_alive "$handle" && echo "alive after its death"
echo "$n looks, $dead times dead"
`
	out, err := exec.CommandContext(t.Context(), "bash", "-c", "process_alive() {\n"+body+"\n}\n"+looks, "bash", handle, again).CombinedOutput()
	if err != nil || !strings.Contains(string(out), " looks, 0 times dead") || strings.Contains(string(out), "alive after") || strings.HasPrefix(string(out), "0 looks") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestABrokerThatTakesLongerSaysHowToWait: tools/pulsar.sh names the setting when a broker that lives is not healthy in time.
func TestABrokerThatTakesLongerSaysHowToWait(t *testing.T) {
	script, err := os.ReadFile("../../../tools/pulsar.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(script), "\nawait_health() {\n")
	body, _, ended := strings.Cut(rest, "\n}\n")
	if !found || !ended {
		t.Fatal("tools/pulsar.sh has no await_health")
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "say() { echo \"$*\"; }\nhealthy() { return 1; }\nbroker_alive() { return 0; }\nawait_health() {\n"+body+"\n}\nawait_health handle host 1 || echo \"gives $?\"")
	cmd.Env = append(os.Environ(), "RINGFENCE_PULSAR_WAIT=0")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "it had 0 s: RINGFENCE_PULSAR_WAIT gives it more, on a busy machine\ngives 1\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
