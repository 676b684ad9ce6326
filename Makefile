# One command each. Every target installs or builds what it needs (saying so first), bounds its own time,
# cleans up after itself, and exits non-zero when it fails. A target without a text is a part of one that has it.
.DEFAULT_GOAL := help
.PHONY: $(filter-out compose-demo,$(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' Makefile))

GO      ?= go
GATEWAY  = bin/fencegate
LINT     = $(GO) tool -modfile=tools/go.mod golangci-lint

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9%-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Watch a paused writer being refused, on real processes (LOCK=postgres: without Redis)
	@$(if $(LOCK),FENCEGATE_LOCK=$(LOCK)) scripts/demo

build: ## Build bin/fencegate
	$(GO) build -o $(GATEWAY) ./cmd/fencegate

test: ## Run every test, with -race, against real PostgreSQL and real Redis
	@scripts/need cc postgres redis
	@scripts/test . -timeout 20m

test-%: ## More tests: sources, ops, kube, page, observability, balancer, minio, memory, busy
	@echo 'make: there is no test-$*: make help lists them' >&2; exit 2

# Leases over etcd and ZooKeeper, on real servers, alone and in groups of three, and elections over Kubernetes Leases.
test-sources:
	@scripts/need --local cc postgres etcd zookeeper
	@scripts/test lock/etcdlock -count=1 -timeout 10m
	@scripts/test lock/zklock -count=1 -timeout 10m
	@scripts/test lock/kubelock -count=1 -timeout 10m

# Dump, restore, pg_upgrade, failover, restarts, crash and uninstalling, with real servers.
test-ops:
	@scripts/need cc postgres redis
	$(GO) test -race -timeout 10m -count 1 ./internal/ops
	$(GO) test -race -timeout 10m -count 1 -run 'TestAPromoted|TestAServerThat|TestADrill' ./gateway
	$(GO) test -race -timeout 10m -count 1 -run 'TestAHolderThatWaits|TestACrashRight|TestArmIsFair' ./fence/pgfence

# Elections against a real kube-apiserver, which it builds first (a quarter of an hour, once).
test-kube:
	@scripts/need --local cc postgres etcd
	@program=$$(scripts/kube-apiserver) && FENCEGATE_TEST_APISERVER=$$program scripts/test lock/kubelock -count=1 -timeout 10m

# The live page in a real Chromium: what it shows, searches, revokes, and that the browser complains of nothing. With
# PICTURES=1 it retakes the pictures of docs/page.md.
test-page:
	@scripts/need --local cc postgres redis chromium
	cd conformance/page && $(GO) test $(if $(PICTURES),,-race) -vet=off -count=1 -parallel 6 -timeout 3m . $(if $(PICTURES),-args -update)

# A real Prometheus scrapes a gateway: each alert fires, each expression of the dashboard is answered.
test-observability:
	@scripts/need --local postgres redis prometheus
	$(GO) vet -tags observability ./deploy/observability
	$(GO) test -tags observability -count=1 -timeout 5m ./deploy/observability

# Kills, drains and pauses three gateways behind a real HAProxy, under load: what clients see (about two minutes).
test-balancer:
	@scripts/need --local postgres redis haproxy
	$(GO) vet -tags balancer ./deploy/haproxy
	$(GO) test -tags balancer -v -count=1 -timeout 5m ./deploy/haproxy

# The blob stores' suite on MinIO, which is built from source.
test-minio:
	@conformance/minio/run

# What uploads to the S3 port take of memory (Linux).
test-memory:
	@scripts/need --local postgres
	$(GO) test -v -tags memory -count=1 -timeout 5m -run TestUploadsTakeLittleMemory ./cmd/fencegate

# Keeps 6,000 leases for a minute beside four busy loops per core: a measurement of this machine, too.
test-busy:
	@scripts/need --local cc redis
	$(GO) test -tags busy -count=1 -run TestKeptLeasesOutlastABusyMachine -v ./lock $(if $(BUSY),-args $(BUSY))

lint: ## Check formatting, modules, vet and all linters
	@scripts/need --local cc
	@scripts/lint

fmt: ## Format the code
	$(LINT) fmt

generate: code-hash schema reference ## Write what is made from the code: hashes of SQL, migrations/schema.sql (PostgreSQL 15), docs/reference

# The hashes of the SQL functions in their manifests, and those of the baselines in their notes.
code-hash:
	$(GO) test -count 1 -run 'TestChangedCodeHasANewRevision|TestEachBaselineNotesItsHash' -parallel 1 ./migrations -update

schema:
	@scripts/need postgres
	$(GO) test -count 1 -run TestTheCommittedSchema ./migrate -update

# docs/reference, from commands, options, the HTTP API, metrics, refusals and SQL.
reference:
	$(GO) test -count 1 -run TestTheReferenceIsCurrent ./cmd/fencegate -args -update
	$(GO) test -count 1 -run TestTheReferenceOfMetricsIsCurrent ./gateway -args -update

examples: ## Run every example, each on a stack of its own
	@scripts/examples

compose-demo: build
compose-%: ## Start five Redis, PostgreSQL and a gateway in containers (compose-up), demo, down
	@scripts/compose $*

golden: ## Compare what the three ports, the command line and the roles' rights answer with what is recorded (PostgreSQL 15)
	@scripts/need --local postgres redis
	@$(GO) run ./conformance/golden $(GOLDEN)

golden-record: ## Record it again after an intended change: read the diff
	@scripts/need --local postgres redis
	@$(GO) run ./conformance/golden -record $(GOLDEN)

conformance-pg conformance-s3 conformance-pg-quick conformance-s3-quick:
	@conformance/$(word 2,$(subst -, ,$@))/run $(if $(filter %-quick,$@),--quick) $(CONFORMANCE)

conformance-%: ## Use the ports with others' clients and suites: pg, s3 (S3TESTS_DIR: Ceph's s3-tests), pg-quick, s3-quick
	@echo 'make: there is no conformance-$*: make help lists them' >&2; exit 2

model: ## Check the token protocol with spin, and that a safeguard removed breaks it (FULL=1: every search, half an hour)
	@docs/model/run $(if $(FULL),full)

simulate: ## Simulate nodes, messages, Lockers and clocks SEEDS (2000) times (SEED=n: that one, with its trace)
	GOGC=400 $(GO) test -vet=off -count=1 -timeout 10m -run 'TestSimulation$$' -v ./lock -args -sim.seeds=$(or $(SEEDS),2000) $(if $(SEED),-sim.seed=$(SEED) -sim.trace)

TORTURED = $(or $(SOURCES),postgres etcd zookeeper redis)
torture: ## Test leases of every source (SOURCES="postgres etcd zookeeper redis") under faults of servers, messages, clients and clocks, FOR (60s) each
	@scripts/need --local cc $(TORTURED)
	@for source in $(TORTURED); do \
	  case $$source in postgres) in=pglock ;; etcd) in=etcdlock ;; zookeeper) in=zklock ;; redis) in=. ;; esac; \
	  (cd lock/$$in && $(GO) test -count=1 -run '^TestTorture(Of.*)?$$' -v -timeout 40m . -args -torture.for=$(or $(FOR),60s) $(TORTURE)) || exit 1; done

mutants: ## Seed bugs, one by one, and see each caught: by its test (twenty minutes), or with KIND=runs by the judge of robustness (as long; Linux, root); MUTANTS="names"
	@scripts/need --local cc postgres redis etcd zookeeper $(if $(KIND)$(MUTANTS),boto3 haproxy)
	$(GO) run ./internal/mutants $(if $(KIND),-kind $(KIND)) $(MUTANTS)

fuzz: ## Feed the PostgreSQL port's decoders random bytes, FUZZTIME (20s) each
	@for target in FuzzStartup FuzzFraming FuzzSession; do \
	  $(GO) test ./gateway/pgwire -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(FUZZTIME),20s) -fuzzminimizetime 100x -parallel 2 || exit 1; done

# Exit code 1: a promise was broken, or the run could not check. 3: nothing unsafe, but something was slow although the
# machine was fast enough, or grew. Both fail the target; make prints the code ("Error 3"), which go run would hide.
ROBUSTNESS_PROGRAM = cd robustness && $(GO) build -o ../bin/robustness . && ../bin/robustness

robustness: ## Run the whole product under every fault for FOR (10m), and judge it (SEED=… ONLY=surfaces FAULTS=names MODE=async BLOBS=s3)
	@scripts/need --local cc postgres redis boto3 $(if $(findstring balancer,$(ROBUSTNESS)),haproxy)
	$(ROBUSTNESS_PROGRAM) run -for $(or $(FOR),10m) $(if $(SEED),-seed $(SEED)) $(if $(ONLY),-only $(ONLY)) $(if $(FAULTS),-faults $(FAULTS)) $(if $(MODE),-$(MODE)) $(if $(BLOBS),-blobs $(BLOBS)) $(ROBUSTNESS)

robustness-quick: ## The same for two minutes, with the surest faults alone
	@scripts/need --local cc postgres redis boto3 $(if $(findstring balancer,$(ROBUSTNESS)),haproxy)
	$(ROBUSTNESS_PROGRAM) run -quick $(if $(SEED),-seed $(SEED)) $(ROBUSTNESS)

soak: ## Let all surfaces work for FOR (30m) on three gateways, of which one is restarted each minute: nothing may grow
	@scripts/need --local cc postgres redis boto3 $(if $(findstring balancer,$(ROBUSTNESS)),haproxy)
	$(ROBUSTNESS_PROGRAM) run -soak -for $(or $(FOR),30m) $(if $(SEED),-seed $(SEED)) $(ROBUSTNESS)

robustness-test: ## Test the program of robustness itself, and scenarios beside a plain Redlock library, which loses in most
	@scripts/need --local cc postgres redis boto3
	@scripts/test robustness -count=1 -timeout 5m

BENCH_NEEDS_lock    = postgres redis etcd zookeeper
BENCH_NEEDS_api     = postgres redis
BENCH_NEEDS_scale   = postgres redis
BENCH_NEEDS_pgwire  = postgres pgbouncer

bench: ## Measure everything beside what a user would pick instead, and print one table of all goals (BENCH="-strict …")
	@scripts/need --local postgres redis etcd zookeeper pgbouncer
	cd bench && $(GO) run . $(BENCH)

bench-%: ## Measure one: lock, fence, api, scale, pgwire, s3, s3-quick
	@scripts/need --local $(or $(BENCH_NEEDS_$(firstword $(subst -, ,$*))),postgres)
	cd bench && $(GO) run . $(subst -quick, -quick,$*) $(if $(BASE),-base $(BASE)) $(BENCH)

bench-compare: ## Compare this tree's speed with the commit BASE's, against the measured noise (about five minutes)
	@test -n "$(BASE)" || { echo "bench-compare: BASE=commit is missing" >&2; exit 64; }
	@scripts/need --local postgres redis
	cd bench && $(GO) run . compare -base "$(BASE)" $(BENCH)

notices: ## Write the licences of what is linked into the program to dist/THIRD_PARTY_NOTICES
	@mkdir -p dist && scripts/notices >dist/THIRD_PARTY_NOTICES

release-checks: ## Run what a release runs and CI does not, for several hours (Linux, root; BASE=commit of the last release)
	$(MAKE) model FULL=1
	$(MAKE) test-balancer
	$(MAKE) fuzz
	$(MAKE) test-memory
	$(MAKE) test-kube
	$(MAKE) test-minio
	$(MAKE) conformance-pg
	$(MAKE) conformance-s3
	$(GO) test -count=1 -run TestNestsKeepTheirLocks ./fence/pgfence -args -nests 3800
	$(MAKE) mutants
	$(MAKE) torture
	$(MAKE) test-busy
	$(MAKE) robustness
	$(MAKE) robustness MODE=async
	$(MAKE) robustness BLOBS=s3
	$(MAKE) robustness ROBUSTNESS='-lock postgres'
	$(MAKE) robustness ROBUSTNESS='-redis 1'
	$(MAKE) robustness ROBUSTNESS=-balancer
	$(MAKE) mutants KIND=runs
	$(MAKE) soak
	$(MAKE) bench
	$(if $(BASE),$(MAKE) bench-compare)

clean: ## Remove what was built
	rm -rf bin dist
