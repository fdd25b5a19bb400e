GO ?= go

# Tests and tools are built as releases are, without cgo, which also spares compiling C. The race detector needs it.
export CGO_ENABLED ?= 0

# What a target passes on to the program behind it, as in: make bench ARGS="--modes shared,ringfence"
ARGS ?=

RUNS     ?= 100 # make sim: how many seeds
HOURS    ?= 1   # make sim: simulated hours for each
SEED     ?=     # make sim: the seed to begin with, to replay a failure
FAULTS   ?= 20  # make chaos: how many
RATE     ?= 2000 # make chaos: events a second
FUZZTIME ?= 30s # make fuzz: for each target
SPEC     ?= quick


# Benchmark, fault driver and end-to-end tests are modules of their own (go.work joins them), so that the router's go.mod lists only what the router
# needs. For the same reason the tools are pinned in tools/*.mod, which Go does not read in a workspace.
modules  := ./... ./bench/... ./chaos/... ./e2e/...
golangci  = $(shell tools/tool.sh golangci-lint)
buf      := tools/buf.sh

.PHONY: help
help: ## Show this help
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r name what; do printf '  %-14s %s\n' "$$name" "$$what"; done

.PHONY: generate
generate: ## Write the code that comes from the .proto files, and the alerts and dashboards
	$(buf) generate
	$(GO) generate $(modules)
	deploy/mixin/render.sh

.PHONY: checkgenerate
checkgenerate: ## Fail if the generated code is not up to date
	tools/checkgenerate.sh

.PHONY: lint
lint: ## golangci-lint (with all of go vet), buf lint, and no breaking change of the protos
	$(overlay)
	GOGC=$${GOGC:-200} $(golangci) run $(modules)
	cd tools && GOWORK=off $(golangci) run ./foreign
	$(buf) lint
	$(buf) format --diff --exit-code
	tools/breaking.sh

.PHONY: format
format: ## Format the Go code and the protos as lint wants them
	$(golangci) fmt ./...
	$(buf) format --write

.PHONY: build
build: ## Build everything
	$(GO) build $(modules)

.PHONY: foreign
foreign: ## Type-check the router and the SDK as built for macOS and Windows
	cd tools && GOWORK=off $(GO) run ./foreign darwin,windows ./cmd/router ./client/...

# The end-to-end tests start whole clusters of processes and measure them: they go without the race detector. So do packages
# without a goroutine, in their tests too: they have nothing to race with, and check their invariants all the same.
e2e_packages  = $(shell $(GO) list $(modules) | grep '/e2e\(/\|$$\)')
pure_packages = ./ring ./internal/key ./internal/outcome ./internal/ownership/... ./internal/pipeline/schedule ./internal/mailbox/admission ./internal/wire/... ./internal/broker/entries/wire/... ./internal/testing/... ./spec
# The drivers of benchmarks and faults are not built for the race detector either: the clients of Redis and Postgres in them take long to compile.
driver_packages = ./bench/... ./chaos/...
# Tests of the commands start dozens of processes, which the race detector makes several times slower. It runs where goroutines share state; make nightly
# runs it everywhere else, too.
process_packages = ./cmd/router ./examples/...
race_packages    = ./client/... ./forward ./internal/adminhttp/... ./internal/app/... ./internal/audit/... ./internal/base/... ./internal/bridge ./internal/broker/... ./internal/controllog/... ./internal/deadletter ./internal/history/... ./internal/mailbox ./internal/membership ./internal/netx/... ./internal/pipeline
unit_packages    = $(filter-out $(shell $(GO) list $(pure_packages)),$(shell $(GO) list $(race_packages)))
other_packages   = $(filter-out $(shell $(GO) list $(pure_packages) $(driver_packages) $(process_packages) ./internal/node ./internal/source $(race_packages)),$(shell $(GO) list $(modules) | grep -v '/e2e\(/\|$$\)'))

# Tests of one goroutine that touch much memory, which takes the race detector twenty times as long.
plain_tests = ^TestHeapAfterAMillionKeys$$

# The end-to-end tests mostly wait, so they come first: in .ci/run, linters and compilers use the time.
.PHONY: test
test: ## All tests, on a real Pulsar that it sets up by itself
	tools/pulsar.sh run --optional -- $(MAKE) --no-print-directory -j3 test-waiting sdks test-computing

# With PULSAR_URL set, one after the other.
.PHONY: test-waiting
test-waiting: # tests of leases, of brokers and of processes, which wait for most of their time
	$(MAKE) --no-print-directory -j1 test-e2e
	$(MAKE) --no-print-directory -j1 unit-processes
	$(MAKE) --no-print-directory -j1 unit-race
	$(MAKE) --no-print-directory -j1 test-reconnect

.PHONY: test-computing
test-computing: # tests that compute, at the lowest priority while the others wait
	nice -n 15 $(MAKE) --no-print-directory -j1 unit-plain planted

.PHONY: sdks
sdks: ## Test the SDKs in other languages: unit tests, package, README and conformance of each (SDKS= names some)
	nice -n 5 tools/sdks.sh $(SDKS) # their tests measure leases, too: they are less nice than what computes

.PHONY: first-handlers
first-handlers: ## Try the README of each SDK as a new user would, on a machine that has the language alone, and time it (SDKS= names some)
	tools/first-handler.sh $(SDKS)

# Tests that take long mostly wait, for leases and brokers: more packages, and more tests of each, run beside each other than there
# are CPUs, and the packages that take longest begin first.
.PHONY: unit
unit: unit-race unit-plain unit-processes ## All tests but the end-to-end ones; those that need a Pulsar want PULSAR_URL

.PHONY: unit-race
unit-race: # those of packages with goroutines
	CGO_ENABLED=1 $(GO) test -race -p=3 -parallel=12 -timeout=15m -skip '$(plain_tests)' $(ARGS) ./internal/node ./internal/source $(unit_packages)

.PHONY: unit-processes
unit-processes: # those of the commands
	$(GO) test -p=3 -parallel=12 -timeout=15m $(ARGS) $(process_packages)

.PHONY: unit-plain
unit-plain: # those of packages without any, and of drivers
	$(GO) test -tags invariants -timeout=15m $(ARGS) $(pure_packages)
	$(GO) test -timeout=15m $(ARGS) $(driver_packages) $(other_packages)
	$(GO) test -timeout=15m $(ARGS) -run '$(plain_tests)' ./internal/mailbox

# Packages compiled ahead, at low priority, do not take the CPUs from tests that measure leases. Go caches no linked tests.
.PHONY: unit-compile
unit-compile: ## Compile what make unit tests, without a test
	CGO_ENABLED=1 $(GO) list -race -test -deps -export ./internal/node ./internal/source $(unit_packages) >/dev/null
	$(GO) list -tags invariants -test -deps -export $(pure_packages) >/dev/null
	$(GO) list -test -deps -export $(driver_packages) $(other_packages) >/dev/null

# pulsar-client-go races with itself when it reconnects, so the tests that make it do so skip under -race.
.PHONY: test-reconnect
test-reconnect:
	$(GO) test -timeout=5m $(ARGS) ./internal/controllog

.PHONY: e2e
e2e: ## The end-to-end tests alone, on a real Pulsar
	tools/pulsar.sh run -- $(MAKE) --no-print-directory test-e2e

.PHONY: test-e2e
test-e2e: # with PULSAR_URL set
	$(if $(strip $(e2e_packages)),$(GO) test -parallel=6 -timeout=15m $(ARGS) $(e2e_packages))

.PHONY: race-rest
race-rest: ## The race detector where unit-race does not run it, in all processes of the commands, too
	tools/pulsar.sh run -- env CGO_ENABLED=1 $(GO) test -race -p=3 -parallel=4 -timeout=30m $(ARGS) $(process_packages) $(other_packages)

.PHONY: test-shuffled
test-shuffled: # the order of tests must not matter
	$(MAKE) --no-print-directory test ARGS="-shuffle=on -count=1 $(ARGS)"

.PHONY: page
page: ## The status page in a headless Chromium: contents, sizes, accessibility, nothing from other hosts (PICTURES=docs/img takes its pictures)
	tools/page.sh $(PICTURES)

.PHONY: settle-long
settle-long: ## Twenty broker unloads, consumer node kills and owner kills under load: nothing lost, every repeat explained
	tools/pulsar.sh run -- $(GO) test ./e2e -run NothingIsLostOrRepeated -count=1 -v -timeout=60m -e2e.settle=20 $(ARGS)

.PHONY: test-restarts
test-restarts: ## Kill a broker under load five times: nothing is lost
	tools/pulsar.sh run --own -- $(GO) test ./internal/source -run Restarts -count=1 -v -timeout=20m -source.restarts=5 $(ARGS)

.PHONY: test-ack-sets
test-ack-sets: ## The tests of readers, sources and dead letters, on a broker that counts acks of single events
	tools/pulsar.sh run --set acknowledgmentAtBatchIndexLevelEnabled=true -- $(GO) test ./internal/broker/entries ./internal/source ./internal/deadletter -count=1 -timeout=20m $(ARGS)

.PHONY: trace
trace: ## Compare the journals of routers (JOURNALS=folder), or of a simulated run (SEED=), with the model
	$(GO) test ./spec -count=1 -v $(if $(JOURNALS),-run Journals -spec.journals=$(abspath $(JOURNALS)),-run Simulated $(if $(strip $(SEED)),-spec.seed=$(strip $(SEED)))) $(ARGS)

.PHONY: sim
sim: ## Simulate whole clusters from seeds (RUNS=, HOURS=; SEED= replays one)
	$(GO) test ./internal/testing/sim -run Exclusive -count=1 -v -timeout=0 \
		$(if $(strip $(SEED)),-sim.seed=$(strip $(SEED)),-sim.seeds=$(strip $(RUNS))) -sim.hours=$(strip $(HOURS)) $(ARGS)

.PHONY: spec
spec: ## Model-check the ownership protocol (SPEC=short|quick|full, or names of runs)
	spec/check.sh $(SPEC)

# Names the patches of planted bugs that do not apply, or builds and tests with their switches, in copies of the files.
overlay := $(GO) run ./internal/testing/planted/overlay

.PHONY: planted-check
planted-check: ## Name the patches of planted bugs that do not apply
	$(overlay)

.PHONY: planted-edit
planted-edit: ## Write the files with planted bugs to .planted, to be edited there
	$(overlay) edit

.PHONY: planted-refresh
planted-refresh: ## Write the patches of planted bugs anew from .planted
	$(overlay) refresh

.PHONY: planted
planted: ## Plant known bugs, one by one: the simulator must find each, and nothing without them
	$(overlay) test -tags planted ./internal/testing/planted ./internal/controllog/claim ./internal/pipeline/schedule ./internal/source ./internal/testing/sim -run 'Planted|Environment' -count=1 -timeout=15m $(ARGS)
	RINGFENCE_PLANTED=no_wait $(overlay) test ./internal/node -run AuditorFindsAPlantedBug -count=1 -v
	$(GO) test -tags slewclock ./internal/base/clock -count=1

.PHONY: planted-table
planted-table: # hunts each bug five times and writes docs/exclusivity-planted.md
	$(overlay) test -tags planted ./internal/testing/sim -run PlantedTable -count=1 -timeout=0 -sim.table=$(CURDIR)/docs/exclusivity-planted.md

.PHONY: fuzz
fuzz: ## Fuzz every target, on one core each (FUZZTIME= for each)
	tools/fuzz.sh $(strip $(FUZZTIME))

.PHONY: gosec
gosec: ## What gosec finds alone; make lint has it too
	$(golangci) run --enable-only gosec $(modules)

.PHONY: vuln
vuln: ## Known vulnerabilities in what the router calls, where the database can be reached
	tools/vuln.sh $(ARGS)

.PHONY: outdated
outdated: ## Newer versions of the tools in tools/*.mod, which Dependabot does not read
	@for mod in tools/*.mod; do export GOWORK=off; $(GO) list -modfile=$$mod -m -u -f '{{if .Update}}{{.Path}} {{.Version}} -> {{.Update.Version}}{{end}}' \
		$$($(GO) list -modfile=$$mod -f '{{.Module.Path}}' tool) </dev/null || exit 1; done

.PHONY: sbom
sbom: ## The modules in the router's binary, as CycloneDX: dist/router.cdx.json
	mkdir -p dist
	$(GO) build -trimpath -buildvcs=true -o dist/router ./cmd/router
	$$(tools/tool.sh cyclonedx-gomod) bin -json -noserial -notimestamp -output dist/router.cdx.json dist/router

# goreleaser finds cyclonedx-gomod on the PATH.
goreleaser = sbom=$$(tools/tool.sh cyclonedx-gomod) && goreleaser=$$(tools/tool.sh goreleaser) && PATH="$${sbom%/*}:$$PATH" "$$goreleaser"

.PHONY: release-snapshot
release-snapshot: ## All files of a release in dist/; no images, which need Docker, and no signatures, which need an identity
	$(goreleaser) release --snapshot --clean --skip=docker,sign $(ARGS)

.PHONY: release
release: ## Publish the tag that is checked out, as a draft: .github/workflows/release.yml does it
	$(goreleaser) release --clean $(ARGS)

.PHONY: chaos
chaos: ## Twenty real faults (FAULTS=, RATE=) on a real broker; Linux and root (ARGS="--seed 1 --app-stubborn")
	rm -rf bin/chaos
	$(GO) run ./chaos --faults $(FAULTS) --rate $(RATE) --keep bin/chaos $(ARGS)
	$(MAKE) --no-print-directory trace JOURNALS=bin/chaos/journals ARGS="-spec.partitions=2 -spec.events=4000"

.PHONY: chaos-stubborn
chaos-stubborn: # applications that ignore their deadline: the sinks must refuse
	$(GO) run ./chaos --faults 8 --kinds kill,power,pause,cut,halfcut,leave,crash_worker --app-stubborn $(ARGS)

.PHONY: chaos-long
chaos-long: ## Three hundred of them
	$(GO) run ./chaos --faults 300 --rate 4000 $(ARGS)

# ROUTER= attacks another binary than that of this tree, as one of an earlier release.
.PHONY: attack
attack: ## What broke routers once, tried on a built one (ROUTER=path; ARGS="--only 5,10")
	$(if $(strip $(ROUTER)),,$(GO) build -o bin/router ./cmd/router)
	tools/pulsar.sh run -- $(GO) run ./attack --router $(or $(strip $(ROUTER)),bin/router) $(ARGS)

.PHONY: attack-long
attack-long: ## The same under load: each attack alone, then all together, for a minute each
	$(MAKE) --no-print-directory attack ARGS="--under-load --for 60s $(ARGS)"

# The core suite takes about half an hour; make bench ARGS="--modes shared,ringfence" does just that.
.PHONY: bench
bench: ## Ringfence and the other ways of consuming, side by side on one broker
	tools/pulsar.sh run -- $(GO) run ./bench $(or $(ARGS),--suite core --repetitions 5 --out bench/out/core.json)

# Of two drains, one with a handler that decodes JSON and one with an empty one; cmd/router/default.pgo is read by every `go build ./cmd/router`.
.PHONY: profile
profile: ## Profile routers that drain, for their build by profile
	mkdir -p bench/out
	tools/pulsar.sh run -- sh -c 'for handler in none json; do $(GO) run ./bench --modes ringfence --workloads drain --handler $$handler --events 8000000 --repetitions 1 --verify-events 0 \
		--profile bench/out/$$handler.pgo || exit; done'
	$(GO) tool pprof -proto bench/out/none.pgo bench/out/json.pgo >bench/out/default.pgo
	mv bench/out/default.pgo cmd/router/default.pgo

.PHONY: bench-full
bench-full: ## The same, and what happens at the edges: hours
	tools/pulsar.sh run -- $(GO) run ./bench --suite full --repetitions 5 --out bench/out/full.json $(ARGS)

# Packages with structures that all cores of a router share.
contended := ./internal/broker/entries ./internal/source ./forward ./internal/mailbox ./internal/app

.PHONY: contention
contention: ## Throughput of what all cores share by the number of cores, as a picture (ARGS="-benchtime=2s")
	mkdir -p bench/out
	$(GO) test -run='^$$' -bench='^BenchmarkContention$$' -cpu=1,2,4,8,16 -count=3 -benchtime=300ms -timeout=15m $(ARGS) $(contended) >bench/out/contention.txt
	$(GO) run ./bench contention --in bench/out/contention.txt --out bench/out

.PHONY: demo
demo: ## Three members, three applications, one kill, a verdict
	$(GO) run ./cmd/router demo $(ARGS)

.PHONY: examples
examples: ## Run the orders example in Go, Python, TypeScript, Java and by the bridge, with the same checks (needs all of them, and PHP)
	$(GO) test -count=1 ./examples/orders
	examples/orders-python/try.sh
	tools/sdks.sh typescript java
	RINGFENCE_TEST_EXAMPLES=1 $(GO) test -count=1 -v ./examples/bridge

.PHONY: pulsar
pulsar: ## Start a Pulsar and leave it running; prints its addresses and how to stop it
	@tools/pulsar.sh start $(ARGS)
	@echo "# stop it with: tools/pulsar.sh stop HANDLE"

.PHONY: deploy
deploy: ## Check image, compose file, charts and alerts with the tools that they are made for
	$(GO) test ./deploy -count=1 -timeout=30m -tools $(ARGS)

.PHONY: deploy-nightly
deploy-nightly: ## The charts at a real kube-apiserver and etcd, which take long to build the first time
	$(GO) test ./deploy -count=1 -timeout=2h -run APIServer -apiserver $(ARGS)

# What is too long for .ci/run. Hours; run it before a release, and before a change to what may act is called done.
.PHONY: nightly
nightly: ## The long checks: vulnerabilities, release, models, simulator, settlement, chaos, attacks, charts
	tools/timed.sh vuln foreign release-snapshot test-shuffled race-rest fuzz spec sim settle-long test-restarts test-ack-sets chaos-stubborn chaos-long attack-long deploy deploy-nightly first-handlers

.PHONY: check
check: ## Before a change is ready: generated code, lint, build, tests
	tools/timed.sh checkgenerate lint build foreign test
