#!/usr/bin/env bash
#
# Tests the Java SDK: unit tests, packages, the programs of README.md on the built packages alone, the generated code, and all rules of router conformance.
# What it needs goes to build/: a Maven repository (MAVEN_REPO_LOCAL for another one) and the router, unless ROUTER names one. It says little if all is well.
#
# Usage: sdk/java/test.sh    needs a JDK of 17 or later, Maven, openssl and Go

set -euo pipefail
cd "$(dirname "$0")"
mkdir -p build
export MAVEN_REPO_LOCAL=${MAVEN_REPO_LOCAL:-$PWD/build/m2}
export ROUTER=${ROUTER:-$PWD/build/router}
java=${JAVA:-java}

# maven FOLDER GOAL… : without the network if it has been complete before with these POMs.
maven() {
	local folder=$1 stamp
	shift
	stamp=build/resolved-$(cat "$folder/pom.xml" ./*/pom.xml ../../examples/orders-java/pom.xml | cksum | cut -d' ' -f1)
	local offline=()
	[ ! -f "$stamp" ] || offline=(-o)
	for _ in 1 2 3 4 5; do
		if mvn -q -B "${offline[@]+"${offline[@]}"}" -Dmaven.repo.local="$MAVEN_REPO_LOCAL" -f "$folder" "$@" >build/maven.log 2>&1; then
			touch "$stamp"
			return
		fi
		# Maven does not ask a second time when a registry falls silent.
		grep -q 'Could not transfer.*timed out' build/maven.log || break
	done
	rm -f "$stamp" # perhaps something is missing after all: the next run asks the network
	cat build/maven.log >&2
	exit 1
}

if [ "$ROUTER" = "$PWD/build/router" ]; then
	(cd ../.. && go build -o "$ROUTER" ./cmd/router)
fi
maven . install
./generate.sh --check

# The rules mostly wait, so they run beside the programs of README.md.
./conformance.sh "$@" >build/conformance.log 2>&1 &
rules=$!
trap 'kill "$rules" 2>/dev/null || true' EXIT

# The programs of README.md, of the documents and of the repository's README, in a project that knows nothing but the installed packages.
version=$(sed -n 's:.*<version>\(.*\)</version>.*:\1:p' client/.flattened-pom.xml | head -1)
rm -rf build/readme
mkdir -p build/readme/src/main/java build/readme/src/test/java
# block WORD: the Java of README.md that contains WORD
block() { awk -v word="$1" '/^```java/ { on = 1; text = ""; next } /^```/ { if (on && index(text, word)) printf "%s", text; on = 0 } on { text = text $0 "\n" }' README.md; }
block 'class App' >build/readme/src/main/java/App.java
block 'class HandlerTest' >build/readme/src/test/java/HandlerTest.java
block 'class ChargeTest' >build/readme/src/test/java/ChargeTest.java
block 'class ReminderTest' >build/readme/src/test/java/ReminderTest.java
block 'class ReportTest' >build/readme/src/test/java/ReportTest.java
block 'class Total' >build/readme/src/main/java/Total.java
block 'class Counter' >build/readme/src/main/java/Counter.java
sed 's/class Total/class Covered/; s/Total::add/Covered::add/; s/ofSeconds(30))/&.ttl(Duration.ofSeconds(30))/' build/readme/src/main/java/Total.java >build/readme/src/main/java/Covered.java
grep -q 'ttl(' build/readme/src/main/java/Covered.java
[ "$(grep -c '^```java' README.md)" = 9 ] || { echo "README.md does not have nine blocks of Java: all of them have to be tested here" >&2; exit 1; }
# Each block of the documents is a program: a class as it is, statements in a class that has what they leave to their readers.
awk '/^```java/ { file = "build/readme/block" ++n; print "// " FILENAME >file; next } /^```/ { file = "" } file != "" { print >file }' ../../docs/*.md ../../README.md
pages=()
for block in build/readme/block*; do
	class=$(sed -n 's/^public class \([A-Za-z]*\).*/\1/p' "$block")
	if [ -n "$class" ]; then
		cp "$block" "build/readme/src/main/java/$class.java"
	else
		class=Page${#pages[@]}
		cat >"build/readme/src/main/java/$class.java" <<-END
			import io.ringfence.client.*;
			import java.time.Duration;
			public class $class {
			    void onEvent(Event e) { System.out.println(e.key() + ": " + new String(e.payload()) + " (attempt " + e.attempt() + ")"); }
			    void report(Firing firing) {}
			    void sweep(Firing firing) {}
			    void run() {
			$(cat "$block")
			    }
			    public static void main(String[] args) { new $class().run(); }
			}
		END
	fi
	pages+=("$class")
done
cat >build/readme/src/main/java/Line.java <<END
import io.ringfence.client.Worker;
public class Line {
    interface Store { void apply(String key, String fence, byte[] payload); }
    static final Store store = (key, fence, payload) -> System.out.println(payload.length + " bytes, fence " + fence);
    public static void main(String[] args) {
        $(sed -n 's/^| \[Java\][^`]*`\([^`]*\)`.*/\1/p' ../../README.md);
    }
}
END
cat >build/readme/src/main/java/Json.java <<END
import io.ringfence.client.*;
public class Json {
    record Order(int cents) {}
    interface Mapper { <T> T readValue(byte[] bytes, Class<T> type) throws java.io.IOException; }
    interface Store { void add(String key, Order order); }
    static void run(Mapper mapper, Store store) {
        $(block 'Handlers.json')
    }
}
END
cat >build/readme/src/test/java/ListenerTest.java <<END
import static org.junit.jupiter.api.Assertions.assertEquals;
import io.ringfence.client.*;
import io.ringfence.junit5.*;
import io.ringfence.spring.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.support.GenericApplicationContext;
@RingfenceTest
class ListenerTest {
    record Order(int cents) {}
    interface Store { void add(String key, Fence fence, int cents); }
    static final AtomicInteger ADDED = new AtomicInteger();
    @EnableAutoConfiguration
    static class App {
        final Store store = (key, fence, cents) -> ADDED.addAndGet(cents);
$(block '@RingfenceListener')
    }
    @Test
    void handlesAnOrder(TestRouter router) {
        try (var application = new SpringApplicationBuilder(App.class).initializers((GenericApplicationContext context) ->
                context.registerBean(RingfenceCustomizer.class, () -> router::connect)).run()) {
            assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("user-7").payload("{\"cents\": 5}")).outcome().kind());
        }
        assertEquals(5, ADDED.get());
    }
}
END
sed "s/VERSION/$version/" readme-pom.xml >build/readme/pom.xml
maven build/readme verify
# handles CLASS PATTERN: whether it handles all of 100 events, and writes the pattern for each
handles() {
	../../tools/limited.sh 600 "$ROUTER" dev --rate 100 --events 100 -- "$java" -XX:TieredStopAtLevel=1 \
		-cp "build/readme/target/classes:$(cat build/readme/target/classpath)" "$1" >build/readme/output 2>&1 || { cat build/readme/output >&2; exit 1; }
	local handled
	handled=$(grep -c "$2" build/readme/output || true)
	if [ "$handled" != 100 ]; then
		cat build/readme/output >&2
		echo "the program $1 handled $handled of 100 events" >&2
		exit 1
	fi
}
handles App 'bytes, fence 0'
handles Line 'bytes, fence 0'
for page in "${pages[@]}"; do handles "$page" ': .* (attempt 1)'; done
for program in Total Covered; do
	rm -f total
	handles "$program" 'total [0-9]*, fence [0-9]\{19\}\.[0-9]\{20\}'
	if [ "$(cat total)" != 100 ]; then
		echo "the reserved key was held twice at once by $program: the total is $(cat total) after 100 events" >&2
		exit 1
	fi
done
rm total
rm -rf counts
handles Counter 'count of '
events=$(awk '{ n += $1 } END { print n }' counts/*)
loads=$(grep -c 'load user-' build/readme/output || true)
rm -rf counts
if [ "$events" != 100 ] || [ "$loads" = 100 ]; then
	cat build/readme/output >&2
	echo "the handlers of 100 events have counted $events, and loaded the state $loads times" >&2
	exit 1
fi

trap - EXIT
wait "$rules" || { cat build/conformance.log >&2; exit 1; }
tail -1 build/conformance.log
