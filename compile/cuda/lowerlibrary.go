package cuda

import (
	"slices"

	"pwc/compile"
	"pwc/compile/cuda/internal/library"
	"pwc/compile/cuda/internal/loopgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/program"
)

// lowerLibrary adds the variants in which the library routine computes a GEMM: one before the kernels
// that all devices run, and, for tuning, one before the arch-specific kernels (see beforeSpecific).
func (b *Backend) lowerLibrary(k *loop.Kernel, code *compile.Code) error {
	call, ok := library.Match(k)
	rows := k.Rows[len(k.Rows)-1]
	if !ok {
		return nil
	}
	iv := nest.RowsRange(k)
	if iv.Hi < library.LeastRows {
		return nil
	}
	temp := int32(len(k.Args))
	y := call.Y
	if y < 0 {
		y = temp
		code.Temps = []compile.Temp{call.Temp}
	}
	v := compile.Variant{
		Guard: program.Guard{Expr: rows, Lo: max(iv.Lo, library.LeastRows), Hi: iv.Hi},
		Steps: []compile.Step{{Library: library.Routine, Attrs: call.Attrs, Args: []int32{call.X, call.W, y}}},
	}
	if call.Epilogue != nil {
		src, err := loopgen.Source(call.Epilogue, b.gpu)
		if err != nil {
			return err
		}
		kernel, err := b.compile(unit{src})
		if err != nil {
			return err
		}
		v.Steps = append(v.Steps, compile.Step{Kernel: kernel, Launch: src.Launch, Args: append(call.From, temp)})
	}
	n := 0
	for n < len(code.Variants) && preferenceOf(code.Variants[n]) == bySpecific {
		n++
	}
	specific, others := code.Variants[:n], code.Variants[n:]
	code.Variants = slices.Concat(beforeSpecific(specific, v), specific, []compile.Variant{v}, others)
	return nil
}
