package chat

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"
)

// library has the library's filters that limited calls after its check, by name.
type library map[string]jinja.Value

// libraryFilters returns filters of the library. Templates cannot reach them (filterPrefix).
func libraryFilters(names ...string) (library, error) {
	out := library{}
	for _, name := range names {
		program, err := jinja.Compile("{{ take(" + filterPrefix + name + ") }}")
		if err != nil {
			return nil, err
		}
		take := jinja.NewCallable("take", func(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
			out[name] = args[0]
			return jinja.None(), nil
		})
		if _, err := program.RenderValues(map[string]jinja.Value{"take": take}); err != nil {
			return nil, err
		}
		if !out[name].IsCallable() {
			return nil, fmt.Errorf("the library has no filter %s", name)
		}
	}
	return out, nil
}

// at records the line of the tag that is computed.
func (r *run) at(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	r.line = args[0].AsInt()
	return jinja.None(), nil
}

// print returns the value of an expression tag, which has a limit.
func (r *run) print(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	n, err := r.measure(args[1], nil)
	if err == nil {
		err = r.write(n)
	}
	if err != nil {
		return r.fail(err)
	}
	return args[1], nil
}

// set returns the value of a set statement. With a third argument, that namespace gets the value.
func (r *run) set(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	var space any
	err := error(nil)
	if len(args) > 2 {
		space, err = container(args[2]), changeable(args[2])
	}
	if err == nil {
		_, err = r.measure(args[1], space)
	}
	if err != nil {
		return r.fail(err)
	}
	return args[1], nil
}

// write counts bytes of output, also those of macros, call blocks and set blocks.
func (r *run) write(n int64) error {
	if r.written += n; r.written > maxWritten {
		return fmt.Errorf("%w: the output of all tags has more than %d bytes", ErrLimit, maxWritten)
	}
	return nil
}

// container returns the address of a list or a dict; nil for other values.
func container(v jinja.Value) any {
	switch {
	case v.IsList():
		return v.AsList()
	case v.IsDict():
		return v.AsDict()
	}
	return nil
}

// changeable returns an error for the object loop, to which the library assigns values without a check. It is the only
// dict with values that are not among its keys.
func changeable(v jinja.Value) error {
	if v.IsDict() && len(v.AsDict().Data) != len(v.AsDict().Keys) {
		return fmt.Errorf("%w: the object loop cannot be changed", ErrTemplate)
	}
	return nil
}

// measure returns an upper bound of the bytes of a value when it is printed, above 0 also for an empty value. The argument
// into is the container that gets the value, or nil. It is an error if the value is this container or contains it, is
// nested too deep or is larger than MaxResult, or if measure has visited more than maxVisits values in this rendering.
func (r *run) measure(v jinja.Value, into any) (int64, error) {
	size := int64(0)
	err := r.visit(v, into, 0, &size)
	return size, err
}

func (r *run) visit(v jinja.Value, into any, depth int, size *int64) error {
	*size += printedBytes(v)
	r.visits++
	switch {
	case into != nil && container(v) == into:
		return fmt.Errorf("%w: a value would contain itself", ErrLimit)
	case depth > maxDepth:
		return fmt.Errorf("%w: a value is nested more than %d deep", ErrLimit, maxDepth)
	case *size > MaxResult:
		return fmt.Errorf("%w: a value of more than %d bytes", ErrLimit, MaxResult)
	case r.visits > maxVisits:
		return fmt.Errorf("%w: values with more than %d elements, in all tags", ErrLimit, maxVisits)
	case v.IsList():
		for _, item := range v.AsList().Items {
			if err := r.visit(item, into, depth+1, size); err != nil {
				return err
			}
		}
	case v.IsDict():
		for _, key := range v.AsDict().Keys {
			*size += int64(len("'': ") + len(key))
			if err := r.visit(v.AsDict().Data[key], into, depth+1, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// printedBytes bounds the bytes of a value as an item of a printed list, without the values that it contains.
func printedBytes(v jinja.Value) int64 {
	n := len("Undefined")
	switch {
	case v.IsString():
		n = len("''") + len(v.AsString())
	case v.IsInt(), v.IsFloat():
		n = len("-2.2250738585072014e-308") // the longest %g; integers have up to 20 bytes
	case v.IsList(), v.IsDict():
		n = len("[]")
	case v.IsCallable():
		n = len("<callable >") + len(v.AsCallable().Name)
	}
	return int64(n + len(", "))
}

// factor returns a left operand of *. A string is refused if the right operand is not given, or is an integer by which
// the string has more than MaxResult bytes. The library repeats strings by no other operand.
func (r *run) factor(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	r.line = args[1].AsInt()
	switch v := args[0]; {
	case !v.IsString() || len(args) > 2 && !args[2].IsInt():
	case len(args) == 2:
		return r.fail(fmt.Errorf("%w: a string is multiplied by an expression: multiply by an integer or a variable", ErrLimit))
	case args[2].AsInt() > MaxResult/int64(max(1, len(v.AsString()))):
		return r.fail(fmt.Errorf("%w: a string of %d bytes times %d, at most %d bytes", ErrLimit, len(v.AsString()), args[2].AsInt(), MaxResult))
	}
	return args[0], nil
}

// bounding returns an upper bound of the bytes of a filter's result, for its arguments and the measured size of the
// first.
type bounding func(args []jinja.Value, options map[string]jinja.Value, size int64) int64

// limited returns a filter of the library whose result has a limit.
func (r *run) limited(name string, bytes bounding) func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	return func(args []jinja.Value, options map[string]jinja.Value) (jinja.Value, error) {
		size := int64(0)
		for i, a := range append(slices.Clone(args), slices.Collect(maps.Values(options))...) {
			n, err := r.measure(a, nil)
			if err != nil {
				return r.fail(err)
			}
			if i == 0 {
				size = n
			}
		}
		if n := bytes(args, options, size); n > MaxResult {
			return r.fail(fmt.Errorf("%w: a text of up to %d bytes by %s, at most %d", ErrLimit, n, name, MaxResult))
		}
		return r.library[name].AsCallable().Fn(args, options)
	}
}

// textOf returns a value as the library prints it. The value must be measured.
func textOf(v jinja.Value) string {
	switch {
	case v.IsString():
		return v.AsString()
	case v.IsNone(), v.IsUndefined(), v.IsCallable():
		return ""
	}
	return v.String()
}

// replacedBytes bounds the result of the filter replace.
func replacedBytes(args []jinja.Value, _ map[string]jinja.Value, _ int64) int64 {
	if len(args) < 3 {
		return 0
	}
	return replaced(textOf(args[0]), textOf(args[1]), textOf(args[2]))
}

// replaced bounds the bytes of s with each old replaced by new.
func replaced(s, old, new string) int64 {
	return int64(len(s)) + int64(strings.Count(s, old))*int64(max(0, len(new)-len(old)))
}

// joinedBytes bounds the result of the filter join.
func joinedBytes(args []jinja.Value, options map[string]jinja.Value, size int64) int64 {
	if len(args) == 0 || !args[0].IsList() {
		return 0
	}
	separator := 0
	if len(args) > 1 {
		separator = len(textOf(args[1]))
	}
	if v, ok := options["d"]; ok {
		separator = max(separator, len(textOf(v)))
	}
	return size + int64(args[0].AsList().Len())*int64(separator)
}

// indentedBytes bounds the result of the filter indent.
func indentedBytes(args []jinja.Value, options map[string]jinja.Value, size int64) int64 {
	if len(args) == 0 {
		return 0
	}
	width := int64(4)
	given, ok := options["width"]
	if !ok && len(args) > 1 {
		given, ok = args[1], true
	}
	switch {
	case ok && given.IsInt():
		width = min(max(given.AsInt(), 0), MaxResult)
	case ok:
		width = MaxResult // the library converts it
	}
	return size + (1+int64(strings.Count(textOf(args[0]), "\n")))*width
}

// method returns a method of lists, dicts or strings as a filter. A dict's value of that name comes before the method,
// as in the library. Undefined values have no methods.
func (r *run) method(name string, call func(self jinja.Value, args []jinja.Value) (result jinja.Value, known bool, err error)) func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
	return func(args []jinja.Value, options map[string]jinja.Value) (jinja.Value, error) {
		self, args := args[0], args[1:]
		if self.IsDict() {
			if v, ok := self.AsDict().Get(name); ok && (len(args) == 0 || !v.IsCallable()) {
				return v, nil
			} else if ok {
				return v.AsCallable().Fn(args, options)
			}
		}
		v, known, err := call(self, args)
		switch {
		case err != nil:
			return r.fail(err)
		case !known && len(args) > 0:
			return r.fail(fmt.Errorf("%w: %s of a value without this method", ErrTemplate, name))
		}
		return v, nil
	}
}

// add is append and insert of lists. It writes only to memory that the list alone has: the library's lists share memory,
// such as x and x|map, so a value that is put into one would be in both.
func (r *run) add(self jinja.Value, args []jinja.Value, insert bool) (jinja.Value, bool, error) {
	if !self.IsList() {
		return jinja.Undefined(), false, nil
	}
	l, at := self.AsList(), self.AsList().Len()
	if insert && len(args) > 1 {
		if args[0].IsInt() {
			at = int(min(max(args[0].AsInt(), 0), int64(at)))
		}
		args = args[1:]
	} else if insert {
		args = nil
	}
	if len(args) == 0 {
		return jinja.None(), true, nil
	}
	if _, err := r.measure(args[0], l); err != nil {
		return jinja.None(), true, err
	}
	if at < l.Len() || !r.owned[l] {
		tail := l.Items[at:]
		l.Items = append(make([]jinja.Value, 0, 2*(l.Len()+1)), l.Items[:at]...)
		l.Items = append(append(l.Items, args[0]), tail...)
		r.owned[l] = true
	} else {
		l.Append(args[0])
	}
	return jinja.None(), true, nil
}

// pop is the method pop of lists and dicts. The rest of a list gets memory that no other list has.
func (r *run) pop(self jinja.Value, args []jinja.Value) (jinja.Value, bool, error) {
	if err := changeable(self); err != nil || !self.IsList() && !self.IsDict() {
		return jinja.Undefined(), err != nil, err
	}
	if self.IsDict() {
		return r.popKey(self.AsDict(), args)
	}
	l := self.AsList()
	at := l.Len() - 1
	if len(args) > 0 && args[0].IsInt() {
		if at = int(args[0].AsInt()); at < 0 {
			at += l.Len()
		}
	}
	if at < 0 || at >= l.Len() {
		return jinja.Undefined(), true, fmt.Errorf("%w: pop of an element that a list of %d elements does not have", ErrTemplate, l.Len())
	}
	v := l.Items[at]
	l.Items = slices.Concat(l.Items[:at], l.Items[at+1:])
	r.owned[l] = true
	return v, true, nil
}

// popKey removes a key of a dict and returns its value, or the default.
func (r *run) popKey(d *jinja.Dict, args []jinja.Value) (jinja.Value, bool, error) {
	if len(args) == 0 {
		return jinja.Undefined(), true, nil
	}
	if _, err := r.measure(args[0], nil); err != nil {
		return jinja.Undefined(), true, err
	}
	key := textOf(args[0])
	if v, ok := d.Get(key); ok {
		delete(d.Data, key)
		d.Keys = slices.DeleteFunc(slices.Clone(d.Keys), func(k string) bool { return k == key })
		return v, true, nil
	}
	if len(args) > 1 {
		return args[1], true, nil
	}
	return jinja.Undefined(), true, nil
}

// cycler is Jinja's cycler. The library's would assign its attribute current without a check.
func (r *run) cycler(items []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(items) == 0 {
		return r.fail(fmt.Errorf("%w: cycler takes at least one argument", ErrTemplate))
	}
	at, self := 0, jinja.NewDict()
	move := func(to int) error {
		at = to
		_, err := r.measure(items[at], self.AsDict())
		if err == nil {
			self.AsDict().Set("current", items[at])
		}
		return err
	}
	if err := move(0); err != nil {
		return r.fail(err)
	}
	self.AsDict().Set("next", jinja.NewCallable("next", func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
		v := items[at]
		if err := move((at + 1) % len(items)); err != nil {
			return r.fail(err)
		}
		return v, nil
	}))
	self.AsDict().Set("reset", jinja.NewCallable("reset", func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
		if err := move(0); err != nil {
			return r.fail(err)
		}
		return jinja.None(), nil
	}))
	return self, nil
}

// update is the method update of dicts.
func (r *run) update(self jinja.Value, args []jinja.Value) (jinja.Value, bool, error) {
	if !self.IsDict() {
		return jinja.Undefined(), false, nil
	}
	if err := changeable(self); err != nil {
		return jinja.None(), true, err
	}
	if len(args) == 0 || !args[0].IsDict() {
		return jinja.None(), true, nil
	}
	for _, key := range args[0].AsDict().OrderedKeys() {
		v, _ := args[0].AsDict().Get(key)
		if _, err := r.measure(v, self.AsDict()); err != nil {
			return jinja.None(), true, err
		}
		self.AsDict().Set(key, v)
	}
	return jinja.None(), true, nil
}

// replace is the method replace of strings.
func (r *run) replace(self jinja.Value, args []jinja.Value) (jinja.Value, bool, error) {
	if !self.IsString() {
		return jinja.Undefined(), false, nil
	}
	if len(args) < 2 {
		return self, true, nil
	}
	v, err := r.limited("replace", replacedBytes)(append([]jinja.Value{self}, args...), nil)
	return v, true, err
}

// format is the method format of strings, with the library's fields: {} and {0}.
func (r *run) format(self jinja.Value, args []jinja.Value) (jinja.Value, bool, error) {
	if !self.IsString() {
		return jinja.Undefined(), false, nil
	}
	s := self.AsString()
	for i, a := range args {
		if _, err := r.measure(a, nil); err != nil {
			return self, true, err
		}
		text, field := textOf(a), fmt.Sprintf("{%d}", i)
		if replaced(s, field, text)+int64(len(text)) > MaxResult {
			return self, true, fmt.Errorf("%w: a text of more than %d bytes by format", ErrLimit, MaxResult)
		}
		s = strings.Replace(strings.ReplaceAll(s, field, text), "{}", text, 1)
	}
	return jinja.NewString(s), true, nil
}
