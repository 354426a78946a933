// Command neon generates the assembly for arm64, which avo does not support:
//
//	go generate ./runtime/host ./internal/simd
//
// With -what dots it writes the host device's dot products: those of command host, with two
// registers of four accumulators for each sum, and one or two rows of A. With -what muladd it
// writes the GEMM tiles of attention: those of command simd with 16 columns. Instructions that
// Go's assembler does not know are written as words: FADD of vectors, FCVTL and FCVTL2 (Arm
// Architecture Reference Manual for A-profile, C7.2).
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
)

const (
	cols      = 4  // rows of B of a dot product
	lanes     = 8  // elements of a step of a dot product
	lineBytes = 64 // of a line of the cache
	vectors   = 4  // registers of a row of a tile: 16 columns
)

// element is a type of numbers in memory.
type element struct {
	name, doc string
	size      int
}

var elements = []element{{"F32", "float32", 4}, {"BF16", "bf16", 2}, {"F16", "f16", 2}}

// file is the output: assembly, and declarations in Go.
type file struct{ asm, stubs bytes.Buffer }

func (f *file) line(format string, args ...any) { fmt.Fprintf(&f.asm, format+"\n", args...) }

func (f *file) op(format string, args ...any) { f.line("\t"+format, args...) }

// function begins a function of parameters of eight bytes each, and loads them to R0, R1, ….
func (f *file) function(name, doc string, params []string, signature string) {
	f.line("\n// func %s(%s)", name, signature)
	f.line("TEXT ·%s(SB), NOSPLIT, $0-%d", name, 8*len(params))
	for i, p := range params {
		f.op("MOVD %s+%d(FP), R%d", p, 8*i, i)
	}
	fmt.Fprintf(&f.stubs, "\n// %s %s\n//\n//go:noescape\nfunc %s(%s)\n", name, doc, name, signature)
}

// fadd adds vectors of four float32.
func (f *file) fadd(m, n, d int) {
	f.op("WORD $0x%08x // FADD V%d.S4, V%d.S4, V%d.S4", 0x4e20d400|m<<16|n<<5|d, m, n, d)
}

// widen converts eight narrow numbers in V(from) to float32 in V(lo) and V(hi). V(zero) is 0.
func (f *file) widen(e element, from, lo, hi, zero int) {
	if e.name == "BF16" {
		f.op("VZIP1 V%d.H8, V%d.H8, V%d.H8", from, zero, lo)
		f.op("VZIP2 V%d.H8, V%d.H8, V%d.H8", from, zero, hi)
		return
	}
	f.op("WORD $0x%08x // FCVTL V%d.H4, V%d.S4", 0x0e217800|from<<5|lo, from, lo)
	f.op("WORD $0x%08x // FCVTL2 V%d.H8, V%d.S4", 0x4e217800|from<<5|hi, from, hi)
}

// dots emits dots{R}{T}. V0 to V15 are sums, V16 to V19 rows of A, V20 and V21 a row of B, V22 its
// narrow elements, V23 zero. R3 and R8 to R10 point to rows of B, R1 and R11 to rows of A, R12 to
// R15 to the rows that are prefetched.
func (f *file) dots(rows int, e element) {
	name := fmt.Sprintf("dots%d%s", rows, e.name)
	f.function(name, fmt.Sprintf("adds to c %d×4 dot products of float32 and %s rows.", rows, e.doc),
		[]string{"k", "a", "lda", "b", "ldb", "ahead", "c", "pitch"}, "k int, a *float32, lda int, b *byte, ldb, ahead int, c *float32, pitch int")
	shift := 1
	if e.size == 4 {
		shift = 2
	}
	f.op("ADD R2<<2, R1, R11")
	f.op("LSL $%d, R4, R4", shift)
	rowsB := []int{3, 8, 9, 10}
	for j := 1; j < cols; j++ {
		f.op("ADD R4, R%d, R%d", rowsB[j-1], rowsB[j])
	}
	for j := range cols {
		f.op("ADD R5<<%d, R%d, R%d", shift, rowsB[j], 12+j)
	}
	for i := range 2 * cols * rows {
		f.op("VEOR V%d.B16, V%d.B16, V%d.B16", i, i, i)
	}
	f.op("VEOR V23.B16, V23.B16, V23.B16")
	step := func() {
		for i, a := range []int{1, 11}[:rows] {
			f.op("VLD1.P 32(R%d), [V%d.S4, V%d.S4]", a, 16+2*i, 17+2*i)
		}
		for j, b := range rowsB {
			if e.size == 4 {
				f.op("VLD1.P 32(R%d), [V20.S4, V21.S4]", b)
			} else {
				f.op("VLD1.P 16(R%d), [V22.H8]", b)
				f.widen(e, 22, 20, 21, 23)
			}
			for i := range rows {
				s := 2 * (i*cols + j)
				f.op("VFMLA V20.S4, V%d.S4, V%d.S4", 16+2*i, s)
				f.op("VFMLA V21.S4, V%d.S4, V%d.S4", 17+2*i, s+1)
			}
		}
	}
	steps := lineBytes / (lanes * e.size)
	f.line("\nlines:")
	f.op("SUBS $%d, R0, R0", steps*lanes)
	f.op("BLT rest")
	for j := range cols {
		f.op("PRFM (R%d), PLDL2KEEP", 12+j)
		f.op("ADD $%d, R%d, R%d", lineBytes, 12+j, 12+j)
	}
	for range steps {
		step()
	}
	f.op("B lines")
	f.line("\nrest:")
	f.op("ADD $%d, R0, R0", steps*lanes)
	f.line("\nloop:")
	f.op("SUBS $%d, R0, R0", lanes)
	f.op("BLT done")
	step()
	f.op("B loop")
	f.line("\ndone:")
	for i := range cols * rows {
		s := 2 * i
		f.fadd(s+1, s, s) // s0+s4, s1+s5, s2+s6, s3+s7
		f.op("VEXT $8, V%d.B16, V%d.B16, V16.B16", s, s)
		f.fadd(16, s, s) // (s0+s4)+(s2+s6), (s1+s5)+(s3+s7)
		f.op("VDUP V%d.S[1], V16.S4", s)
		f.op("FADDS F16, F%d, F%d", s, s)
		f.op("FMOVS %d(R6), F16", 4*(i%cols))
		f.op("FADDS F%d, F16, F%d", s, s)
		f.op("FMOVS F%d, %d(R6)", s, 4*(i%cols))
		if i == cols-1 {
			f.op("ADD R7<<2, R6, R6")
		}
	}
	f.op("RET")
}

// mulAdd emits muladd{R}x16{T}. V0 to V23 are a tile of C, V24 to V27 a row of B, V28 and V29 its
// narrow elements, V30 zero, V31 a number of A. R1 and R8 to R12 point to rows of A.
func (f *file) mulAdd(rows int, e element) {
	name := fmt.Sprintf("muladd%dx%d%s", rows, 4*vectors, e.name)
	f.function(name, fmt.Sprintf("adds %d rows of A times k rows of %s to %d columns of C.", rows, e.doc, 4*vectors),
		[]string{"k", "a", "lda", "b", "ldb", "c", "ldc"}, "k int, a *float32, lda int, b *byte, ldb int, c *float32, ldc int")
	shift := 1
	if e.size == 4 {
		shift = 2
	}
	f.op("LSL $2, R2, R2")
	f.op("LSL $%d, R4, R4", shift)
	f.op("LSL $2, R6, R6")
	as := []int{1, 8, 9, 10, 11, 12}[:rows]
	for i := 1; i < rows; i++ {
		f.op("ADD R2, R%d, R%d", as[i-1], as[i])
	}
	tile := func(op string) {
		f.op("MOVD R5, R13")
		for i := range rows {
			regs := fmt.Sprintf("[V%d.S4, V%d.S4, V%d.S4, V%d.S4]", 4*i, 4*i+1, 4*i+2, 4*i+3)
			if op == "VLD1" {
				f.op("VLD1 (R13), %s", regs)
			} else {
				f.op("VST1 %s, (R13)", regs)
			}
			f.op("ADD R6, R13, R13")
		}
	}
	tile("VLD1")
	f.op("VEOR V30.B16, V30.B16, V30.B16")
	f.line("\nloop:")
	f.op("SUBS $1, R0, R0")
	f.op("BLT done")
	if e.size == 4 {
		f.op("VLD1 (R3), [V24.S4, V25.S4, V26.S4, V27.S4]")
	} else {
		f.op("VLD1 (R3), [V28.H8, V29.H8]")
		f.widen(e, 28, 24, 25, 30)
		f.widen(e, 29, 26, 27, 30)
	}
	f.op("ADD R4, R3, R3")
	for i, a := range as {
		f.op("VLD1R.P 4(R%d), [V31.S4]", a)
		for j := range vectors {
			f.op("VFMLA V%d.S4, V31.S4, V%d.S4", 24+j, vectors*i+j)
		}
	}
	f.op("B loop")
	f.line("\ndone:")
	tile("VST1")
	f.op("RET")
}

func main() {
	log.SetFlags(0)
	what := flag.String("what", "", "dots or muladd")
	out := flag.String("out", "", "`FILE` of the assembly")
	stubs := flag.String("stubs", "", "`FILE` of the declarations")
	pkg := flag.String("pkg", "", "their package")
	flag.Parse()
	var f file
	const generated = "// Code generated by command neon. DO NOT EDIT.\n\n//go:build arm64 && !purego\n\n"
	f.asm.WriteString(generated + "#include \"textflag.h\"\n")
	f.stubs.WriteString(generated + "package " + *pkg + "\n")
	for _, e := range elements {
		switch *what {
		case "dots":
			for rows := 1; rows <= 2; rows++ {
				f.dots(rows, e)
			}
		case "muladd":
			for rows := 1; rows <= 6; rows++ {
				f.mulAdd(rows, e)
			}
		default:
			log.Fatalf("-what %q: dots or muladd", *what)
		}
	}
	for name, text := range map[string]string{*out: f.asm.String(), *stubs: f.stubs.String()} {
		if err := os.WriteFile(name, []byte(strings.TrimRight(text, "\n")+"\n"), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
