# One command each. Every target installs or builds what it needs (saying so first), bounds its own time,
# cleans up after itself, and exits non-zero when it fails.
.DEFAULT_GOAL := help
.PHONY: help demo test lint fmt build examples compose-up compose-demo compose-down model bench-lock clean

GO      ?= go
GATEWAY  = bin/fencegate
LINT     = $(GO) tool -modfile=tools/go.mod golangci-lint

help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Watch a paused writer being refused, on real processes
	@scripts/demo

test: ## Run every test, with -race, against real PostgreSQL and real Redis
	@scripts/need cc postgres redis
	$(GO) test -race -timeout 10m ./...

lint: ## Check formatting, modules, vet and all linters
	@scripts/lint

fmt: ## Format the code
	$(LINT) fmt

build: ## Build bin/fencegate
	$(GO) build -o $(GATEWAY) ./cmd/fencegate

examples: ## Run the three examples, each on a stack of its own
	@scripts/examples

compose-up: ## Start five Redis, PostgreSQL and a gateway in containers
	@scripts/compose up

compose-demo: build ## Run the demo against what compose-up started
	@scripts/compose demo

compose-down: ## Stop what compose-up started, and remove its data
	@scripts/compose down

model: ## Check the token protocol with spin, and that each safeguard removed breaks it
	@docs/model/run

bench-lock: ## Measure leases against redsync, redislock and rueidislock
	@scripts/need redis
	cd bench && $(GO) run ./lock

clean: ## Remove what was built
	rm -rf bin dist
