# Everything here is an ordinary go command; none of it is needed to use pwc.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 20s

# Packages in which goroutines meet; `make race` and CI run them under the race detector.
CONCURRENT = ./attention/... ./build/... ./cache/... ./internal/... ./piecewise/... ./runtime/... ./safetensors/... ./silly/...

.PHONY: all build test lint race random fuzz golden bench cross embed ci-deps

all: build lint test

build: # the command line, into bin/
	CGO_ENABLED=0 go build -trimpath -o bin/pwc ./cmd/pwc

test:
	go test ./...

lint: # formatting, go vet, staticcheck
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go run ./cmd/pwc fmt --check testdata/*.ir cli/examples/*.ir

race:
	go test -race $(CONCURRENT)

random: # random modules against the interpreter: 2000, and 200 under the race detector
	PWC_RANDOM_MODULES=2000 go test -count=1 -timeout 15m -run Random ./compile/...
	PWC_RANDOM_MODULES=200 go test -count=1 -timeout 15m -race -run Random ./compile/...

fuzz: # each fuzz target for FUZZTIME
	@set -e; for p in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
			echo "$$p $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p; \
		done; \
	done

golden: # rewrite what tests expect; read the diff
	go test ./cli ./frontend/hf ./ir ./split -update

bench:
	go test -run '^$$' -bench . -benchmem ./...

cross: # what is released, without cgo
	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -o /dev/null ./cmd/pwc
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -o /dev/null ./cmd/pwc
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go build -o /dev/null ./cmd/pwc

embed: # a module of its own that embeds pwc
	cd testdata/embed && go vet ./... && go test ./...

ci-deps: # what .ci/run needs beside Go: the race detector is built with a C compiler
	command -v gcc >/dev/null || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev; }
	go mod download
