# One command each. Every target installs or builds what it needs (saying so first), bounds its own time,
# cleans up after itself, and exits non-zero when it fails.
.DEFAULT_GOAL := help
.PHONY: help demo test test-ops simulate lint code-hash schema reference fmt build notices examples compose-up compose-demo compose-down model model-all release-checks bench bench-lock bench-fence bench-api bench-scale bench-pgwire bench-s3 bench-s3-quick bench-compare conformance-pg conformance-pg-quick conformance-s3 conformance-s3-quick golden golden-record robustness robustness-quick robustness-scenarios robustness-test fuzz clean blob-minio s3-memory mutants torture test-busy observability-test balancer-test soak test-sources kube-test page-test page-pictures

GO      ?= go
GATEWAY  = bin/fencegate
LINT     = $(GO) tool -modfile=tools/go.mod golangci-lint

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Watch a paused writer being refused, on real processes (LOCK=postgres: without Redis)
	@$(if $(LOCK),FENCEGATE_LOCK=$(LOCK)) scripts/demo

test: ## Run every test, with -race, against real PostgreSQL and real Redis
	@scripts/need cc postgres redis
	@scripts/test . -timeout 20m

test-busy: ## Keep 6,000 leases for a minute beside four busy loops per core: a measurement of this machine, too
	@scripts/need --local cc redis
	$(GO) test -tags busy -count=1 -run TestKeptLeasesOutlastABusyMachine -v ./lock $(if $(BUSY),-args $(BUSY))

test-sources: ## Test leases over etcd and ZooKeeper, on real servers, alone and in groups of three, and elections over Kubernetes Leases
	@scripts/need --local cc postgres etcd zookeeper
	@scripts/test lock/etcdlock -count=1 -timeout 10m
	@scripts/test lock/zklock -count=1 -timeout 10m
	@scripts/test lock/kubelock -count=1 -timeout 10m

kube-test: ## Test elections against a real kube-apiserver, which it builds first (a quarter of an hour, once)
	@scripts/need --local cc postgres etcd
	@program=$$(scripts/kube-apiserver) && FENCEGATE_TEST_APISERVER=$$program scripts/test lock/kubelock -count=1 -timeout 10m

test-ops: ## Test dump, restore, pg_upgrade, failover, restarts, crash and uninstalling, with real servers
	@scripts/need cc postgres redis
	$(GO) test -race -timeout 10m -count 1 ./internal/ops
	$(GO) test -race -timeout 10m -count 1 -run 'TestAPromoted|TestAServerThat|TestADrill' ./gateway
	$(GO) test -race -timeout 10m -count 1 -run 'TestAHolderThatWaits|TestACrashRight|TestArmIsFair' ./fence/pgfence

lint: ## Check formatting, modules, vet and all linters
	@scripts/need --local cc
	@scripts/lint

code-hash: ## Write the hashes of the SQL functions into their manifests, and those of the baselines into their notes
	$(GO) test -count 1 -run 'TestChangedCodeHasANewRevision|TestEachBaselineNotesItsHash' -parallel 1 ./migrations -update

schema: ## Rewrite migrations/schema.sql from what the migrations make (PostgreSQL 15)
	@scripts/need postgres
	$(GO) test -count 1 -run TestTheCommittedSchema ./migrate -update

reference: ## Rewrite docs/reference from commands, options, the HTTP API, metrics, refusals and SQL
	$(GO) test -count 1 -run TestTheReferenceIsCurrent ./cmd/fencegate -args -update
	$(GO) test -count 1 -run TestTheReferenceOfMetricsIsCurrent ./gateway -args -update

fmt: ## Format the code
	$(LINT) fmt

build: ## Build bin/fencegate
	$(GO) build -o $(GATEWAY) ./cmd/fencegate

notices: ## Write the licences of what is linked into the program to dist/THIRD_PARTY_NOTICES
	@mkdir -p dist && scripts/notices >dist/THIRD_PARTY_NOTICES

examples: ## Run every example, each on a stack of its own
	@scripts/examples

compose-up: ## Start five Redis, PostgreSQL and a gateway in containers
	@scripts/compose up

compose-demo: build ## Run the demo against what compose-up started
	@scripts/compose demo

compose-down: ## Stop what compose-up started, and remove its data
	@scripts/compose down

model: ## Check the token protocol with spin, and that a safeguard removed breaks it: the smallest searches
	@docs/model/run

model-all: ## The same with every search (half an hour of a processor, up to 3.5 GB each)
	@docs/model/run full

mutants: ## Seed bugs, one by one, and see each caught: by its test (twenty minutes), or with KIND=runs by the judge of robustness (as long; Linux, root); MUTANTS="names"
	@scripts/need --local cc postgres redis etcd zookeeper $(if $(KIND)$(MUTANTS),boto3)
	$(GO) run ./internal/mutants $(if $(KIND),-kind $(KIND)) $(MUTANTS)

simulate: ## Run SEEDS (2000) simulations of nodes, messages, Lockers and clocks, each from one seed that repeats it (SEED=n: that one, with its trace)
	GOGC=400 $(GO) test -vet=off -count=1 -timeout 10m -run 'TestSimulation$$' -v ./lock -args -sim.seeds=$(or $(SEEDS),2000) $(if $(SEED),-sim.seed=$(SEED) -sim.trace)

TORTURED = $(or $(SOURCES),postgres etcd zookeeper redis)
torture: ## Test leases of every source (SOURCES="postgres etcd zookeeper redis") for a quarter of an hour under faults of servers, messages, processes and clocks (FOR=60s each)
	@scripts/need --local cc $(TORTURED)
	@for source in $(TORTURED); do \
	  case $$source in postgres) in=pglock want= ;; etcd) in=etcdlock want= ;; zookeeper) in=zklock want= ;; redis) in=. want=-torture.want=200000 ;; esac; \
	  (cd lock/$$in && $(GO) test -count=1 -run '^TestTorture(Of.*)?$$' -v -timeout 40m . -args -torture.for=$(or $(FOR),60s) $$want $(TORTURE)) || exit 1; done

bench-lock: ## Measure leases against redsync, redislock, rueidislock, and over each source beside etcd's mutex and PostgreSQL's locks
	@scripts/need --local postgres redis etcd zookeeper
	cd bench && $(GO) run ./lock

bench-fence: ## Measure the fence in PostgreSQL against no fence and hand-written SQL (FENCE="-base COMMIT": against a commit's SQL)
	@scripts/need --local postgres
	cd bench && $(GO) run ./fence $(FENCE)

bench-api: ## Measure leases over HTTP against the library
	@scripts/need --local postgres redis
	cd bench && $(GO) run ./api $(API)

bench-scale: ## Measure what one PostgreSQL carries of fences, and what a second one adds (SCALE="-part callers")
	@scripts/need --local postgres redis
	cd bench && $(GO) run ./scale $(SCALE)

bench-pgwire: ## Measure the PostgreSQL port against io.Copy and PgBouncer
	@scripts/need --local postgres pgbouncer
	cd bench && $(GO) run ./pgwire

bench-s3: ## Measure the S3 port against versitygw's POSIX back end and, where it is there, MinIO
	@scripts/need --local postgres
	cd bench && $(GO) run ./s3

bench-s3-quick: ## The same with few rounds and small lists
	@scripts/need --local postgres
	cd bench && $(GO) run ./s3 -quick

bench-compare: ## Compare this tree's speed with the commit BASE's, interleaved, against the measured noise (about five minutes)
	@test -n "$(BASE)" || { echo "bench-compare: BASE=commit is missing" >&2; exit 64; }
	@scripts/need --local postgres redis
	cd bench && $(GO) run ./compare -base "$(BASE)" $(COMPARE)

bench: bench-lock bench-fence bench-api bench-scale bench-pgwire bench-s3 ## Run every benchmark

conformance-pg: ## Run drivers and the test suites of PostgreSQL 15 and pgx through the PostgreSQL port and directly
	@scripts/need --local cc postgres
	@conformance/pg/run $(CONFORMANCE)

conformance-pg-quick: ## The same without the suites, with the drivers of Python and those that are there
	@scripts/need --local postgres
	@conformance/pg/run --quick

s3-memory: ## Measure what uploads to the S3 port take of memory (Linux)
	@scripts/need --local postgres
	$(GO) test -v -tags memory -count=1 -timeout 5m -run TestUploadsTakeLittleMemory ./cmd/fencegate

blob-minio: ## Run the blob stores' suite on MinIO, which is built from source
	@conformance/minio/run

conformance-s3: ## Let S3 clients do everything with a current, a stale and no grant, and run Ceph's s3-tests (S3TESTS_DIR: a checkout)
	@scripts/need --local postgres boto3 awscli s3cmd rclone
	@conformance/s3/run

conformance-s3-quick: ## The clients alone
	@scripts/need --local postgres boto3 awscli s3cmd rclone
	@conformance/s3/run --quick

golden: ## Compare what the three ports, the command line and the roles' rights answer with what is recorded (PostgreSQL 15)
	@scripts/need --local postgres redis
	@$(GO) run ./conformance/golden $(GOLDEN)

golden-record: ## Record it again after an intended change: read the diff
	@scripts/need --local postgres redis
	@$(GO) run ./conformance/golden -record $(GOLDEN)

robustness: ## Run the whole product under every fault for FOR (10m), and judge it (SEED=… ONLY=surfaces FAULTS=names MODE=async BLOBS=s3)
	@scripts/need --local cc postgres redis boto3
	cd robustness && $(GO) run . run -for $(or $(FOR),10m) $(if $(SEED),-seed $(SEED)) $(if $(ONLY),-only $(ONLY)) $(if $(FAULTS),-faults $(FAULTS)) $(if $(filter async,$(MODE)),-async) $(if $(BLOBS),-blobs $(BLOBS)) $(ROBUSTNESS)

robustness-quick: ## The same for two minutes, with the surest faults alone
	@scripts/need --local cc postgres redis boto3
	cd robustness && $(GO) run . run -quick $(if $(SEED),-seed $(SEED)) $(ROBUSTNESS)

soak: ## Let all surfaces work for FOR (30m) on three gateways, of which one is restarted each minute: nothing may grow, and every call has an outcome
	@scripts/need --local cc postgres redis boto3
	cd robustness && $(GO) run . run -soak -for $(or $(FOR),30m) $(if $(SEED),-seed $(SEED)) $(ROBUSTNESS)

robustness-test: ## Test the program of robustness itself, with -race: its relays, faults, clients, cluster and judge
	@scripts/need --local cc postgres redis boto3
	@scripts/test robustness -count=1 -timeout 5m

robustness-scenarios: ## Kleppmann's and the Redis documentation's scenarios, beside a plain Redlock library, which loses in most
	@scripts/need --local cc postgres redis
	cd robustness && $(GO) test -count 1 -v -timeout 5m ./scenario

FUZZTIME ?= 20s
fuzz: ## Feed the PostgreSQL port's decoders random bytes, FUZZTIME (20s) each
	@for target in FuzzStartup FuzzFraming FuzzSession; do \
	  $(GO) test ./gateway/pgwire -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x -parallel 2 || exit 1; done

observability-test: ## Let a real Prometheus scrape a gateway: each alert fires, each expression of the dashboard is answered
	@scripts/need --local postgres redis prometheus
	$(GO) vet -tags observability ./deploy/observability
	$(GO) test -tags observability -count=1 -timeout 5m ./deploy/observability

balancer-test: ## Kill, drain and pause three gateways behind a real HAProxy, under load: what clients see (about two minutes)
	@scripts/need --local postgres redis haproxy
	$(GO) vet -tags balancer ./deploy/haproxy
	$(GO) test -tags balancer -v -count=1 -timeout 5m ./deploy/haproxy

page-test: ## Open the live page in a real Chromium: what it shows, searches, revokes, and that the browser complains of nothing
	@scripts/need --local cc postgres redis chromium
	cd conformance/page && $(GO) test -race -vet=off -count=1 -parallel 6 -timeout 3m .

page-pictures: ## The same, and retake the pictures of the page in docs
	@scripts/need --local postgres redis chromium
	cd conformance/page && $(GO) test -count=1 -parallel 6 -timeout 3m . -args -update

release-checks: ## Run what a release runs and CI does not, for several hours (Linux, root; BASE=commit of the last release)
	$(MAKE) model-all
	$(MAKE) balancer-test
	$(MAKE) fuzz
	$(MAKE) s3-memory
	$(MAKE) kube-test
	$(MAKE) blob-minio
	$(MAKE) conformance-pg
	$(MAKE) conformance-s3
	$(GO) test -count=1 -run TestNestsKeepTheirLocks ./fence/pgfence -args -nests 3800
	$(MAKE) mutants
	$(MAKE) torture
	$(MAKE) test-busy
	$(MAKE) robustness
	$(MAKE) robustness MODE=async
	$(MAKE) robustness BLOBS=s3
	$(MAKE) mutants KIND=runs
	$(MAKE) soak
	$(MAKE) bench
	$(if $(BASE),$(MAKE) bench-compare)

clean: ## Remove what was built
	rm -rf bin dist
