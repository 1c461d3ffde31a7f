SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.ONESHELL:

# One set of flags for builds, linters and tests: what one of them has compiled, the others
# find in Go's cache, whatever folder the clone is in. The race detector alone takes C.
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath
export CGO_ENABLED := 0

# PKG limits lint, test and test-unit to some packages: PKG="./differ/... ./lab/cluster".
PKG ?=
# RACE=all runs the race detector on every package.
RACE ?=
# FUZZTIME is how many inputs make fuzz tries on each target (10000x), or for how long (10s).
FUZZTIME ?= 10000x
# TRIPLES is how many plans make oracle checks, and FILES how many encrypted files.
TRIPLES ?= 20000
FILES ?= 500
# SEQUENCES is how many random sequences each state machine of make sequences runs, and the slow ones
# a part of it. Their seed is the hash of the files in the commit: other commits run other sequences,
# and one commit has one verdict.
SEQUENCES ?= 1000000
SEQUENCES_SEED ?= $$((16\#$$(git rev-parse --short=12 HEAD^{tree})))
# Of the tests, TESTS_P packages run at once and TESTS_PARALLEL tests of each: most of
# them wait for an API server, not for a core.
TESTS_P ?= 3
TESTS_PARALLEL ?= 8
# TEST_SEED is what random properties and the order of tests are drawn from. One commit has
# one verdict, so it is always the same here; make nightly draws another every night.
TEST_SEED ?= 1
export RAPID_SEED ?= $(TEST_SEED)
# OLDER is the Kubernetes that some tests run on, too: lab/build/kubernetes-$(OLDER).
# Empty leaves these out.
OLDER ?= 1.33
# BENCH, BENCHTIME and COUNT are which benchmarks make bench runs, how long one
# takes, and how often it is run; BENCHFILE is where the results go.
BENCH ?= .
BENCHTIME ?= 200ms
COUNT ?= 6
BENCHFILE ?= bin/bench.txt
# FLEET is the size of the fleet that make bench-registry reads and renders, as
# COMPONENTS CLUSTERS DISTINCT-RENDERS, and COMMITS how many of each kind follow.
FLEET ?= 200 300 2000
COMMITS ?= 10
# SIZES are the fleets that make bench-fleet delivers to simulated clusters, as
# CLUSTERSxCOMPONENTSxOBJECTS,…, and BENCH_FLEET is more flags for it.
SIZES ?= 10x50x10,30x100x10
BENCH_FLEET ?=
# APPLY is how many components make bench-apply, bench-push and bench-peer deliver,
# and QUIET how long the latter two watch over a cluster in which nothing happens;
# BENCH_PUSH is more flags for these.
APPLY ?= 1000
QUIET ?= 10m
BENCH_PUSH ?=
# RUN is which tests make e2e and make e2e-kwok run, as a regular expression.
RUN ?=
# PODS is how many the CloneSet of make bench-workloads has, and NODES on how many its
# DaemonSet runs (at most 1024).
PODS ?= 2000
NODES ?= 1000
# MUTANTS faults are made one at a time by make mutate, drawn by MUTATE_SEED;
# MUTATE_THRESHOLD percent of them must be caught.
MUTANTS ?= 100
MUTATE_SEED ?= 1
MUTATE_THRESHOLD ?= 80
# CHAOS_SEED is what make chaos draws its chances from (empty: the clock; a run
# prints its own); the others are how much of each kind it does.
CHAOS_SEED ?=
CHAOS_SEEDS ?= 20
CHAOS_CONTROLLER_SEEDS ?= 1
CHAOS_FAULTS ?= 2000
CHAOS_ROUNDS ?= 100
CHAOS_SHARDS ?= 20
CHAOS_ROLLOUTS ?= 10
CHAOS_WORKLOADS ?= 200
CHAOS_CHANCES ?= 1000
CHAOS_PLANS ?= 200
CHAOS_CONTEND ?= 5m
CHAOS_FLOOD ?= 2m
# CHAOS_PARALLEL scenarios run at once.
CHAOS_PARALLEL ?= 1
# CHAOS is more flags for it, such as --only=kill.
CHAOS ?=
# PROMETHEUS is a program that make smoke has pipelines ask: Debian's package has one.
PROMETHEUS ?= $(shell command -v prometheus)
# VULNDB is a version of the Go vulnerability database, which the module proxy has. It is
# pinned, so that no commit fails because of a later day; make nightly takes the latest.
VULNDB ?= v0.0.0-20261105234957-e22db6528018
# VERSION is what `keelson --version` says: the last tag v*, and the commits since.
VERSION ?= $(shell git describe --tags --always --dirty --match='v*' 2>/dev/null || echo unknown)

# What lint and tests run on, as MODULE:PATTERN,PATTERN. The lab, its benchmarks and
# what tools need are modules of their own.
# The simulation (fleet, sim) is made from Kubernetes' own packages, and the engines need half
# of Argo CD and Flux: make lint-bench and make test RACE=all, which the night runs, see them.
nested := lab/bench/engines lab/bench lab tools
module = $(firstword $(foreach m,$(nested),$(if $(filter $m $m/%,$1),$m)) .)
pattern = .$(if $(filter .,$2),/$1,$(1:$2%=%))
of = $(foreach p,$(PKG:./%=%),$(if $(filter $1,$(call module,$p)),$(call pattern,$p,$1)))
comma := ,
empty :=
space := $(empty) $(empty)
bench := .,./addons,./apply,./registry,./keelson,./render,./workloads$(if $(RACE),$(comma)./fleet$(comma)./sim)
packages := $(if $(PKG),$(foreach m,. $(nested),$(if $(strip $(call of,$m)),$m:$(subst $(space),$(comma),$(strip $(call of,$m))))),.:./... lab:./... tools:./... lab/bench:$(bench))
# The race detector is for packages that start goroutines or synchronize them: the others
# have nothing that it could find. RACE=all is for every package, those of slow_races too: their
# tests start the program by the hundred, or render by the hundred, at many times the cost.
slow_races := cmd|examples|controllers/delivery/hostiletest|lab/bench/registry
synchronizes := ^[[:space:]]+go (func|[[:alpha:]_.]+\()|"sync(/atomic)?"|errgroup|\bchan\b
concurrent = git grep --untracked -lE '$(if $(RACE),.,$(synchronizes))' -- '*.go' | xargs -n1 dirname | sort -u$(if $(RACE),, | grep -vxE '$(slow_races)')
# Of a folder with the race detector, the tests that run without it, as |A|B|C: those in
# files with this build tag cost much there, and have one goroutine.
norace = grep -slxF '//go:build !race' "$$folder"/*_test.go | xargs -r grep -hoE '^func (Test|Fuzz|Example)[[:alnum:]_]+' | sed 's/^func /|/' | tr -d '\n' || true
# Every module, those too that are only built by a tool.
modules := git ls-files -co --exclude-standard -- go.mod '*/go.mod' | grep -v /testdata/ | xargs -n1 dirname

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo '  PKG="./differ/... ./lab/cluster" limits lint, test and test-unit to these packages.'

##### build

.PHONY: build
build: ## build bin/keelson, which needs no C library
	go build -ldflags '-X main.version=$(VERSION)' -o bin/keelson .

.PHONY: generate
generate: bin/controller-gen ## generate deep copies, CRDs and their reference from api/
	bin/controller-gen object paths=./api/...
	bin/controller-gen crd paths=./api/v1alpha1 output:crd:dir=components/keelson/template/crds
	bin/controller-gen crd paths=./api/apps/... output:crd:dir=components/workload-controllers/template/crds
	@go build -C tools -o ../bin/apidocs ./apidocs
	bin/apidocs

.PHONY: openapi
openapi: lab bin-bench-fleet ## refresh the OpenAPI documents that are built into differ, and the discovery of the simulation
	@dir=$$(mktemp -d)
	trap 'bin/lab --state-dir "$$dir" down --all; rm -rf "$$dir"' EXIT
	bin/lab --state-dir "$$dir" up openapi --control-plane-only >/dev/null
	rm -f differ/openapi/*.json.gz
	bin/lab --state-dir "$$dir" openapi openapi differ/openapi
	bin/bench-fleet record "$$(bin/lab --state-dir "$$dir" kubeconfig openapi)" lab/bench/sim/surface

# PLATFORMS of the image; IMAGE is REGISTRY/NAME:TAG to push it to, if it is given.
PLATFORMS ?= linux/amd64 linux/arm64
IMAGE ?=

.PHONY: image
image: ## make a container image of keelson in dist/image, an OCI layout, and push it (IMAGE=REGISTRY/NAME:TAG)
	@binaries=""
	for platform in $(PLATFORMS); do
		(set -x; GOOS=$${platform%/*} GOARCH=$${platform#*/} \
			go build -ldflags '-s -w -X main.version=$(VERSION)' -o dist/$$platform/keelson .)
		binaries="$$binaries --binary $$platform=$(CURDIR)/dist/$$platform/keelson"
	done
	go run -C tools ./image $$binaries --version '$(VERSION)' --layout '$(CURDIR)/dist/image' $(if $(IMAGE),--push '$(IMAGE)')

.PHONY: reload-agent-image
reload-agent-image: ## make a container image of reload-agent in dist/reload-agent-image, and push it (IMAGE=REGISTRY/NAME:TAG)
	@binaries=""
	for platform in $(PLATFORMS); do
		(set -x; GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -ldflags '-s -w' -o dist/$$platform/reload-agent ./cmd/reload-agent)
		binaries="$$binaries --binary $$platform=$(CURDIR)/dist/$$platform/reload-agent"
	done
	go run -C tools ./image $$binaries --program reload-agent --version '$(VERSION)' --layout '$(CURDIR)/dist/reload-agent-image' $(if $(IMAGE),--push '$(IMAGE)')

##### run

.PHONY: lab
lab: ## build bin/lab, and once per machine the Kubernetes that it runs (10 minutes)
	go build -C lab -o ../bin/lab .
	go build -C lab -ldflags '-s -w' -o ../bin/testimage ./testimage
	bin/lab build

.PHONY: demo
demo: build lab bin-smoke ## start a hub, three clusters and the example fleet, and show around
	bin/smoke --demo

.PHONY: follow
follow: build lab bin-smoke ## follow docs/start/first-change.md word for word: the demo, a rollout, and one that stops in canary
	DOCS_TEST_FOLLOW=1 go test ./docs -run 'TestPages/first-change' -count=1 -timeout=30m -v

.PHONY: pages
pages: ## list the pages of the documentation with their words and minutes (200 words a minute; decisions and commands left out)
	@git ls-files README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md 'docs/*.md' | grep -vE '^docs/(decisions|reference/cli|evidence/night)/' | xargs wc -w |
		awk '{ printf "%6d words %4d min  %s\n", $$1, ($$1 + 199) / 200, $$2 }'

.PHONY: smoke
smoke: build lab bin-smoke ## run the demo unattended and check what it must show (PROMETHEUS=a prometheus, if there is one)
	bin/smoke $(if $(PROMETHEUS),--prometheus='$(PROMETHEUS)')

.PHONY: bin-smoke
bin-smoke:
	go build -C lab -o ../bin/smoke ./smoke

##### check

.PHONY: chaos
chaos: build lab bin-chaos bin/sops ## break things under Keelson for half an hour, and judge it by the audit log
	bin/chaos $(if $(CHAOS_SEED),--seed=$(CHAOS_SEED)) --seeds=$(CHAOS_SEEDS) --controller-seeds=$(CHAOS_CONTROLLER_SEEDS) \
		--parallel=$(CHAOS_PARALLEL) --faults=$(CHAOS_FAULTS) --rounds=$(CHAOS_ROUNDS) --shards=$(CHAOS_SHARDS) --rollout-seeds=$(CHAOS_ROLLOUTS) \
		--workloads=$(CHAOS_WORKLOADS) --chances=$(CHAOS_CHANCES) --plans=$(CHAOS_PLANS) --contend=$(CHAOS_CONTEND) --flood=$(CHAOS_FLOOD) $(CHAOS)

.PHONY: bin-chaos
bin-chaos:
	go build -C lab -o ../bin/chaos ./chaos

.PHONY: test
test: lab bin/gotestsum bin-testtimes ## run all tests, on real API servers where it matters, with the race detector where there is concurrency
	@assets=$$(bin/lab assets) older=none
	if [[ -n '$(OLDER)' ]]; then
		bin/lab build --kubernetes '$(OLDER)'
		older=$$(bin/lab assets --kubernetes '$(OLDER)')
	else
		echo 'left out: the tests on the oldest Kubernetes (OLDER is empty)'
	fi
	export KUBEBUILDER_ASSETS=$$assets KEELSON_OLDER_ASSETS=$$older
	rm -rf bin/tests
	mkdir -p bin/tests
	concurrent=$$($(concurrent))
	failed=''
	run() { # MODULE NAME CGO PACKAGES AND FLAGS: make lint runs vet
		[[ $$# -gt 3 ]] || return 0
		(set -x; cd "$$1" && CGO_ENABLED=$$3 '$(CURDIR)/bin/gotestsum' --format=pkgname --hide-summary=skipped --jsonfile='$(CURDIR)'/bin/tests/$$2.json -- -vet=off -shuffle=$(TEST_SEED) -p=$(TESTS_P) -parallel=$(TESTS_PARALLEL) -timeout=60m "$${@:4}") || failed+=" $$2"
	}
	for p in $(packages); do
		module=$${p%%:*} pure=() racing=() without=() names=''
		while read -r folder; do
			name=$${folder#'$(CURDIR)'} name=$${name#/}
			if ! grep -qxF "$${name:-.}" <<<"$$concurrent"; then
				pure+=("$$folder")
				continue
			fi
			racing+=("$$folder")
			left=$$($(norace))
			[[ -z $$left ]] || without+=("$$folder")
			names+=$$left
		done < <(cd "$$module" && go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' $$(tr , ' ' <<<"$${p#*:}") | sed '/^$$/d')
		name=$$(tr / - <<<"$${module/#./root}")
		run "$$module" "$$name" 0 "$${pure[@]}"
		run "$$module" "$$name-race" 1 "$${racing[@]+-race}" "$${racing[@]}"
		run "$$module" "$$name-norace" 0 "$${without[@]+-run=^($${names#|})\$$}" "$${without[@]}"
	done
	bin/testtimes bin/tests/*.json
	[[ -z $$failed ]] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: bin-testtimes
bin-testtimes:
	@go build -C tools -o ../bin/testtimes ./testtimes

# CRDS is a folder with the CRDs that ours stand in for.
CRDS ?= ../shared/kruise-crds
# CHARTS is a folder of charts that make fidelity renders in addition to the tests' own.
CHARTS ?=

.PHONY: crd-compat
crd-compat: ## say where the CRDs of the workloads are not as those in CRDS, which users come with, and whether that is intended
	@go build -C tools -o ../bin/crdcompare ./crdcompare
	for crd in components/workload-controllers/template/crds/*; do
		bin/crdcompare --intended tools/crdcompare/kruise.yaml "$(CRDS)/$${crd##*/}" "$$crd"
	done

# Not among the phases of .ci/run: to build Gitea takes minutes that it does not have.
.PHONY: forge
forge: build lab ## try pull requests, merges, a revert and promotions on a real Gitea, which is built once (4 minutes, a C compiler)
	bin/lab build --forge
	(set -x; KEELSON_BINARY='$(CURDIR)/bin/keelson' go test -C lab -count=1 -v -run='^TestForge' ./e2e)

.PHONY: e2e-kwok
e2e-kwok: build lab ## run workloads on a hundred nodes that kwok plays (2 minutes, no root)
	(set -x; KEELSON_BINARY='$(CURDIR)/bin/keelson' go test -C lab -count=1 -parallel=12 -timeout=20m -v $(if $(RUN),-run='$(RUN)') ./e2e/kwok)

.PHONY: e2e
e2e: e2e-check e2e-kwok ## the same, and then on real nodes, which are built once (3 minutes): as root, with Debian's runc, containernetworking-plugins and iptables
	bin/lab build --node real
	go build -C tools -o ../bin/image ./image
	go build -ldflags '-s -w' -o bin/reload-agent ./cmd/reload-agent
	(set -x; KEELSON_BINARY='$(CURDIR)/bin/keelson' KEELSON_LAB='$(CURDIR)/bin/lab' go test -C lab -count=1 -timeout=20m -v $(if $(RUN),-run='$(RUN)') ./e2e/nodes)

.PHONY: e2e-check
e2e-check: ## say what this machine lacks for the real nodes of make e2e
	@PATH=$$PATH:/usr/sbin:/sbin
	missing=() packages=()
	[[ $$(uname) = Linux ]] || missing+=('Linux')
	[[ $$EUID -eq 0 ]] || missing+=('root')
	[[ $$EUID -ne 0 ]] || unshare --mount --net --pid --uts --ipc --fork true 2>/dev/null || missing+=('the right to make namespaces (unshare)')
	need() { "$${@:3}" >/dev/null || { missing+=("$$1"); packages+=("$$2"); }; }
	need runc runc command -v runc
	need iptables iptables command -v iptables
	need 'the CNI plugin ptp' containernetworking-plugins eval '[[ -e /usr/lib/cni/ptp || -e /opt/cni/bin/ptp ]]'
	[[ $${#missing[@]} -gt 0 ]] || exit 0
	{
		printf 'make e2e runs real nodes, for which this machine lacks: %s' "$${missing[0]}"
		printf ', %s' "$${missing[@]:1}" | sed 's/^, $$//'
		echo
		[[ $${#packages[@]} -eq 0 ]] || echo "  Debian has packages for it: apt-get install --no-install-recommends $${packages[*]}"
		echo '  make e2e-kwok runs the tests that need no real node, and takes neither root nor packages.'
	} >&2
	exit 1

.PHONY: nightly
nightly: ## run all that .ci/run leaves out, one to two hours, and write docs/evidence/night anew
	.ci/nightly

.PHONY: test-unit
test-unit: ## run the tests that need no API server (go test -short): the quick loop
	@unset KUBEBUILDER_ASSETS KEELSON_OLDER_ASSETS
	for p in $(packages); do
		(set -x; go test -C $${p%%:*} -short -shuffle=$(TEST_SEED) $$(tr , ' ' <<<"$${p#*:}"))
	done

.PHONY: fidelity
fidelity: bin/helm ## compare what is rendered with helm template, the command, on every chart and set of values (CHARTS=FOLDER: on the charts in it, too)
	(set -x; KEELSON_HELM='$(CURDIR)/bin/helm' $(if $(CHARTS),KEELSON_CHARTS='$(abspath $(CHARTS))') go test -count=1 -v -run='^(TestFidelity|TestVendoredIsHelms)$$' ./renderer | grep -vE '^ *(=== |--- PASS)')

.PHONY: sequences
sequences: ## run the state machines of workloads and pipelines with many random SEQUENCES (1000000), with a seed of the commit
	@unset KUBEBUILDER_ASSETS
	seed=$(SEQUENCES_SEED)
	check() { # PACKAGE TEST HOW-MANY
		(set -x; go test -count=1 -timeout=120m "./controllers/$$1" -run="^$$2\$$" -rapid.seed="$$seed" -rapid.checks="$$3" -rapid.nofailfile)
	}
	for kind in statefulset cloneset daemonset; do check "workload/$$kind" TestRollouts $(SEQUENCES); done
	# A sequence of these takes longer.
	check workload/deployment TestRollouts $$(($(SEQUENCES) / 50 + 1))
	check rollout TestHistories $$(($(SEQUENCES) / 10 + 1))

.PHONY: oracle
oracle: lab bin/sops ## check TRIPLES (20000) random plans against a real API server, decryption of FILES (500) against sops
	@assets=$$(bin/lab assets)
	export KUBEBUILDER_ASSETS=$$assets KEELSON_TRIPLES=$(TRIPLES) KEELSON_SOPS='$(CURDIR)/bin/sops'
	(set -x; go test -count=1 -run='^TestIncremental$$' ./registry)
	(set -x; go test -count=1 -v -run='^TestOracle$$' ./registry/sops -rapid.checks=$(FILES))
	(set -x; go test -count=1 -timeout=60m -v -run='^TestOracle$$' ./applier)

.PHONY: bench
bench: lab bin-bench ## time Keelson beside Argo CD, Flux and Helm (BENCHTIME=200ms COUNT=6)
	@mkdir -p $(dir $(BENCHFILE))
	assets=$$(bin/lab assets)
	export KUBEBUILDER_ASSETS=$$assets
	{
		(set -x; go test -C lab/bench/engines -run='^$$' -bench='$(BENCH)' -benchtime=$(BENCHTIME) -count=$(COUNT) -benchmem -timeout=60m .)
		(set -x; go test -C lab/bench -run='^$$' -bench='$(BENCH)' -benchtime=$(BENCHTIME) -count=$(COUNT) -benchmem -timeout=60m ./render)
	} | tee $(BENCHFILE)
	echo
	bin/bench results '$(BENCHFILE)'
	echo
	$(MAKE) --no-print-directory bench-registry

.PHONY: bench-registry
bench-registry: build bin-bench ## time a cold start, small commits and previews on a fleet of 60,000 deliveries (FLEET="200 300 2000")
	@go build -C lab -o ../bin/lab .
	dir=$$(mktemp -d)
	trap 'rm -rf "$$dir"' EXIT
	set -- $(FLEET)
	bin/lab fleet --components "$$1" --clusters "$$2" --distinct "$$3" "$$dir/fleet.git"
	bin/bench registry --commits $(COMMITS) --keelson bin/keelson "$$dir/fleet.git"

.PHONY: bench-fleet
bench-fleet: build bin-bench-fleet ## run the controller on hundreds of simulated clusters (SIZES=10x50x10,30x100x10)
	bin/bench-fleet --sizes $(SIZES) $(BENCH_FLEET)

.PHONY: bin-bench-fleet
bin-bench-fleet:
	go build -C lab/bench -o ../../bin/bench-fleet ./fleet

.PHONY: bench-apply
bench-apply: build lab bin-bench ## bring a cluster to 1,000 components, beside a bare loop of applies (APPLY=1000)
	bin/bench apply --components $(APPLY)

.PHONY: bench-push
bench-push: build lab bin-bench ## the same by git push and webhook, and then 10 minutes of silence (APPLY=1000 QUIET=10m)
	bin/bench push --components $(APPLY) --quiet $(QUIET) $(BENCH_PUSH)

.PHONY: bench-peer
bench-peer: build lab bin-bench ## the same, then by Flux, which is built once (15 minutes) (APPLY=1000 QUIET=10m)
	bin/bench peer --components $(APPLY) --quiet $(QUIET) $(BENCH_PUSH)

.PHONY: bin-bench
bin-bench:
	go build -C lab/bench -o ../../bin/bench .

.PHONY: bench-workloads
bench-workloads: build lab bin-bench ## create, update in place and delete a CloneSet of PODS (2000), roll a DaemonSet on NODES (1000), beside a bare loop that writes the same pods
	bin/bench workloads --pods $(PODS) --nodes $(NODES)

.PHONY: fuzz
fuzz: ## try every fuzz target with FUZZTIME (10000x) inputs; one that fails ends no other
	@targets=$$(git ls-files -co --exclude-standard -- '*_test.go' | xargs grep -HoE '^func Fuzz[[:alnum:]_]+') || { echo 'no fuzz target found' >&2; exit 1; }
	failed=''
	while IFS=: read -r file func; do
		func=$${func#func }
		(set -x; go test -C "$$(dirname "$$file")" -run='^$$' -fuzz="^$$func\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=100x . </dev/null) || failed+=" $$func"
	done <<<"$$targets"
	[[ -z $$failed ]] || { echo "failed:$$failed" >&2; exit 1; }

# UPGRADES is a folder CHART/FROM..TO of upgrades, with old.yaml and new.yaml as rendered, and
# PROFILE that of the built-in rules.
UPGRADES ?= ../shared/upgrades
PROFILE ?= baseline

.PHONY: policy-noise
policy-noise: build ## count how many upgrades of charts the danger rules hold or warn of (UPGRADES=FOLDER PROFILE=strict)
	go build -C tools -o ../bin/policynoise ./policynoise
	bin/policynoise --profile '$(PROFILE)' '$(UPGRADES)'

.PHONY: sizes
sizes: ## list the largest types, packages and folders, and fail where one is beyond the limits (40 methods, 25 fields, 35 files)
	@go build -C tools -o ../bin/sizes ./sizes
	bin/sizes

.PHONY: sentences
sentences: ## draw 20 sentences from comments and messages, and count those that are too long (SEED=1)
	@go build -C tools -o ../bin/sentences ./sentences
	bin/sentences -seed '$(or $(SEED),1)'

.PHONY: mutate
mutate: ## make MUTANTS (100) small faults in differ and what it uses (or PKG), one at a time: its tests must catch 80 % of them
	@unset KUBEBUILDER_ASSETS
	go build -C tools -o ../bin/mutate ./mutate
	bin/mutate -n $(MUTANTS) -seed $(MUTATE_SEED) -threshold $(MUTATE_THRESHOLD) $(or $(PKG),-also ./differ/catalogue -also ./differ/expr ./differ)

.PHONY: lint
lint: bin/golangci-lint ## run the linters of .golangci.yaml, formatting included
	@for p in $(packages); do
		(set -x; cd $${p%%:*} && GOMEMLIMIT=2GiB '$(CURDIR)/bin/golangci-lint' run $$(tr , ' ' <<<"$${p#*:}"))
	done

.PHONY: lint-bench
lint-bench: ## the same for the simulation and the engines of the benchmarks, which take minutes to compile
	$(MAKE) --no-print-directory lint PKG="./lab/bench/fleet ./lab/bench/sim ./lab/bench/engines"

.PHONY: vuln
vuln: bin/govulncheck ## fail where the program reaches a known vulnerability that tools/vulncheck/accepted.txt does not accept (VULNDB=latest)
	@database=$$(go mod download -json 'golang.org/x/vulndb@$(VULNDB)' | sed -nE 's/^\t"Dir": "(.*)",?$$/\1/p')
	go build -C tools -o ../bin/vulncheck ./vulncheck
	(set -x; bin/govulncheck -db "file://$$database/data/osv" -format json . >bin/vulnerabilities.json)
	bin/vulncheck --accepted tools/vulncheck/accepted.txt <bin/vulnerabilities.json

.PHONY: verify
verify: generate sizes ## fail if generated code, a go.mod, the reference or anything else differs from what is committed, or a part is too large
	@for dir in $$($(modules)); do
		echo "go mod tidy -C $$dir -diff"
		diff=$$(go mod tidy -C "$$dir" -diff 2>&1) || {
			head -n 30 <<<"$$diff"
			echo "$$dir/go.mod or go.sum is not tidy: make tidy" >&2
			exit 1
		}
	done
	go test . ./cmd ./differ -vet=off -run '^Test(Links|Statuses|Messages|Limits|Variables|CredentialFields|Reference|SettingsReference|MetricsDocumented)$$'
	dirty=$$(git status --porcelain)
	if [[ -n $$dirty ]]; then
		git --no-pager diff HEAD | sed -n 1,100p
		echo "These files are not as committed (or not committed at all):"$$'\n'"$$dirty" >&2
		exit 1
	fi

##### tidy up

.PHONY: fmt
fmt: bin/golangci-lint ## format the Go files
	@for dir in . $(nested); do
		(cd $$dir && '$(CURDIR)/bin/golangci-lint' fmt)
	done

.PHONY: tidy
tidy: ## go mod tidy in every module
	@for dir in $$($(modules)); do
		(set -x; go mod tidy -C "$$dir")
	done

.PHONY: clean
clean: ## remove bin/; the built Kubernetes stays in the user's cache
	rm -rf bin

##### tools, pinned in tools/go.mod

.PHONY: tools
tools: bin/controller-gen bin/gofumpt bin/goimports bin/golangci-lint ## build the pinned tools, those for editors too, into bin/

bin/gotestsum:      tool := gotest.tools/gotestsum
bin/controller-gen: tool := sigs.k8s.io/controller-tools/cmd/controller-gen
bin/gofumpt:        tool := mvdan.cc/gofumpt
bin/goimports:      tool := golang.org/x/tools/cmd/goimports
bin/golangci-lint:  tool := github.com/golangci/golangci-lint/v2/cmd/golangci-lint

# Of the version whose library is built in, with what that was released with.
bin/helm: go.mod
	GOBIN='$(CURDIR)/bin' go install "helm.sh/helm/v3/cmd/helm@$$(go list -m -f '{{.Version}}' helm.sh/helm/v3)"
	@touch $@

bin/controller-gen bin/gofumpt bin/goimports bin/golangci-lint bin/gotestsum: tools/go.mod tools/go.sum
	go build -C tools -o ../$@ $(tool)
	@touch $@

# The real sops, which tests are held against: a module of its own.
bin/govulncheck: tools/vuln/go.mod tools/vuln/go.sum
	go build -C tools/vuln -o ../../$@ golang.org/x/vuln/cmd/govulncheck

bin/sops: tools/sops/go.mod tools/sops/go.sum
	go build -C tools/sops -o ../../$@ github.com/getsops/sops/v3/cmd/sops
	@touch $@
