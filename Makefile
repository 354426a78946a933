# Shorthands for ordinary go commands. To build and test pwc, `go build ./cmd/pwc`
# and `go test ./...` suffice. CI runs .ci/run.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GPU_ARCH ?= sm_90
FUZZTIME ?= 10s
SOAK ?= 30
HTTP_SOAK ?= 60
RANDOM_MODULES ?= 2000
BENCHTIME ?= 1s
COUNT ?= 5

# The commit that pwc version prints if Go records no commit in the program.
COMMIT = -X pwc/cli.commit=$(shell git rev-parse HEAD 2>/dev/null)

# The packages that the race detector tests whole: most of those whose values several goroutines may use, or that
# start goroutines.
CONCURRENT = ./attention/... ./pieces ./cache/... ./collective/... ./graphs ./internal/cuda/... ./piecewise ./runner/... ./runtime/... ./safetensors ./serve ./silly

# Packages that start goroutines in few places, and the tests of these places: compile/cuda
# lowers the variants of a chain concurrently, frontend/hf makes a dummy weight in concurrent parts.
# Their other tests take minutes under the race detector. The target random races package compile.
PARTLY = ./compile/cuda ./frontend/hf
PARTLY_RUN = ^Test(FusedLaunches|CompileFused|Compile8B|GEMMChain|GEMMChainArchSpecific|SameEverywhere|Epilogues|Dummy|DummyValues)$$

# Packages with tests for a GPU.
GPU = attention/cuda autodiff cli collective/cuda compile/cuda frontend/pt2 graphs graphs/callables graphs/scenario graphs/tree graphs/whole piecewise runner runtime/cuda runtime/cuda/cublaslt silly/cuda train tune

.PHONY: build test gpu-test embed lint targets race arch random soak fuzz golden bench cross ci-deps

build: # build the command line, static, into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags="$(COMMIT)" -o bin/pwc ./cmd/pwc

test:
	go test ./...

gpu-test: # build into out/gpu what .ci/gpu runs on a machine with a GPU; needs NVRTC and no GPU. A part of .ci/gpu runs the PTX of sm_80
	rm -rf out/gpu && mkdir -p out/gpu
	set -e; for p in $(GPU); do \
	  CGO_ENABLED=0 go test -c -trimpath -ldflags="-s -w" -o out/gpu/$$(echo $$p | tr / -).test ./$$p; \
	done
	CGO_ENABLED=0 go build -trimpath -ldflags="-s -w $(COMMIT)" -o out/gpu/pwc ./cmd/pwc
	for arch in sm_80 $(GPU_ARCH); do \
	  PWC_CACHE_DIR=$(CURDIR)/out/gpu/cache PWC_CACHE_PATH= out/gpu/pwc compile testdata/hf/llama --dtype f32 --target cuda:$$arch || exit 1; \
	done

embed: # vet and test another Go module, which embeds pwc
	cd testdata/embed && go vet ./... && CGO_ENABLED=0 go test ./...

lint: # check formatting, go vet and staticcheck, and the formatting of modules in text
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go run ./cmd/pwc fmt --check testdata/*.ir testdata/train/*.ir cli/examples/*.ir

# Checkpoints that targets skips: another one of the family has the same kernels, with other numbers.
VARIANTS = */*_full/*|*/*_gelu/*|*/*_qknorm/*|*/*_scaled/*|*/*_bias/*|*/*_vl/*|*/*_vl_moe/*|*/*_stepped/*|*/*_window/*|*/*_interval/*|*/llama_*/*|*/mistral3_*/*|*/ministral3/*|*/falcon3/*

targets: # compile every module of testdata for two GPUs, and each family of checkpoints for one, with attention and sampling; build a pwc without CUDA
	go build -tags nocuda -o /dev/null ./cmd/pwc
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; go build -o $$dir/pwc ./cmd/pwc; \
	{ for m in testdata/*.ir; do echo cuda:sm_80 $$m; echo cuda:sm_90 $$m; done; \
	t=cuda:sm_80; u=cuda:sm_90; for m in testdata/hf/*/config.json; do case $$m in $(VARIANTS)) continue;; esac; echo $$t $$m; x=$$t; t=$$u; u=$$x; done; } | \
	PWC_CACHE= PWC_CACHE_PATH= PWC_CACHE_REMOTE= PWC_CACHE_DIR=$$dir/cache xargs -n 2 -P 2 sh -c 'echo "$$1 $$2"; case $$2 in *.json) set -- $$@ --context 64;; esac; '$$dir'/pwc compile --capture-sizes none --target $$@ >/dev/null' compile

race: # test with the race detector, without tests that compile many kernels or models one after the other
	go test -race -timeout 20m -skip '^(TestCompile|TestTransformersGreedy|TestTransformersProcessors)$$' $(CONCURRENT)
	go test -race -timeout 20m -run '$(PARTLY_RUN)' $(PARTLY)

arch: # test on a 32-bit architecture, where programs must have the same bytes, and test the assembly for arm64
	.ci/arch ./attention/... ./pieces ./cache/... ./checkpoint ./compile/... ./internal/cuda/... ./ir/... ./piecewise ./program/... ./runtime/... ./safetensors ./split
	.ci/arm64 ./internal/simd ./attention/host
	.ci/arm64 -run 'Unit|MatMul' ./runtime/host

random: # compare RANDOM_MODULES modules with the interpreter, and a tenth of them without each pass, with the race detector, and cut, captured and replayed
	PWC_RANDOM_MODULES=$(RANDOM_MODULES) go test -timeout 15m -run '^TestRandom(Exact)?Modules$$' ./compile
	PWC_RANDOM_MODULES=$$(( $(RANDOM_MODULES) / 10 )) go test -timeout 15m -run '^TestRandomModulesWithoutAPass$$' ./compile
	PWC_RANDOM_MODULES=$$(( $(RANDOM_MODULES) / 10 )) go test -timeout 15m -race -run '^TestRandomModules$$' ./compile
	PWC_RANDOM_MODULES=$$(( $(RANDOM_MODULES) / 10 )) PWC_ALL_RANKS=1 go test -timeout 15m -run '^(TestRandomModules|TestRandomRanks|TestTransformersLogitsOfRanks)$$' ./piecewise
	PWC_SAMPLED_STEPS=10000 PWC_ALL_RANKS=1 go test -timeout 15m -run '^TestRanks(SampleTheSame|Greedy)$$' ./runner

soak: # send random requests to the runner for SOAK seconds and to servers for HTTP_SOAK seconds, and kill processes of groups
	PWC_SOAK=$(SOAK) go test -timeout 30m -run '^TestSoak$$' -v ./runner
	PWC_SOAK=$(HTTP_SOAK) go test -timeout 30m -run '^TestSoak$$' -v ./serve
	PWC_TEST_KILLS=200 go test -timeout 30m -run Killed -v ./collective

fuzz: # run each fuzz target for FUZZTIME
	.ci/fuzz $(FUZZTIME)

golden: # rewrite the expected files of tests; a person reads the diff
	@set -e; for p in $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -n1 dirname | sort -u); do \
	  go test $$p -update; \
	done
	git --no-pager diff --stat

bench: # COUNT runs of every Go benchmark; docs/performance.md has medians
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -count $(COUNT) ./...

cross: # build without cgo, for which only Go is needed, and look for float operations that the compiler fuses on arm64
	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build ./...
	.ci/fused
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go build ./...

ci-deps: # install what .ci/run needs besides Go
	.ci/deps
