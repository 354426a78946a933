package cli_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/safetensors"
)

// makeTensors is the scripts' command for files of tensors:
//
//	safetensors FILE NAME:DTYPE=1,2,3 …        a vector each
//	safetensors --print FILE                   names, types, shapes and the first 8 values
func makeTensors() {
	if err := tensors(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tensors(args []string) error {
	if args[0] == "--print" {
		return printTensors(args[1])
	}
	var list []safetensors.Tensor
	for _, arg := range args[1:] {
		name, rest, _ := strings.Cut(arg, ":")
		kind, values, _ := strings.Cut(rest, "=")
		dt, ok := dtype.Parse(kind)
		if !ok {
			return fmt.Errorf("dtype %q", kind)
		}
		var v []float64
		for s := range strings.SplitSeq(values, ",") {
			x, err := strconv.ParseFloat(s, 64)
			if err != nil {
				return err
			}
			v = append(v, x)
		}
		shape := []int64{int64(len(v))}
		t, err := interp.Zeros(dt, shape)
		if err != nil {
			return err
		}
		for i, x := range v {
			t.Set(i, x)
		}
		list = append(list, safetensors.Tensor{Name: name, DType: dt, Shape: shape, Data: t.Bytes()})
	}
	return safetensors.Write(args[0], list, nil)
}

func printTensors(path string) error {
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, name := range f.Names() {
		t, err := f.Tensor(name)
		if err != nil {
			return err
		}
		x, err := interp.FromBytes(t.DType, t.Shape, t.Data)
		if err != nil {
			return err
		}
		fmt.Printf("%s %s%v %v\n", name, t.DType, t.Shape, x.Float64s()[:min(8, x.Len())])
	}
	return nil
}
