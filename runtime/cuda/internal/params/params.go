// Package params reads the sizes of a kernel's parameters from its code, for drivers that do
// not return them (before CUDA 12.4). The input is not trusted. If it cannot be read, the
// sizes are not known; that is no error.
package params

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
)

// OfCubin returns the sizes in bytes of the parameters of a kernel in a cubin; false if
// the cubin does not say.
func OfCubin(cubin []byte, kernel string) (sizes []int64, known bool) {
	info, ok := section(cubin, ".nv.info."+kernel)
	if !ok {
		return nil, false
	}
	// The section is a list of attributes. Each has a byte with the format, a byte with the
	// kind, and 16 bits that are the value or, for the format sized, the number of bytes of
	// the value, which follows. An EIATTR_KPARAM_INFO (cuobjdump -elf) has a parameter's
	// number at byte 4 and its size in the upper 14 bits of the last word.
	const (
		sized        = 4
		paramInfo    = 0x17
		paramInfoLen = 12
		paramBytes   = 0x19 // of all parameters, in the 16 bits themselves
		maxParams    = 4096 / 4
	)
	total := int64(-1)
	for len(info) >= 4 {
		format, kind, n := info[0], info[1], int(binary.LittleEndian.Uint16(info[2:]))
		info = info[4:]
		if format != sized {
			if kind == paramBytes {
				total = int64(n)
			}
			continue
		}
		if n > len(info) {
			return nil, false
		}
		value := info[:n]
		info = info[n:]
		if kind != paramInfo {
			continue
		}
		if n != paramInfoLen {
			return nil, false
		}
		i := int(binary.LittleEndian.Uint16(value[4:]))
		if i >= maxParams {
			return nil, false
		}
		for len(sizes) <= i {
			sizes = append(sizes, -1)
		}
		sizes[i] = int64(binary.LittleEndian.Uint32(value[8:]) >> 18)
	}
	// Later compilers may list parameters in another way: use the list only if it is complete.
	sum := int64(0)
	for _, n := range sizes {
		sum += n
	}
	if len(info) > 0 || slices.Contains(sizes, -1) || total < sum || len(sizes) == 0 && total != 0 {
		return nil, false
	}
	return sizes, true
}

// section returns a section of a 64-bit little-endian ELF file by its name.
func section(file []byte, name string) ([]byte, bool) {
	const header, entry = 64, 64
	if len(file) < header || !bytes.HasPrefix(file, []byte("\x7fELF\x02\x01")) {
		return nil, false
	}
	le := binary.LittleEndian
	at := le.Uint64(file[0x28:])
	size, count, names := le.Uint16(file[0x3a:]), int(le.Uint16(file[0x3c:])), int(le.Uint16(file[0x3e:]))
	if size != entry || at > uint64(len(file)) || uint64(count)*entry > uint64(len(file))-at || names >= count {
		return nil, false
	}
	table := file[at:]
	data := func(i int) ([]byte, bool) {
		e := table[i*entry:]
		from, n := le.Uint64(e[0x18:]), le.Uint64(e[0x20:])
		const noBits = 8
		if le.Uint32(e[4:]) == noBits || from > uint64(len(file)) || n > uint64(len(file))-from {
			return nil, false
		}
		return file[from : from+n], true
	}
	texts, ok := data(names)
	if !ok {
		return nil, false
	}
	for i := range count {
		if n := le.Uint32(table[i*entry:]); uint64(n) < uint64(len(texts)) && bytes.HasPrefix(texts[n:], append([]byte(name), 0)) {
			return data(i)
		}
	}
	return nil, false
}

// OfPTX returns the sizes in bytes of the parameters of an entry in PTX; false if
// the text does not say in the form that compilers write.
func OfPTX(ptx []byte, entry string) (sizes []int64, known bool) {
	text := string(ptx)
	for {
		var found bool
		if _, text, found = strings.Cut(text, ".entry"); !found {
			return nil, false
		}
		rest, ok := strings.CutPrefix(strings.TrimSpace(text), entry)
		if rest = strings.TrimSpace(rest); !ok || rest == "" {
			continue
		}
		if rest[0] == '{' || rest[0] == '.' { // directives follow an entry without parameters
			return nil, true
		}
		if list, _, closed := strings.Cut(rest, ")"); closed && strings.HasPrefix(list, "(") {
			return paramList(list[1:])
		}
	}
}

func paramList(list string) (sizes []int64, known bool) {
	if strings.TrimSpace(list) == "" {
		return nil, true
	}
	for _, p := range strings.Split(list, ",") {
		words := strings.Fields(p)
		if len(words) < 3 || words[0] != ".param" {
			return nil, false
		}
		size := int64(0)
		for _, w := range words[1 : len(words)-1] {
			digits := strings.TrimLeft(w, ".bfsu")
			if w[0] != '.' || digits == "" || strings.Trim(digits, "0123456789") != "" {
				continue // .align and its number, .ptr, .global
			}
			bits, err := strconv.ParseInt(digits, 10, 32)
			if err != nil {
				return nil, false
			}
			size = bits / 8
		}
		if _, array, ok := strings.Cut(words[len(words)-1], "["); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(array, "]"), 10, 32)
			if err != nil {
				return nil, false
			}
			size *= n
		}
		if size <= 0 {
			return nil, false
		}
		sizes = append(sizes, size)
	}
	return sizes, true
}
