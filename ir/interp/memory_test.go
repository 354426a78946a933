package interp_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

func parseModule(t *testing.T, body string) (*ir.Module, *ir.Func) {
	t.Helper()
	m, err := ir.Parse("m.ir", []byte("pwc 1\nmodule \"m\" {\n  sym N in [1, 64] batch\n"+body+"\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return m, m.Funcs[0]
}

func zeros(t *testing.T, shape ...int64) *interp.Tensor {
	t.Helper()
	x, err := interp.Zeros(dtype.F32, shape)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestMemoryIsBounded: the memory of a run is computed from the module and the symbols, and
// compared with the limit before the run allocates.
func TestMemoryIsBounded(t *testing.T) {
	doubled := "  func @f(%x: f32[N, 4]) -> (f32[N, 4]) {\n    %a0 = concat(%x, %x, axis=1)\n"
	for i := range 29 {
		doubled += fmt.Sprintf("    %%a%d = concat(%%a%d, %%a%d, axis=1)\n", i+1, i, i)
	}
	doubled += "    %s = slice(%a29, axis=1, start=0, end=4)\n    return %s\n  }"
	for name, body := range map[string]string{
		"one huge value":            "  func @f(%x: f32[N, 4]) -> (f32[9663676416]) {\n    %y = full(1.0, shape=[9663676416], dtype=f32)\n    return %y\n  }",
		"doubled thirty times":      doubled,
		"a broadcast":               "  func @f(%x: f32[N, 4]) -> (f32[N, 4]) {\n    %y = broadcast_to(%x, shape=[1073741824, N, 4])\n    %z = sum(%y, axes=[0])\n    return %z\n  }",
		"many values held together": "  func @f(%x: f32[N, 4]) -> (f32[1073741824]) {\n    %a = full(1.0, shape=[1073741824], dtype=f32)\n    %b = neg(%a)\n    %c = add(%a, %b)\n    return %c\n  }",
	} {
		m, f := parseModule(t, body)
		env := &interp.Env{Observe: func(int, *ir.Node, []*interp.Tensor) { t.Errorf("%s: a node ran", name) }}
		_, err := interp.Run(context.Background(), m, f, env, []*interp.Tensor{zeros(t, 3, 4)})
		var e *interp.MemoryError
		if !errors.Is(err, interp.ErrMemory) || !errors.As(err, &e) || e.Limit != interp.DefaultMaxBytes || e.Bytes <= e.Limit || !strings.HasPrefix(err.Error(), "m.ir:") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// At the node of %b the run needs the sizes of %a and %b, once more that of %b, and an axis of 6
	// elements.
	m, f := parseModule(t, "  func @f(%x: f32[N, 4]) -> (f32[N, 4]) {\n    %a = neg(%x)\n    %b = neg(%a)\n    %c = neg(%b)\n    return %c\n  }")
	const each = 6 * 4 * 8
	for limit, fits := range map[int64]bool{3*each + 6*8: true, 3*each + 6*8 - 1: false} {
		_, err := interp.Run(context.Background(), m, f, &interp.Env{MaxBytes: limit}, []*interp.Tensor{zeros(t, 6, 4)})
		if errors.Is(err, interp.ErrMemory) == fits || fits && err != nil {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// TestMemoryOfResults: copies of results count, and exceeding the limit with them is a MemoryError too.
func TestMemoryOfResults(t *testing.T) {
	m, f := parseModule(t, "  func @f(%x: f32[N, 4]) -> (f32[N, 4], f32[N, 4], f32[N, 4], f32[N, 4]) {\n    %a = neg(%x)\n    return %a, %a, %a, %a\n  }")
	const each = 6 * 4 * 8
	_, err := interp.Run(context.Background(), m, f, &interp.Env{MaxBytes: 4 * each}, []*interp.Tensor{zeros(t, 6, 4)})
	var e *interp.MemoryError
	if !errors.As(err, &e) || e.At.Node != -1 || e.Bytes != 5*each || e.Limit != 4*each || !strings.Contains(err.Error(), "results of @f") {
		t.Errorf("error %v", err)
	}
}

// counted is a context whose Err returns an error from call number end on.
type counted struct {
	context.Context
	looks, end int
}

func (c *counted) Err() error {
	if c.looks++; c.looks >= c.end {
		return context.Canceled
	}
	return nil
}

// TestEndInCollective: if the context ends within the last node, and that is a collective, the run has
// no results.
func TestEndInCollective(t *testing.T) {
	m, f := parseModule(t, "  group tp in 2\n  func @f(%x: f32[1024, 256] varying over tp) -> (f32[2048, 256]) {\n    %y = all_gather(%x, group=tp)\n    return %y\n  }")
	inputs := [][]*interp.Tensor{{zeros(t, 1024, 256)}, {zeros(t, 1024, 256)}}
	c := &counted{context.Background(), 0, 4}
	if out, err := interp.RunRanks(c, m, f, make([]*interp.Env, 2), inputs); out != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%d results, %v", len(out), err)
	}
}

// TestUnreadVersions: a run drops memory whose last use is a write.
func TestUnreadVersions(t *testing.T) {
	m, f := parseModule(t, "  func @f(%x: f32[N, 4]) -> (f32[N, 4]) {\n    %e = full(1.0, shape=[N, 4], dtype=f32)\n    copy(%e, %x)\n    %y = neg(%x)\n    return %y\n  }")
	var written weak.Pointer[interp.Tensor]
	env := &interp.Env{Observe: func(node int, n *ir.Node, results []*interp.Tensor) {
		switch node {
		case 1:
			written = weak.Make(results[0])
		case 2:
			runtime.GC()
			if written.Value() != nil {
				t.Error("the run holds memory that it does not count")
			}
		}
	}}
	if _, err := interp.Run(context.Background(), m, f, env, []*interp.Tensor{zeros(t, 6, 4)}); err != nil {
		t.Fatal(err)
	}
}

// TestVisitsBetweenLooks counts how often the context is checked in nodes of 2^20 visits or more:
// at least 16 times for each of these ops. If a check finds that the context has ended, the run
// ends.
func TestVisitsBetweenLooks(t *testing.T) {
	const visits, step = 1 << 20, 1 << 16
	for _, body := range []string{
		"%y = neg(%x)", "%y = cast(%x, dtype=i32)", "%y = add(%x, 1.0)", "%y = sum(%x, axes=[0])", "%y = softmax(%x, axis=1)",
		"%y = transpose(%x, perm=[1, 0])", "%y = cumsum(%x, axis=0)", "%y, %i = topk(%x, k=1)",
		"%y = compare(%x, 0.5, dir=lt)", "%c = compare(%x, 0.5, dir=lt)\n    %y = where(%c, %x, %x)", "%y = broadcast_to(%x, shape=[2, 1024, 1024])",
		"%s = slice(%x, axis=0, start=0, end=32)\n    %t = transpose(%s, perm=[1, 0])\n    %y = matmul(%t, %s)",
		"%s = slice(%x, axis=0, start=0, end=32)\n    %y = linear(%s, %x)",
		"%y = full(1.0, shape=[1024, 1024], dtype=f32)", "%y = iota(shape=[1024, 1024], dtype=i32)",
	} {
		text := "  func @f(%x: f32[1024, 1024]) {\n    " + body + "\n    return\n  }"
		m, err := ir.Parse("m.ir", []byte("pwc 1\nmodule \"m\" {\n"+text+"\n}\n"))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		run := func(end int) (int, error) {
			c := &counted{context.Background(), 0, end}
			_, err := interp.Run(c, m, m.Funcs[0], nil, []*interp.Tensor{zeros(t, 1024, 1024)})
			return c.looks, err
		}
		if looks, err := run(1 << 30); err != nil || looks < visits/step {
			t.Errorf("%s: %d looks, %v", body, looks, err)
		}
		if looks, err := run(5); !errors.Is(err, context.Canceled) || looks != 5 {
			t.Errorf("%s: ended at look %d of 5: %v", body, looks, err)
		}
	}
}
