package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pwc/collective"
	collectivehost "pwc/collective/host"
	"pwc/frontend/hf"
	"pwc/internal/irgen"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// onRanks runs f at the same time for each rank of a group, on a device of its own. A rank that
// fails ends the group.
func onRanks(t *testing.T, size int, f func(rank int, dev *hostdev.Device) error) []error {
	t.Helper()
	groups, err := collective.Local("tp", size, collective.Options{Limit: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, size)
	var all sync.WaitGroup
	for rank, g := range groups {
		all.Go(func() {
			errs[rank] = errors.New("the test ended") // stays if f ends by Goexit, as t.Fatal does
			defer func() {
				if errs[rank] != nil {
					g.Fail(errs[rank])
				}
			}()
			dev := hostdev.Open(hostdev.Options{Workers: 1})
			defer dev.Close()
			if errs[rank] = collectivehost.Add(dev, g); errs[rank] == nil {
				errs[rank] = f(rank, dev)
			}
		})
	}
	all.Wait()
	return errs
}

// interpret runs f in the interpreter, on all devices of the module with the same inputs, and
// returns the results of rank 0. The other ranks have the same.
func interpret(ctx context.Context, m *ir.Module, f *ir.Func, env *interp.Env, inputs []*interp.Tensor) ([]*interp.Tensor, error) {
	if m.World() == 1 {
		return interp.Run(ctx, m, f, env, inputs)
	}
	envs, all := []*interp.Env{env}, [][]*interp.Tensor{inputs}
	for range m.World() - 1 {
		own := *env
		own.States = map[string]*interp.Tensor{}
		for name, s := range env.States {
			own.States[name] = s.Clone()
		}
		clones := make([]*interp.Tensor, len(inputs))
		for i, x := range inputs {
			clones[i] = x.Clone()
		}
		envs, all = append(envs, &own), append(all, clones)
	}
	out, err := interp.RunRanks(ctx, m, f, envs, all)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// TestRandomRanks compares random modules for two or three ranks with the interpreter, which runs all
// ranks. All ranks take their artifacts from one store (C21).
func TestRandomRanks(t *testing.T) {
	first, count := fromEnv(t, "PWC_RANDOM_SEED", 0), fromEnv(t, "PWC_RANDOM_MODULES", 60)/3
	store, exchanged := pieces.NewMemoryStore(), 0
	for i := range count {
		seed := int64(first + i)
		make := func() (*rand.Rand, *ir.Module, piecewise.Options) {
			r := rand.New(rand.NewSource(seed))
			m := irgen.Generate(r, irgen.Options{MixRows: r.Intn(3) == 0, Ranks: 2 + r.Intn(2), Load: r.Intn(2) == 0, MaxOps: 1 + r.Intn(30)})
			o := randomOptions(r, m)
			o.Compile.Store = store
			return r, m, o
		}
		_, m, o := make()
		for _, n := range m.Funcs[0].Nodes {
			if n.Op.Class == ir.Collective {
				exchanged++
			}
		}
		errs := onRanks(t, m.World(), func(rank int, dev *hostdev.Device) error {
			r, m, o := make()
			o.Device, o.Rank = dev, rank
			return runRandom(r, m, o)
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("module %d, mode %s, split on %q, sizes %v, compiled %v and %v: %v\n%s", seed, o.Capture.Mode, o.Compile.SplitOn, o.Capture.Sizes, o.Compile.Sizes, o.Compile.Endpoints, err, ir.Print(m))
		}
	}
	if exchanged == 0 {
		t.Error("no module had a collective")
	}
}

// TestTransformersLogitsOfRanks compares three checkpoints, with PWC_ALL_RANKS=1 27 of them, divided
// among 2 and 4 devices, with transformers in the modes none, piecewise and full-and-piecewise.
func TestTransformersLogitsOfRanks(t *testing.T) {
	names := []string{"llama", "olmo2", "mixtral"}
	if fromEnv(t, "PWC_ALL_RANKS", 0) > 0 {
		names = []string{"llama", "mistral", "granite", "qwen2", "qwen3", "starcoder2", "phi3", "glm4", "gemma2", "gemma3", "cohere_qknorm", "cohere2", "exaone4",
			"olmo2", "olmo3_bias", "gpt2", "gpt_neox", "phi_qknorm", "mixtral", "qwen2_moe", "qwen3_moe", "smollm3", "ministral3", "falcon3", "gemma", "qwen3_vl_moe", "gemma3_vl"}
	}
	for _, name := range names {
		for _, ranks := range []int64{2, 4} {
			if name == "phi_qknorm" && ranks == 4 {
				continue // it has two heads
			}
			t.Run(fmt.Sprintf("%s/%d", name, ranks), func(t *testing.T) { holdRanks(t, name, ranks) })
		}
	}
}

func holdRanks(t *testing.T, name string, ranks int64) {
	store := pieces.NewMemoryStore()
	options := hf.Options{DType: dtype.F32, BlockSize: blockSize, Context: 64, Ranks: ranks, ExpertParallel: name == "qwen3_moe" && ranks == 2}
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.FullAndPiecewise} {
		logits := make([][]float32, ranks)
		errs := onRanks(t, int(ranks), func(rank int, dev *hostdev.Device) error {
			g := openGoldenWith(t, name, options)
			b := g.backend(t, piecewise.Options{Device: dev, Rank: rank, Compile: piecewise.CompileOptions{Store: store},
				Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 4, 16}}})
			g.holdLogits(t, b)
			logits[rank] = g.forward(t, b, 0, len(g.ids))
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		for rank := range logits {
			if !slices.Equal(logits[rank], logits[0]) {
				t.Errorf("%s: rank %d has other logits than rank 0", mode, rank)
			}
		}
	}
}

// TestRanksAreChecked pins the errors of a wrong Options.Rank, and of a device without routines for
// collectives.
func TestRanksAreChecked(t *testing.T) {
	m := testkit.Parse(t, `pwc 1 module "m" { sym N in [1, 4] batch sym r in [0, 1] load group tp in 2 rank r func @f(%x: f32[N, 2]) -> (f32[N, 2]) { %y = neg(%x) return %y } }`)
	for want, o := range map[string]piecewise.Options{
		"Options.Rank is 2; 2 devices":                             {Rank: 2},
		"Options.Rank is -1; 2 devices run":                        {Rank: -1},
		`Options.Memory.Symbols["r"] = 0, but device 1 has rank 1`: {Rank: 1, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"r": 0}}},
	} {
		if _, _, err := piecewise.Check(m, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	// A device without the routines refuses the program, and says which it lacks.
	m = testkit.Parse(t, `pwc 1 module "m" { sym N in [1, 4] batch group tp in 1 func @f(%x: f32[N, 2] partial over tp) -> (f32[N, 2]) { %y = all_reduce(%x, group=tp) return %y } }`)
	if _, err := piecewise.New(t.Context(), m, onHost(t)); !errors.Is(err, device.ErrDeclined) || !strings.Contains(err.Error(), "collective::all_reduce") {
		t.Errorf("a device without the routine: %v", err)
	}
}
