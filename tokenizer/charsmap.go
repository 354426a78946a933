package tokenizer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"
)

// charsmap replaces the longest known prefix of a text. SentencePiece compiles its rules into a
// double array (Darts-clone, include/darts.h) and the replacements.
type charsmap struct {
	units []uint32
	texts []byte // each ends with a NUL
}

// parseCharsmap reads a precompiled map: the length of the array in bytes (u32, little-endian),
// the array, and the replacements.
func parseCharsmap(data []byte) (normalizer, error) {
	if len(data) == 0 {
		return nil, nil
	}
	bad := errors.New("the precompiled charsmap is damaged")
	if len(data) < 4 {
		return nil, bad
	}
	size := int64(binary.LittleEndian.Uint32(data))
	data = data[4:]
	if size%4 != 0 || size > int64(len(data)) {
		return nil, bad
	}
	m := &charsmap{units: make([]uint32, size/4), texts: data[size:]}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return m, nil
}

// longest returns the length in bytes of the longest known prefix, and its replacement.
func (m *charsmap) longest(text string) (size int, replacement string) {
	if len(m.units) == 0 {
		return 0, ""
	}
	offset := func(u uint32) uint32 { return u >> 10 << (u & (1 << 9) >> 6) }
	at := offset(m.units[0])
	for i := range len(text) {
		at ^= uint32(text[i])
		if int64(at) >= int64(len(m.units)) {
			break
		}
		unit := m.units[at]
		if unit&(1<<31|0xff) != uint32(text[i]) {
			break
		}
		at ^= offset(unit)
		if unit>>8&1 == 0 || int64(at) >= int64(len(m.units)) {
			continue
		}
		if value := int64(m.units[at] & (1<<31 - 1)); value < int64(len(m.texts)) {
			end := bytes.IndexByte(m.texts[value:], 0)
			if end < 0 {
				end = len(m.texts) - int(value)
			}
			size, replacement = i+1, string(m.texts[value:int(value)+end])
		}
	}
	return size, replacement
}

func (m *charsmap) normalize(text string) string {
	var b strings.Builder
	for text != "" {
		size, by := m.longest(text)
		if size == 0 {
			_, size = utf8.DecodeRuneInString(text)
			by = text[:size]
		}
		b.WriteString(by)
		text = text[size:]
	}
	return validUTF8(b.String()) // a damaged map can cut a character
}
