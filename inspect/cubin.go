package inspect

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"
)

// Attributes in the section .nv.info of a cubin, as cuobjdump -elf names them: records of a
// format, an attribute and, for the format EIFMT_SVAL, a length and so many bytes.
const (
	formatSized   = 4    // EIFMT_SVAL
	attrRegisters = 0x2f // EIATTR_REGCOUNT: index of the kernel's symbol, registers of a thread
)

// elfVersion is the offset of e_version in an ELF header. ELF requires 1; cubins have CUDA's own
// value.
const elfVersion = 20

// resources returns the registers of a thread and the static shared memory of a kernel in a
// cubin, in bytes, including CUDA's reserved part; zeros if the cubin lacks them.
func resources(cubin []byte, kernel string) (registers int, shared int64) {
	if len(cubin) < elfVersion+4 {
		return 0, 0
	}
	cubin = slices.Clone(cubin)
	binary.LittleEndian.PutUint32(cubin[elfVersion:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(cubin))
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	if s := f.Section(".nv.shared." + kernel); s != nil {
		shared = int64(s.Size)
	}
	symbols, err := f.Symbols()
	info := f.Section(".nv.info")
	if err != nil || info == nil {
		return 0, shared
	}
	data, err := info.Data()
	if err != nil {
		return 0, shared
	}
	return registersOf(data, func(index uint32) bool {
		// Symbols omits the first entry, which is null
		return index >= 1 && int(index) <= len(symbols) && symbols[index-1].Name == kernel
	}), shared
}

// registersOf finds the registers of the kernel whose symbol is chosen.
func registersOf(info []byte, chosen func(symbol uint32) bool) int {
	for len(info) >= 4 {
		format, attr, size := info[0], info[1], 0
		if format == formatSized {
			size = int(binary.LittleEndian.Uint16(info[2:]))
		}
		info = info[4:]
		if size > len(info) {
			return 0
		}
		if attr == attrRegisters && size >= 8 && chosen(binary.LittleEndian.Uint32(info)) {
			return int(binary.LittleEndian.Uint32(info[4:]))
		}
		info = info[size:]
	}
	return 0
}
