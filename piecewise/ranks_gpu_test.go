package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	"pwc/frontend/hf"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/program"
)

// TestTransformersLogitsOfRanksOnGPU compares 24 checkpoints, divided between two
// GPUs, with transformers in the modes none, piecewise and full-and-piecewise. On emulated GPUs it
// tests only llama in f32, in mode piecewise.
func TestTransformersLogitsOfRanksOnGPU(t *testing.T) {
	var c compiled
	kernels := peerKernels{}
	for _, name := range []string{"llama", "mistral", "granite", "qwen2", "qwen3", "starcoder2", "phi3", "glm4", "gemma2", "gemma3", "cohere_qknorm", "cohere2", "exaone4",
		"olmo2", "olmo3_bias", "gpt2", "gpt_neox", "phi_qknorm", "mixtral", "qwen2_moe", "qwen3_moe", "smollm3", "ministral3", "falcon3"} {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
			for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.FullAndPiecewise} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, dt, mode), func(t *testing.T) {
					devices := cudatest.Several(t, 2, fake.Options{})
					if devices[0].Emulated && (name != "llama" || dt != dtype.F32 || mode != piecewise.Piecewise) {
						t.Skip("too much for emulated GPUs")
					}
					holdRanksOnGPU(t, &c, &kernels, devices, mode, name, hf.Options{DType: dt, BlockSize: blockSize, Context: 64, Ranks: 2})
				})
			}
		}
	}
}

// peerKernels compiles each kernel of collectives once.
type peerKernels struct {
	mu   sync.Mutex
	made map[collectivecuda.Variant]*program.Program
}

func (k *peerKernels) code(c collectivecuda.Compiler, target string) collectivecuda.Code {
	return func(ctx context.Context, v collectivecuda.Variant) (p *program.Program, err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.made == nil {
			k.made = map[collectivecuda.Variant]*program.Program{}
		}
		if k.made[v] == nil {
			k.made[v], err = collectivecuda.Compile(ctx, c, target, v)
		}
		return k.made[v], err
	}
}

func holdRanksOnGPU(t *testing.T, c *compiled, kernels *peerKernels, devices []*cudatest.Opened, mode piecewise.Mode, name string, o hf.Options) {
	t.Helper()
	groups, err := collective.Local("tp", len(devices), collective.Options{Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	code := kernels.code(devices[0].Compiler(t), devices[0].Info().Target)
	var options []piecewise.Options
	for rank, dev := range devices {
		o := c.on(t, dev, small)
		o.Rank, o.Capture.Mode, o.Capture.Sizes, o.Debug.Poison = rank, mode, []int64{1, 2, 4, 8, 16, 24}, true
		if dev.Emulated {
			o.Capture.Sizes = []int64{2}
		}
		options = append(options, o)
	}
	logits, errs := make([][]float32, len(devices)), make([]error, len(devices))
	var all sync.WaitGroup
	for rank, g := range groups {
		all.Go(func() {
			errs[rank] = errors.New("the test ended") // by Goexit
			defer func() {
				if errs[rank] != nil {
					g.Fail(errs[rank])
				}
			}()
			if errs[rank] = collectivecuda.Add(t.Context(), devices[rank].Device, collectivecuda.Options{Code: code}, g); errs[rank] != nil {
				return
			}
			errs[rank] = errors.New("the test ended")
			golden := openGoldenWith(t, name, o)
			if o.DType == dtype.BF16 { // partial sums are rounded before they are added, and once more with a bias
				golden.bound, golden.same = 2*golden.bound, 2*golden.same
			}
			b := golden.backend(t, options[rank])
			rows := len(golden.ids)
			if devices[rank].Emulated {
				rows = 2
			} else {
				golden.holdLogits(t, b)
			}
			logits[rank] = golden.forward(t, b, 0, rows)
			if e := relative(logits[rank], golden.logits[:rows*golden.vocab]); !(e <= golden.bound) {
				t.Errorf("first %d rows: relative error %.3g, want at most %.3g", rows, e, golden.bound)
			}
			errs[rank] = g.Barrier(t.Context()) // nobody closes while others work
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(logits[0], logits[1]) {
		t.Error("the ranks have different logits")
	}
}
