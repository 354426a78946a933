package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"pwc/frontend/hf"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// life serves requests until all have ended, and closes everything. It returns the
// errors of all calls, and how the requests ended.
func life(drv *fake.Driver, m *hf.Model, src safetensors.Source, o Options) (reasons []Reason, err error) {
	ctx := context.Background()
	r, end, err := openFake(drv, m, o)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return nil, err
	}
	failed := r.Load(ctx, src)
	if failed != nil { // after a transient error, a second Load must succeed
		switch again := r.Load(ctx, src); {
		case errors.Is(again, device.ErrDeviceLost):
			return nil, failed
		case again != nil:
			return nil, fmt.Errorf("%w: %w, after %w", errAgain, again, failed)
		}
	}
	var seqs []*Sequence
	for i := range o.MaxSequences + 1 {
		s, err := r.Submit(ctx, Request{Prompt: []int32{int32(i), 2, 3, 4, 5}, MaxNew: 4, Sampling: Sampling{Temperature: float64(i), TopK: 3 * i, TopP: 1}})
		if err != nil {
			return nil, err
		}
		seqs = append(seqs, s)
	}
	var errs []error
	for more := true; more; {
		var err error
		more, err = r.Step(ctx)
		errs = append(errs, err)
	}
	for _, s := range seqs {
		reasons = append(reasons, s.Reason())
		errs = append(errs, s.Err())
	}
	return reasons, errors.Join(append(errs, failed)...)
}

var errAgain = errors.New("a second Load failed")

// tiny is a model of one layer: each weight adds some calls of the driver.
const tiny = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32,
"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
"torch_dtype": "float32", "max_position_embeddings": 128, "hidden_act": "silu", "tie_word_embeddings": true}`

// Each call of the driver fails once, from the opening of the device to its close, with a transient
// error (out of memory) and with a permanent one (launch failed). The error must name the failed call,
// unless that releases the context, and every request must end. After a transient error a second Load
// must succeed, and no resource of the driver may be left. The test tries one call in eleven, or with
// PWC_EVERY_CALL=1 all of them.
func TestEveryCallFails(t *testing.T) {
	m, err := hf.Builtin().Import([]byte(tiny), hf.Options{DType: dtype.F32, BlockSize: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	src := hf.Dummy(m.Params)
	o := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{4}}}, MaxSequences: 2, MaxTokens: 4, MaxLength: 16, Blocks: 8}
	kernels := ahead(t, m, &o)
	open := func() *fake.Driver {
		return fake.New(fake.Options{Version: 12020, Schedule: fake.Eager, Kernels: kernels})
	}
	clean := open()
	reasons, err := life(clean, m, src, o)
	if err != nil || len(reasons) != 3 {
		t.Fatal(reasons, err)
	}
	calls := clean.Calls()
	if calls < 300 {
		t.Fatalf("a runner makes %d calls", calls)
	}
	every := 11
	if os.Getenv("PWC_EVERY_CALL") == "1" {
		every = 1
	}
	const outOfMemory, launchFailed = 2, 719
	for _, result := range []int{outOfMemory, launchFailed} {
		for n := 1; n <= calls; n += every {
			drv := open()
			drv.Fail(n, result)
			reasons, err := life(drv, m, src, o)
			what := fmt.Sprintf("call %d (%s) fails by %d", n, drv.Failed(), result)
			switch {
			case drv.Failed() == "":
				continue // this run made fewer than n calls
			case err == nil:
				if result != launchFailed || drv.Failed() != "cuDevicePrimaryCtxRelease" {
					t.Errorf("%s: no error", what)
				}
			case !strings.Contains(err.Error(), drv.Failed()):
				t.Errorf("%s: %v does not name the call", what, err)
			case errors.Is(err, errAgain):
				t.Errorf("%s: %v", what, err)
			}
			for i, why := range reasons {
				if why == Unfinished {
					t.Errorf("%s: request %d has not ended", what, i)
				}
			}
			if err != nil && result == outOfMemory && strings.Contains(err.Error(), "left behind") {
				t.Errorf("%s: %v", what, err)
			}
			if result == outOfMemory && len(drv.Leaks()) > 0 || len(drv.Misuse()) > 0 {
				t.Errorf("%s: left behind %q, misuse %q", what, drv.Leaks(), drv.Misuse())
			}
		}
	}
}
