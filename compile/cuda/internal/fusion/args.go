package fusion

import (
	"slices"

	"pwc/compile"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// joined has the arguments of a chain. Arguments that are the same memory are one.
type joined struct {
	c     *compile.Chain
	first []int32 // by kernel: its first argument in the chain
	mids  []int32 // memory that kernels of the chain pass to each other
	alive bool    // one of mids is used outside the chain
}

// joinArgs returns the arguments of a chain.
func joinArgs(c *compile.Chain) *joined {
	j := &joined{c: c}
	n := int32(0)
	for _, k := range c.Kernels {
		j.first = append(j.first, n)
		n += int32(len(k.Args))
	}
	return j
}

// root identifies the memory of a kernel's argument: it returns the chain's first argument with the
// same memory.
func (j *joined) root(kernel int, arg int32) int32 { return j.c.Same[j.first[kernel]+arg] }

// handOn adds memory to mids.
func (j *joined) handOn(root int32) {
	j.mids = append(j.mids, root)
	j.alive = j.alive || !j.c.Dead[root]
}

// independent reports whether no other kernel touches what kernel i writes, except that the GEMM
// reads what the prologue writes, and an epilogue what the GEMM writes. Blocks do not wait for each
// other.
func (j *joined) independent(i, gemm int) bool {
	for a, x := range j.c.Kernels[i].Args {
		if !x.Write {
			continue
		}
		for o := range j.c.Kernels {
			handed := i < gemm && o == gemm || i == gemm && o > gemm
			if o != i && slices.ContainsFunc(j.touching(o, j.root(i, int32(a))), func(y loop.Arg) bool { return y.Write || !handed }) {
				return false
			}
		}
	}
	return true
}

// touching returns the arguments of a kernel that are the memory root.
func (j *joined) touching(kernel int, root int32) []loop.Arg {
	var out []loop.Arg
	for a, x := range j.c.Kernels[kernel].Args {
		if j.root(kernel, int32(a)) == root {
			out = append(out, x)
		}
	}
	return out
}

// launch returns the arguments of a launch, which are all memory except mids, and the chain's arguments
// that they are.
func (j *joined) launch() (args []loop.Arg, from []int32) {
	for i, k := range j.c.Kernels {
		for a, x := range k.Args {
			root := j.root(i, int32(a))
			if slices.Contains(j.mids, root) {
				continue
			}
			n := slices.Index(from, root)
			if n < 0 {
				args, from = append(args, x), append(from, root)
				continue
			}
			args[n].Write = args[n].Write || x.Write
			args[n].Const = args[n].Const && x.Const
		}
	}
	return args, from
}

// renumber returns a kernel of the chain with the arguments of the fused launch, then those of mids.
func (j *joined) renumber(i int) *loop.Kernel {
	args, from := j.launch()
	for _, root := range j.mids {
		args, from = append(args, j.arg(root)), append(from, root)
	}
	return nest.WithArgs(j.c.Kernels[i], args, func(a int32) int32 { return int32(slices.Index(from, j.root(i, a))) })
}

// arg returns argument root of the chain.
func (j *joined) arg(root int32) loop.Arg {
	i := len(j.first) - 1
	for j.first[i] > root {
		i--
	}
	return j.c.Kernels[i].Args[root-j.first[i]]
}
