package archtest

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// exported has the exported functions of a folder, and its exported types with exported methods.
type exported struct {
	funcs, types map[string]bool
}

func exports(t *testing.T, folder string) exported {
	t.Helper()
	e := exported{map[string]bool{}, map[string]bool{}}
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || !d.Name.IsExported() {
				continue
			}
			if d.Recv == nil {
				e.funcs[d.Name.Name] = true
			} else if owner := receiver(d.Recv.List[0].Type); ast.IsExported(owner) {
				e.types[owner] = true
			}
		}
	}
	return e
}

// sweeper calls functions and methods with hostile arguments.
type sweeper struct {
	t      *testing.T
	rng    *rand.Rand
	values map[reflect.Type][]reflect.Value // values to pass besides nil and zero values, by type
	opaque map[reflect.Type]bool            // types whose values come only from parsers and builders: no field is set to a hostile value
	failed map[string]string                // by name: the first panic, or that it does not return
	seen   map[string]bool                  // names that have a case
	calls  int
}

var contextType = reflect.TypeFor[context.Context]()

// hostile returns values of a type that no caller should pass: nil, zero, negative, enormous,
// empty, with control characters, and then those of s.values. The first is the zero value; for a
// context it is one that has ended, and a function returns zero values.
func (s *sweeper) hostile(typ reflect.Type, depth int) []reflect.Value {
	out := []reflect.Value{reflect.Zero(typ)}
	add := func(vs ...any) {
		for _, v := range vs {
			out = append(out, reflect.ValueOf(v).Convert(typ))
		}
	}
	if typ == contextType {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		out = []reflect.Value{reflect.ValueOf(ended)} // a nil context panics everywhere in Go
	}
	switch typ.Kind() {
	case reflect.Bool:
		add(true)
	case reflect.Int, reflect.Int64:
		add(-1, int64(math.MinInt64), int64(math.MaxInt64), int64(1)<<40, 1)
	case reflect.Int32:
		add(-1, int32(math.MinInt32), int32(math.MaxInt32))
	case reflect.Int8, reflect.Int16:
		add(-1, 1, 127, -128)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint, reflect.Uintptr:
		add(1, 7, 255)
		out = append(out, reflect.New(typ).Elem())
		out[len(out)-1].SetUint(1<<(8*typ.Size()-1) - 1)
	case reflect.Float32, reflect.Float64:
		add(-1.0, math.NaN(), math.Inf(1), math.Inf(-1))
	case reflect.String:
		add("nope", "\x1b[31m\n\xff", "a/../../b", strings.Repeat("x", 5000))
	case reflect.Slice:
		out = append(out, reflect.MakeSlice(typ, 0, 0))
		if depth > 0 {
			for _, v := range s.hostile(typ.Elem(), depth-1) {
				out = append(out, reflect.Append(reflect.MakeSlice(typ, 0, 1), v))
			}
		}
	case reflect.Map:
		out = append(out, reflect.MakeMap(typ))
		if depth > 0 {
			m := reflect.MakeMap(typ)
			for i, k := range s.hostile(typ.Key(), 0) {
				vs := s.hostile(typ.Elem(), depth-1)
				m.SetMapIndex(k, vs[i%len(vs)])
			}
			out = append(out, m)
		}
	case reflect.Pointer:
		out = append(out, reflect.New(typ.Elem()))
		if depth > 0 && typ.Elem().Kind() == reflect.Struct && !s.opaque[typ.Elem()] {
			for _, v := range s.structs(typ.Elem(), depth-1) {
				p := reflect.New(typ.Elem())
				p.Elem().Set(v)
				out = append(out, p)
			}
		}
	case reflect.Struct:
		if depth > 0 && !s.opaque[typ] {
			out = append(out, s.structs(typ, depth-1)...)
		}
	case reflect.Func: // a nil function panics where it is called, as everywhere in Go
		out = append(out[:0], reflect.MakeFunc(typ, func([]reflect.Value) []reflect.Value {
			var zeros []reflect.Value
			for i := range typ.NumOut() {
				zeros = append(zeros, reflect.Zero(typ.Out(i)))
			}
			return zeros
		}))
	}
	if typ.Kind() == reflect.Interface {
		for t, vs := range s.values {
			if t.Implements(typ) {
				out = append(out, vs...)
			}
		}
	} else {
		out = append(out, s.values[typ]...)
	}
	return out
}

// structs returns values with one hostile exported field each.
func (s *sweeper) structs(typ reflect.Type, depth int) []reflect.Value {
	var out []reflect.Value
	for i := range typ.NumField() {
		if !typ.Field(i).IsExported() {
			continue
		}
		for _, v := range s.hostile(typ.Field(i).Type, depth)[1:] {
			x := reflect.New(typ).Elem()
			x.Field(i).Set(v)
			out = append(out, x)
		}
	}
	return out
}

// call calls f with one varied argument in each call, and then with random combinations of arguments.
func (s *sweeper) call(name string, f reflect.Value) {
	s.seen[name] = true
	typ := f.Type()
	lists := make([][]reflect.Value, typ.NumIn())
	most := 1
	for i := range lists {
		lists[i] = s.hostile(typ.In(i), 2)
		most += len(lists[i])
	}
	pick := make([]int, len(lists))
	invoke := func() {
		args := make([]reflect.Value, len(lists))
		for i := range args {
			args[i] = lists[i][pick[i]]
		}
		s.invoke(name, f, args)
	}
	for _, live := range []bool{false, true} { // the other arguments: the first values (zero), then the last, valid ones if s has any
		for i := range lists {
			if pick[i] = 0; live {
				pick[i] = len(lists[i]) - 1
			}
		}
		base := slices.Clone(pick)
		invoke()
		for i := range lists {
			for j := range lists[i] {
				pick[i] = j
				invoke()
			}
			pick[i] = base[i]
		}
	}
	if len(lists) > 1 {
		for range min(most, 20) {
			for i := range pick {
				pick[i] = s.rng.IntN(len(lists[i]))
			}
			invoke()
		}
	}
}

// invoke calls f and remembers a panic, or that it does not return.
func (s *sweeper) invoke(name string, f reflect.Value, args []reflect.Value) {
	if exceptedName(name) != "" || s.failed[name] != "" {
		return
	}
	s.calls++
	done := make(chan string, 1)
	go func() {
		defer func() {
			p := recover()
			if p == nil {
				done <- ""
				return
			}
			var where []string
			for line := range strings.Lines(string(debug.Stack())) {
				if strings.Contains(line, "/") && strings.Contains(line, ".go:") && !strings.Contains(line, "/archtest/") && !strings.Contains(line, "/src/") {
					where = append(where, filepath.Base(strings.Fields(strings.TrimSpace(line))[0]))
				}
			}
			done <- fmt.Sprintf("%v at %s", p, strings.Join(where[:min(3, len(where))], " < "))
		}()
		if f.Type().IsVariadic() {
			f.CallSlice(args)
		} else {
			f.Call(args)
		}
	}()
	var panicked string
	select {
	case panicked = <-done:
	case <-time.After(5 * time.Second):
		panicked = "it does not return"
	}
	if panicked == "" || s.failed[name] != "" {
		return
	}
	var texts []string
	for _, a := range args {
		text := fmt.Sprintf("%.80q", fmt.Sprintf("%#v", safe(a)))
		texts = append(texts, text)
	}
	s.failed[name] = fmt.Sprintf("(%s): %s", strings.Join(texts, ", "), panicked)
}

// safe returns an argument for printing: the type, where printing the value could call its methods.
func safe(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan:
		if v.IsNil() {
			return nil
		}
		return v.Type().String()
	case reflect.Struct:
		return v.Type().String()
	}
	return v.Interface()
}

const (
	asIndexing = "panics for an index out of range, as indexing a slice does; it has no error to return"
	asNil      = "reads a module that the caller has; nil panics as a nil pointer does, and it has no error to return"
)

// ofOthers are functions and methods that are not called, and why: methods of types whose values only
// other functions make, so that zero values have no meaning, functions for implementations of devices,
// and functions of validated programs.
var ofOthers = map[string]string{
	"runtime/mem.Scope.":          "made by an allocator",
	"runtime/mem.Owner.":          "made by an allocator",
	"runtime/mem.State.":          "made by a pool",
	"runtime/device.Branch.":      "made by Captures.Begin",
	"runtime/device.Recording.":   "made by Captures.Begin",
	"runtime/device.Captures.":    "for implementations of devices",
	"runtime/device.Connect":      "for implementations of devices",
	"runtime/device.WriteDOT":     "for implementations of devices",
	"runtime/device.Assigned.":    "for implementations of devices",
	"runtime/device.Resolved.":    "for implementations of devices",
	"runtime/device.Resolve":      "of a program that was validated",
	"runtime/device.Specialize":   "of a program that was validated",
	"runtime/device.ScratchBytes": "of a program that was validated",
	"runtime/device.Call":         "of a program that was validated",
	"runtime/device.Holds":        "of a program that was validated",
	"runtime/device.ForDevice":    "of a program that was validated",
	"runtime/device.Env":          "of a program that was validated",
	"runtime/device.Fence.":       "made by NewFence, for a stream",
	"runtime/device.OpCall.":      "made by a device for a call, whose operands it counts",
}

// exceptedName returns why a function is not called, or "".
func exceptedName(name string) string {
	if why := excepted[name]; why != "" {
		return why
	}
	for prefix, why := range ofOthers {
		if name == prefix || strings.HasSuffix(prefix, ".") && strings.HasPrefix(name, prefix) {
			return why
		}
	}
	return ""
}

// excepted are functions that are not called, because by contract they panic, do not return or write files,
// and why.
var excepted = map[string]string{
	"runtime/device.Buffer.Slice":  "panics as slicing does",
	"runtime/host.Stream.Parallel": "runs as many parts as it is told",

	"train.Step.Save": "writes to the directory that it is told",

	"ir.Func.Type":               asIndexing,
	"ir.Func.Base":               asIndexing,
	"ir.Func.Def":                asIndexing,
	"ir.Rewriter.Map":            asIndexing,
	"ir.Rewriter.Replace":        asIndexing,
	"ir.FuncPrinter.Node":        asIndexing,
	"ir/interp.Tensor.At":        asIndexing,
	"ir/interp.Tensor.Int":       asIndexing,
	"ir/interp.Tensor.Set":       asIndexing,
	"ir/interp.Tensor.SetInt":    asIndexing,
	"compile/loop.Kernel.Rounds": asIndexing,

	"ir.Print":                asNil,
	"ir.PrintFunc":            asNil,
	"ir.NewFuncPrinter":       asNil,
	"ir.HashFunc":             asNil,
	"ir.Canonical":            asNil,
	"ir.SymbolNames":          asNil,
	"ir.Module.ErrorAt":       asNil,
	"ir.Module.NodeString":    asNil,
	"ir.Rewriter.Keep":        asNil,
	"ir.Rewriter.KeepWith":    asNil,
	"ir/padding.Check":        asNil,
	"ir/padding.CheckIndices": asNil,
	"ir/padding.SizeSymbol":   asNil,
	"split.WhyUncapturable":   asNil,
}

// sweep calls all of a folder's functions and all methods of its types' receivers.
func (s *sweeper) sweep(folder string, p api) {
	e := exports(s.t, folder)
	for name := range e.funcs {
		if _, ok := p.funcs[name]; !ok {
			s.t.Errorf("%s.%s has no case in the sweep", folder, name)
		}
	}
	for name := range e.types {
		if !slices.ContainsFunc(p.receivers, func(r func() any) bool { return typeName(r()) == name }) {
			s.t.Errorf("type %s.%s has no receiver in the sweep", folder, name)
		}
	}
	for name, f := range p.funcs {
		if !e.funcs[name] {
			s.t.Errorf("%s has no function %s", folder, name)
		}
		s.call(folder+"."+name, reflect.ValueOf(f))
	}
	for _, make := range p.receivers {
		typ := reflect.TypeOf(make())
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			s.call(folder+"."+typeName(make())+"."+m.Name, reflect.ValueOf(make()).Method(i))
		}
	}
}

func typeName(v any) string {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(t.Name(), "[")
	return name
}

// api has the exported functions of a folder, and functions that make values whose methods are called.
type api struct {
	funcs     map[string]any
	receivers []func() any
}

// zero returns the zero value of a type.
func zero[T any]() any { return *new(T) }

// ptr returns a pointer to a zero value.
func ptr[T any]() any { return new(T) }
